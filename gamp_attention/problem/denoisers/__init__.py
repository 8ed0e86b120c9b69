"""Proximal maps of losses and penalties: the output and the input denoiser of message passing."""
