"""Trajectories: overlaps at every iteration of damped message passing."""
