"""Branches of solutions over α, their ends and crossings, and boundaries of phases.

- `branches` lists several fixed points at one α.
- `continue_branch` follows one branch in a parameter up to its end.
- `phase_boundaries` computes α_c, α_l and the ends and stability of the branches, as functions of ω.

Uses: the core; `sweeps` (parallel jobs).
"""
