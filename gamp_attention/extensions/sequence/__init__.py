"""Models from plain Python functions of the fields: `sequence_model`, and layers with value matrices: `value_model`.

The functions are traced into expressions with exact derivatives. Uses: the core.
"""
