"""Penalties r(Q): the ridge, the elastic net, and those that users register."""
