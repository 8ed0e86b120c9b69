"""Both proximal maps: of a sample's fields (output) and of a coordinate's weights (input)."""
