"""Fixed points: found, refined until their errors are small, judged and reported."""
