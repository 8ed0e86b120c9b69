"""Fixed points of state evolution: search, refinement to a requested accuracy, stability and validity."""
