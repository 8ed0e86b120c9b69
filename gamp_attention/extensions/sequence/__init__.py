"""Models from plain Python functions of the fields: `sequence_model`, layers with value matrices, fixed columns.

The functions are traced into expressions with exact derivatives. Uses: the core.
"""
