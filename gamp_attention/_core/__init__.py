"""Tools without physics: checks of arguments, compiled kernels and their cache, files, points, seeds."""
