"""Posterior distributions of the fields of one sample, given its target."""
