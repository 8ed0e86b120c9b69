"""Weights trained again without one sample, from the minimum with it: what leave-one-out formulas stand for."""

from dataclasses import dataclass, replace

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import RiskAtPoint, gradient_norm, risk_at
from gamp_attention.gamp.settling import proximal_gradient, quasi_newton
from gamp_attention.losses.derivatives import sample_derivatives
from gamp_attention.penalties.matrix import least_subgradient


@dataclass(frozen=True)
class RefitSettings:
    """The descents of `refit`."""

    tol: float = 1e-8  # on the gradient norm
    accepted: float = 1e-6  # the same where nothing improves any more
    max_iter: int = 5000


REFITS = RefitSettings()


def refit(data: Dataset, Q: np.ndarray, sample: int) -> tuple[np.ndarray, bool]:
    """Weights to which a descent from Q leads on the exact risk without one sample, and whether that is a minimum."""

    def evaluate(Q: np.ndarray) -> RiskAtPoint:
        return without(data, Q, sample)

    descend = quasi_newton if data.penalty.smooth else proximal_gradient
    end, _ = descend(data, evaluate, Q, REFITS.tol, REFITS.max_iter)
    return end, evaluate(end).gradient_norm <= REFITS.accepted


def without(data: Dataset, Q: np.ndarray, sample: int) -> RiskAtPoint:
    """The exact risk at Q without one sample; its fields and Hessians are of all."""
    at = risk_at(data, Q, "exact")
    x = (np.asarray(data.tokens[sample : sample + 1]) if isinstance(data.tokens, np.ndarray)
         else data.tokens.read(slice(sample, sample + 1)))  # fmt: skip
    x = (x[0] + data.positions) / np.sqrt(data.dim)
    terms = data.terms("exact")
    loss, slope, _ = sample_derivatives(at.loss, at.params[sample : sample + 1], (x @ Q)[None])
    smooth = at.smooth - x.T @ slope[0]
    gradient = least_subgradient(data.penalty, Q, smooth)
    lower = float(loss[0] + terms.constant[sample]) / data.dim
    return replace(
        at,
        train_loss=at.train_loss - lower,
        gradient=gradient,
        smooth=smooth,
        gradient_norm=gradient_norm(data, gradient),
    )
