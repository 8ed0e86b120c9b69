"""The problem to minimize: data, losses, penalties, their proximal maps, and the risk with its gradient."""
