"""Fixed points of the map of overlaps, refined until all stated errors hold."""
