"""Equations of state evolution: averages over the channel and over the weights, symmetries, units."""
