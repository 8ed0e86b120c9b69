"""A script for each claim: it prints a table, stores its numbers and a picture, and fails if its criterion fails.

`python -m validation` lists the scripts, `python -m validation NAME` runs one.
"""
