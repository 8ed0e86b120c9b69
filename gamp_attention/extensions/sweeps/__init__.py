"""Sweeps: grids of parameters, computed in parallel, stored on disk and resumed.

Uses: the core.
"""
