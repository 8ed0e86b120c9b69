"""Branches of fixed points, followed as a parameter changes."""
