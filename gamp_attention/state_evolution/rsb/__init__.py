"""Replica symmetry breaking at zero temperature: k steps for one field, and for two tokens with one column."""
