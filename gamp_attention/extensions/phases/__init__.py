"""Branches of solutions over α, their ends and crossings, and boundaries of phases.

Uses: the core; `bayes` (thresholds), `rsb` and `sweeps` (parallel jobs).
"""
