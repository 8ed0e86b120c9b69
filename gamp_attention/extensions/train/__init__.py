"""Training from data: several starts, spectral starts, descents, survey propagation, escapes and checkpoints.

`train` returns the lowest minimum of all starts. Uses: the core.
"""
