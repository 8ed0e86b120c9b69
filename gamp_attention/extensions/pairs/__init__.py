"""The overlap of two estimators that are trained on common samples, as for bootstrap samples or two penalties.

`solve_pair` computes it from the state evolution of both.

Uses: the core.
"""
