"""Draw teachers and data from a model."""
