"""What a fit is worth: leave-one-out errors, paths of a hyperparameter, intervals of weights and predictions."""
