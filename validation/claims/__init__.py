"""Checks of the claims of README and manual."""
