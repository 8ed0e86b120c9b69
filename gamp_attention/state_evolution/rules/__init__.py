"""Quadrature rules: averages over the channel's fields, with their errors."""
