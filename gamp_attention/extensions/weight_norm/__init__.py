"""Losses that read the norm of the weights, such as the loss of adversarial training.

`solve_with_norm` solves their state evolution, and `run_gamp_with_norm` runs message passing on samples.

Uses: the core; `equations` (compilation of functions of one field).
"""
