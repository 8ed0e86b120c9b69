"""One script for each claim: prints a table, saves a picture and its numbers, fails if its criterion does not hold."""
