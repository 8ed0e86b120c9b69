"""Phase diagrams: where branches exist, which is lowest, which beats the linear baseline."""
