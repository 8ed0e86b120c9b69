"""Figures and tables of the paper."""
