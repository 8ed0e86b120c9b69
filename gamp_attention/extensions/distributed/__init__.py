"""Message passing on samples that are distributed over the workers of a dask cluster.

Uses: the core.
"""
