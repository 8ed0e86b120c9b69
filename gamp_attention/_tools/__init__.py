"""Tools without physics: checks of arguments, linear algebra, random streams, display, progress, runs and files."""
