"""Gradient descent in torch, and L-BFGS."""
