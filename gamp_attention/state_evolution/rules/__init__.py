"""Quadrature rules for averages over the fields of the channel, with error estimates."""
