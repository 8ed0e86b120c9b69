"""Equations of state evolution: from overlaps to conjugate overlaps (channel), and back (weights)."""
