"""State evolution: the model, the map of overlaps, averages, fixed points with stated errors, observables."""
