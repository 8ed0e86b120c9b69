"""Baselines of message passing: gradient descent, a linear layer, and predictions without attention."""

from gamp_attention.baselines.descent import minimize_risk
from gamp_attention.baselines.linear import LinearBaseline, LinearFit, fit_linear_baseline, linear_baseline
from gamp_attention.baselines.online import OnlineResult, single_pass
from gamp_attention.baselines.quasi_newton import quasi_newton
from gamp_attention.baselines.reference import ReferenceErrors, ReferenceVerdict, reference_errors
from gamp_attention.baselines.torch_risk import DescentResult, TorchRisk, few_threads

__all__ = [
    "DescentResult", "LinearBaseline", "LinearFit", "OnlineResult", "ReferenceErrors", "ReferenceVerdict",
    "fit_linear_baseline", "linear_baseline", "minimize_risk", "reference_errors", "single_pass",
]  # fmt: skip
