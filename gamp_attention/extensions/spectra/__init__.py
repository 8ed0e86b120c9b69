"""Spectra of the Hessian of the risk, at finite d and in the limit, and overlaps of spectral starts.

Uses: the core; `bayes` (posterior weights), `sequence` and `train` (weights of spectral starts).
"""
