"""Quadrature rules for the averages over the channel: random points, and panels between the jumps."""
