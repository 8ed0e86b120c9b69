"""Spectra of the Hessian of the risk, at finite d and in the limit.

Uses: the core.
"""
