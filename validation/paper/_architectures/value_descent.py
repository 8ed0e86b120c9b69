"""Descent for a layer with a trainable low-rank value matrix, S[(x+p)Q/√d] (x+p) (1 + U Wᵀ), in torch.

The targets are vectors of R^d, so that a value matrix of low rank alone could fit none of them: it comes on top of the
identity. U and W have the ridge λ of Q. A spike UWᵀ of norm O(1) costs λ O(1) of a risk of order d, and gains as much:
for d → ∞ neither losses nor transitions change at leading order, and the prediction is that of the paper's model.
"""

from math import sqrt
from typing import NamedTuple

import numpy as np
import torch

from gamp_attention.baselines.descent import few_threads, quasi_newton
from gamp_attention.results import Status

VALUE_RANK = 1
START = 0.1  # size of U and W
MAX_ITER, TOL = 5000, 1e-8


class ValueDescent(NamedTuple):
    """Outcome; the gradient norm is ‖∇R‖/(λ√d) in all weights, and spike that of UWᵀ."""

    status: Status
    n_iter: int
    Q: np.ndarray
    train_loss: float
    gradient_norm: float
    spike: float


def descend_with_values(data, start, seed):
    """L-BFGS in Q from given weights, and in U and W from small random ones, on the exact risk of the layer itself."""
    d, r = start.shape
    small = START / sqrt(d) * np.random.default_rng([seed, 11]).standard_normal((d, 2 * VALUE_RANK))
    weights = torch.tensor(np.concatenate([start, small], axis=1), requires_grad=True)
    seen, outputs = torch.tensor(data.tokens + data.positions), torch.tensor(data.outputs)

    def risk(weights):
        Q, U, W = weights.split([r, VALUE_RANK, VALUE_RANK], dim=1)
        values = seen + (seen @ U) @ W.T
        off = outputs - data.student(seen @ Q / sqrt(d)) @ values
        return (off**2).sum() / (2 * d) + 0.5 * data.lam * (weights**2).sum()

    size = data.lam * sqrt(d)
    with few_threads(seen.numel()):
        status, n_iter = quasi_newton(risk, weights, 1.0, MAX_ITER, TOL * size, lambda *_: None)
        value = risk(weights)
        (gradient,) = torch.autograd.grad(value, weights)
    Q, U, W = (part.detach().numpy() for part in weights.split([r, VALUE_RANK, VALUE_RANK], dim=1))
    spike = float(np.linalg.norm(U @ W.T, 2))
    return ValueDescent(status, n_iter, Q.copy(), value.item() / d, gradient.norm().item() / size, spike)
