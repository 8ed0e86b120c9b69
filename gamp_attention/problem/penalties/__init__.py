"""Penalties r(x) of the weights, with their proximal maps."""
