"""Ratios of times."""
