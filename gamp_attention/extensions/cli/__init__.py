"""The command `gamp-attention`.

Uses: the core and all extensions.
"""
