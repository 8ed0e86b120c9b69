"""Replica symmetry breaking at zero temperature: k steps for models with one field per sample."""
