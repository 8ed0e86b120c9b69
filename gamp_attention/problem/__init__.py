"""What is minimized: the data of a problem, losses and penalties, their proximal maps, the risk and its gradient."""
