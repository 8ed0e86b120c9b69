"""Checks of a claim."""
