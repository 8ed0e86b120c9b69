"""The architectures of appendix E.3: their models, starts and descents at finite d.

Order parameters are σ|QᵀQ*|/d (semantic) and σ|Qᵀp_1|/√d (positional), norms over the columns of Q: for one column √q
times the cosines of the angles of Q with Q* and p_1.

Two correlated tokens, E[x_1 x_2ᵀ] = c σ² I, are treated as two independent tokens: the problem in rotated tokens u = R
x. R maps them to sum and difference, of variances (1 ± c) σ², and R² = 1. As ‖T x − S (x + p)‖ is the norm of R T R u −
R S R (u + R p), the problem is one of the package's general models: uncorrelated tokens, teacher R T[R y] R and
attention map R S[R z] R, with the same weights Q. So message passing and state evolution cover it exactly.

The layer with a trainable low-rank value matrix is S[(x+p)Q/√d] (x+p) (1 + U Wᵀ). The targets are vectors of R^d, so a
value matrix of low rank could fit none of them: it is added to the identity. U and W have the ridge λ of Q. A spike UWᵀ
of norm O(1) costs λ O(1) of a risk of order d, and gains as much: for d → ∞ neither losses nor transitions change at
leading order, and the prediction is state evolution of the paper's model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, sqrt
from typing import Any, NamedTuple

import numpy as np
import torch

import gamp_attention as ga
from gamp_attention.descent.minimize import quasi_newton
from gamp_attention.descent.torch_risk import few_threads
from gamp_attention.problem.starts import initial_weights
from gamp_attention.results import Status

CORRELATION = 0.3  # c
HALF = sqrt(0.5)
R = np.array([[HALF, HALF], [HALF, -HALF]])


@ga.register_attention
class RotatedSoftmax(NamedTuple):
    """Attention map R S[R z] R, with S the tied softmax of two tokens."""

    even = True
    rotations = True

    def attend(self, z, S):
        """Fill S (2, 2) from fields z (2, r)."""
        first = second = cross = 0.0
        for a in range(z.shape[1]):
            u, v = HALF * (z[0, a] + z[1, a]), HALF * (z[0, a] - z[1, a])
            first += u * u
            second += v * v
            cross += u * v
        to_second, to_first = 1 / (1 + exp(first - cross)), 1 / (1 + exp(second - cross))  # of tokens 1 and 2
        S[0, 0] = 1.0
        S[0, 1] = to_first - to_second
        S[1, 0] = 0.0
        S[1, 1] = 1 - to_first - to_second


@dataclass(frozen=True)
class RotatedTeacher:
    """Teacher map R T[R y] R, for the teacher T of equation (16)."""

    teacher: ga.SoftmaxTeacher
    even = True

    def __call__(self, u):
        """Return matrices (..., 2, 2) of teacher fields (..., 2, t)."""
        return R @ self.teacher(R @ u) @ R


def build_correlated_model(omega, sigma=0.5):
    """Return the paper's model with correlated tokens, in rotated tokens."""
    plain = ga.paper_model(omega, sigma)
    return ga.attention_model(
        sigma=sigma * np.sqrt([1 + CORRELATION, 1 - CORRELATION]), tau=R @ plain.coordinates.tau[0],
        teacher=RotatedTeacher(plain.teacher), student=RotatedSoftmax(),
    )  # fmt: skip


def rotate_back(data):
    """Return the samples as arrays of the correlated tokens, for the ordinary layer."""
    tokens = np.einsum("lk,nkd->nld", R, data.tokens)
    outputs = np.einsum("lk,nkd->nld", R, data.outputs)
    return ga.Dataset(tokens, outputs, R @ data.positions, data.lam)


VALUE_RANK = 1
START = 0.1  # norm of the columns of U and W at the start
MAX_ITER, TOL = 5000, 1e-8


class ValueDescent(NamedTuple):
    """Outcome of a descent; the gradient norm is ‖∇R‖/(λ√d) in all weights."""

    status: Status
    Q: np.ndarray
    train_loss: float
    gradient_norm: float


def descend_with_values(data, start, seed):
    """Run L-BFGS in Q from given weights, and in U and W from small random weights, on the exact risk."""
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
        status, _ = quasi_newton(risk, weights, 1.0, MAX_ITER, TOL * size, lambda *_: None)
        value = risk(weights)
        (gradient,) = torch.autograd.grad(value, weights)
    Q = weights.detach().numpy()[:, :r]
    return ValueDescent(status, Q.copy(), value.item() / d, gradient.norm().item() / size)


