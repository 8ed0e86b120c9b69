"""Replica symmetry breaking: `solve_broken`, with one, two, three or infinitely many steps.

Uses: the core.
"""
