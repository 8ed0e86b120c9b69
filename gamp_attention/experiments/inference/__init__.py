"""Error estimates of a fit: leave-one-out errors, regularization paths, and confidence intervals of the weights."""
