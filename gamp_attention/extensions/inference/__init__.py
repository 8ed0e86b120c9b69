"""Statements from training data: leave-one-out errors, paths of λ, intervals of weights, baselines, token laws.

Uses: the core; `train`.
"""
