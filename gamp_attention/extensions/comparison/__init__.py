"""Comparison of message passing, theory and descent on one instance, and figures of results.

Uses: the core; `dynamics`, `phases` and `train`.
"""
