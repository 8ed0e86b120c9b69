"""Training from data: several starts, spectral starts, descents, survey propagation, escapes and checkpoints.

- `train` returns the lowest minimum of all starts, and resumes an interrupted run from a checkpoint.
- `load_result` reads results of the command `gamp-attention fit`.

Uses: the core.
"""
