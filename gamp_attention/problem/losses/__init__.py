"""Losses ℓ(z) of one sample in compiled code; attention maps are losses like others."""
