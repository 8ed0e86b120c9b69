"""Bayes-optimal estimation: message passing, its state evolution, thresholds, and starts from posteriors.

Uses: the core; `sequence` (targets that are functions) and `train` (eigenvectors of spectral starts).
"""
