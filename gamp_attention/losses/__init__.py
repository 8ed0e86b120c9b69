"""Per-sample losses ℓ(z) and the attention maps S that they are made of, in compiled code."""
