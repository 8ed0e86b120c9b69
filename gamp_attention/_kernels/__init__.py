"""Functions that numba compiles one by one, links by their symbols, and stores on disk; no physics."""
