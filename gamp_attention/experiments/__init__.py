"""Comparisons, sweeps and phase diagrams, made of the rooms below, and their pictures."""
