"""Sweeps over grids and lists of cells: resumable, on any executor, one file for each finished cell."""
