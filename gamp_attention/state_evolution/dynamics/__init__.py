"""Trajectories: overlaps and losses at every iteration of message passing or gradient descent."""
