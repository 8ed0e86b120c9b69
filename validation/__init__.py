"""Scripts that check the claims of the package, each against a stated criterion.

Every script prints a table, stores its numbers and a picture in `validation/results`, and ends with exit status 1 if a
check of its criterion fails. `python -m validation` lists the scripts, `python -m validation NAME` runs one.
"""
