"""The equations of state evolution: from overlaps to conjugates, and back through the weights."""
