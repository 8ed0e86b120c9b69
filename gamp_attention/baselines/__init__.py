"""Baselines of message passing: gradient descent, a linear layer, and predictions without attention."""

from gamp_attention.baselines.descent import (
    DescentResult,
    OnlineResult,
    TorchRisk,
    few_threads,
    minimize_risk,
    quasi_newton,
)
from gamp_attention.baselines.linear import LinearBaseline, LinearFit, fit_linear_baseline, linear_baseline
from gamp_attention.baselines.reference import ReferenceErrors, ReferenceVerdict, reference_errors

__all__ = [
    "DescentResult", "LinearBaseline", "LinearFit", "OnlineResult", "ReferenceErrors", "ReferenceVerdict",
    "fit_linear_baseline", "linear_baseline", "minimize_risk", "reference_errors",
]  # fmt: skip
