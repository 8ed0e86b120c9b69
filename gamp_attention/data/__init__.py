"""A problem at finite d: tokens, their fields, the risk and its sums, wherever the samples are held."""