SIGMA = 0.5
SLICE = 0.3  # ω with more instances and with state evolution
NOISE = 0.1  # standard deviation of the noise of the rank-2 starts
ORDERS = ("semantic", "positional")
EQUAL = ("equal semantic", "equal positional")  # rank-2 starts with two equal columns, without noise


@dataclass(frozen=True)
class Architecture:
    """One change of the paper's model.

    Attributes
    ----------
    title : for pictures and tables.
    model : function that returns the model at a given ω; its state evolution is the prediction.
    starts : names of the starts.
    rtol : accuracy of its state evolution.
    arrays : function that returns the samples for descents, if they differ from the drawn samples.
    descend : another descent than `minimize_risk`, with the attributes of its result.
    """

    title: str
    model: Callable[[float], ga.Model]
    starts: tuple[str, ...] = ORDERS
    rtol: float = 1e-3
    arrays: Callable[[ga.Dataset], ga.Dataset] = lambda data: data
    descend: Callable[[ga.Dataset, np.ndarray, Any], Any] | None = None


ARCHITECTURES = {
    "paper": Architecture("rank 1, tied", ga.paper_model),
    "rank2": Architecture(
        "rank-2 student", lambda omega: ga.attention_model(2, 2, 1, omega=omega), (*ORDERS, "mixed", *EQUAL), 1e-2
    ),
    "untied": Architecture(
        "untied Q and K",
        lambda omega: ga.attention_model(2, 2, 1, omega=omega, student=ga.DotProductAttention(tied=False)),
        rtol=1e-2,
    ),
    "value": Architecture(
        "value matrix 1 + UWᵀ", ga.paper_model, descend=descend_with_values
    ),
    "correlated": Architecture("correlated tokens", build_correlated_model, arrays=rotate_back),
}  # fmt: skip


def build_start(data, name):
    """Return the weights (d, r) of a start; with tied weights of rank 2, columns of one or both kinds plus noise."""
    if data.rank == 1 or not data.student.tied:
        return initial_weights(data, name)
    column = {order: initial_weights(data, order)[:, 0] for order in ORDERS}
    kinds = ORDERS if name == "mixed" else 2 * (name.split()[-1],)
    noise = NOISE * np.random.default_rng([data.dim, data.n_samples, 5]).standard_normal((data.dim, 2))
    return np.stack([column[kind] for kind in kinds], axis=1) + (0 if name in EQUAL else noise)


def compute_order_parameters(Q, Q_star, position):
    """Return the semantic and the positional order parameter of weights (d, r)."""
    d = len(Q)
    return {
        "semantic": float(SIGMA * np.linalg.norm(Q.T @ Q_star) / d),
        "positional": float(SIGMA * np.linalg.norm(Q.T @ position) / np.sqrt(d)),
    }


def compute_layer_loss(data, Q):
    """Return ε_t of the layer as written in equations (2) and (3), without the package's risk."""
    seen, d = data.tokens + data.positions, len(Q)
    off = data.outputs - data.student(seen @ Q / np.sqrt(d)) @ seen
    return float((off**2).sum() / (2 * d) + 0.5 * data.lam * (Q**2).sum()) / d


def descents(architecture, omega, alpha, d, seed):
    """Run descents from all starts on one instance with the exact risk."""
    which = ARCHITECTURES[architecture]
    data = ga.sample(which.model(omega), d, alpha, seed)
    layer = which.arrays(data)
    row = {}
    for name in which.starts:
        start = build_start(data, name)
        if which.descend is None:
            end = ga.minimize_risk(layer, start, "exact", "lbfgs")
        else:
            end = which.descend(layer, start, seed)
        row[name] = {
            "status": end.status.value, "gradient_norm": end.gradient_norm, "train_loss": end.train_loss,
            "order": compute_order_parameters(end.Q, data.Q_star, layer.positions[0]),
            "singular": np.linalg.svd(end.Q / np.sqrt(d), compute_uv=False).tolist(),
        }  # fmt: skip
        if which.descend is None:
            row[name]["loss_gap"] = abs(compute_layer_loss(data, end.Q) / end.train_loss - 1)
    return row
