"""The architectures of Appendix E.3: their models, starts and descents at finite d.

Order parameters are σ|QᵀQ*|/d (semantic) and σ|Qᵀp_1|/√d (positional), norms over the columns of Q: √q times the
cosines of the angles of Q with Q* and p_1, where Q is one column.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import gamp_attention as ga
from gamp_attention.data.starts import initial_weights
from validation.paper._architectures.turned_tokens import correlated_model, turned_back
from validation.paper._architectures.value_descent import descend_with_values

SIGMA = 0.5
SLICE = 0.3  # ω with more instances, GAMP and state evolution
NOISE = 0.1  # of every column of the rank-2 starts
ORDERS = ("semantic", "positional")
EQUAL = ("equal semantic", "equal positional")  # rank-2 starts with both columns of the kind, without noise
GAMP_ITERATIONS = 600


@dataclass(frozen=True)
class Architecture:
    """One change of the paper's model.

    Attributes
    ----------
    title : for pictures and tables.
    model : the model at a given ω, whose state evolution is the prediction.
    starts : names of the starts.
    rtol : accuracy of its state evolution.
    arrays : the samples as descents take them, where that is not as they are drawn.
    descend : another descent than `minimize_risk`, with what it returns.
    message_passing : whether GAMP runs on its samples.
    """

    title: str
    model: Callable[[float], ga.Model]
    starts: tuple[str, ...] = ORDERS
    rtol: float = 1e-3
    arrays: Callable[[ga.Dataset], ga.Dataset] = lambda data: data
    descend: Callable[[ga.Dataset, np.ndarray, Any], Any] | None = None
    message_passing: bool = True


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
        "value matrix 1 + UWᵀ", ga.paper_model, descend=descend_with_values, message_passing=False
    ),
    "correlated": Architecture("correlated tokens", correlated_model, arrays=turned_back),
}  # fmt: skip


def weights_of(data, name):
    """Weights (d, r) of a start; with tied weights of rank 2, both columns of one kind, or one of each, plus noise."""
    if data.rank == 1 or not data.student.tied:
        return initial_weights(data, name)
    column = {order: initial_weights(data, order)[:, 0] for order in ORDERS}
    kinds = ORDERS if name == "mixed" else 2 * (name.split()[-1],)
    noise = NOISE * np.random.default_rng([data.dim, data.n_samples, 5]).standard_normal((data.dim, 2))
    return np.stack([column[kind] for kind in kinds], axis=1) + (0 if name in EQUAL else noise)


def order_parameters(Q, Q_star, position):
    """The semantic and the positional one, of weights (d, r)."""
    d = len(Q)
    return {
        "semantic": float(SIGMA * np.linalg.norm(Q.T @ Q_star) / d),
        "positional": float(SIGMA * np.linalg.norm(Q.T @ position) / np.sqrt(d)),
    }


def layer_loss(data, Q):
    """ε_t of the layer as it is written in eq. (2) and (3), without the package's risk."""
    seen, d = data.tokens + data.positions, len(Q)
    off = data.outputs - data.student(seen @ Q / np.sqrt(d)) @ seen
    return float((off**2).sum() / (2 * d) + 0.5 * data.lam * (Q**2).sum()) / d


def descents(architecture, omega, alpha, d, seed, gamp):
    """One instance: where descents from all starts end on the exact risk; and GAMP, if asked for."""
    which = ARCHITECTURES[architecture]
    data = ga.sample(which.model(omega), d, alpha, seed)
    layer = which.arrays(data)
    row = {}
    for name in which.starts:
        start = weights_of(data, name)
        if which.descend is None:
            end = ga.minimize_risk(layer, start, "exact", "lbfgs")
        else:
            end = which.descend(layer, start, seed)
        row[name] = {
            "status": end.status.value, "n_iter": end.n_iter, "gradient_norm": end.gradient_norm,
            "train_loss": end.train_loss, "order": order_parameters(end.Q, data.Q_star, layer.positions[0]),
            "singular": np.linalg.svd(end.Q / np.sqrt(d), compute_uv=False).tolist(),
        }  # fmt: skip
        if which.descend is None:
            row[name]["loss_gap"] = abs(layer_loss(data, end.Q) / end.train_loss - 1)
        else:
            row[name]["spike"] = end.spike
        if gamp and which.message_passing:
            passed = ga.run_gamp(data, start, "exact", damping=0.3, max_iter=GAMP_ITERATIONS)
            row[name]["gamp"] = {
                "status": passed.status.value, "converged": passed.converged, "train_loss": passed.train_loss,
                "gradient_norm": passed.gradient_norm,
                "order": order_parameters(passed.Q, data.Q_star, layer.positions[0]),
            }  # fmt: skip
    return row
