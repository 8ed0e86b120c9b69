"""Error estimates of a fit: leave-one-out errors, regularization paths, and confidence intervals of the weights."""

from gamp_attention.experiments.inference.covariance import scale_changes
from gamp_attention.experiments.inference.left_out import leave_out
from gamp_attention.experiments.inference.path_training import PathPlan, fold_errors
from gamp_attention.experiments.inference.refits import Refitter, sample_errors, tokens_fields, without
