"""The landscape of minima: where branches exist, which is lowest, which beats the linear baseline."""
