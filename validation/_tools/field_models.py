"""Six published models of sequences, each written as plain Python functions and one call in at most thirty lines.

Functions of students and losses have the module of arrays as their last argument, so that torch can evaluate them too:
`gradient_norm` computes the gradient of the training risk from tokens, targets and weights only.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

import gamp_attention as ga


class FieldModel(NamedTuple):
    """A model with its settings: sample complexity α, start, step β of message passing, and functions for torch."""

    model: ga.SequenceModel
    alpha: float
    start: str
    step: float
    student: Callable[..., Any]  # prediction of fields (L, r) and a module of arrays
    loss: Callable[..., Any] | None = None  # loss of target, prediction and a module; None for half the square
    fixed: tuple[float, ...] = ()  # coefficients of column 0 in the columns of the teacher, if it is fixed


def select_softly(z: Any, xp: Any = np) -> Any:
    """Return the value, column 1, of the token that column 0 selects softly."""
    weights = xp.exp(z[:, 0] - z[:, 0].max())
    return (weights * z[:, 1]).sum() / weights.sum()


def build_deep_attention() -> FieldModel:
    """Return two layers of attention, of which the second reads the averages of the first (arXiv 2502.00901)."""

    def softmax(scores, xp):
        weights = xp.exp(scores - scores.max())
        return weights / weights.sum(1)[:, None]

    def layers(z, xp=np):
        second = (xp.eye(2) + softmax(xp.outer(z[:, 0], z[:, 0]), xp)) @ z[:, 1]
        return softmax(xp.outer(second, second), xp)

    model = ga.sequence_model(lambda u, noise: layers(u), layers, n_tokens=2, rank=2, lam=0.05)
    return FieldModel(model, 6.0, "semantic", 0.3, layers)


def build_single_location() -> FieldModel:
    """Return softmax regression on the one token whose mean is shifted along a key (arXiv 2509.21936)."""
    spikes = [[[2.0 * (token == place), 0.0] for token in range(2)] for place in range(2)]
    model = ga.sequence_model(
        lambda u, noise, place: u[place, 1] + 0.5 * noise[0], select_softly, n_tokens=2, rank=2, n_noise=1, lam=0.5,
        classes=[0.5, 0.5], spikes=spikes,
    )  # fmt: skip
    return FieldModel(model, 4.0, "semantic", 0.3, select_softly)


def build_several_heads(heads: int = 2) -> FieldModel:
    """Return heads with a common normalization; the shifted token has one of two spikes (arXiv 2603.03993)."""

    def attend(z, xp=np):
        weights = xp.exp(z[:, :heads] - z[:, :heads].max()).sum(1)
        return (weights * z[:, heads]).sum() / weights.sum()

    classes = list(product(range(2), (1, -1)))
    spikes = np.zeros((len(classes), 2, 3))
    for number, (token, sign) in enumerate(classes):
        spikes[number, token, :2] = 1.0, 2.5 * sign
    model = ga.sequence_model(
        lambda u, noise, c: u[c // 2, 2] + 0.5 * noise[0], attend, n_tokens=2, rank=heads + 1, teacher_rank=3,
        n_noise=1, lam=0.5, classes=[0.25] * 4, spikes=spikes,
    )  # fmt: skip
    return FieldModel(model, 4.0, "semantic", 0.2, attend)


def build_sparse_tokens() -> FieldModel:
    """Return the fit of the read-out at a fixed query: a weak signal in one of four tokens (arXiv 2509.25153)."""

    def loss(y, field, xp=np):
        return xp.logaddexp(0.0 * field, -y * field)

    spikes = np.zeros((2, 4, 1))
    spikes[0, 0] = 4.0
    model = ga.sequence_model(
        lambda u, noise, c: 1.0 - 2.0 * c, select_softly, loss, n_tokens=4, rank=2, teacher_rank=1, lam=0.5,
        intercept=True, classes=[0.5, 0.5], spikes=spikes,
    )  # fmt: skip
    query = 0.9, 0.43  # after two gradient steps: components along the signal and orthogonal to it
    known = ga.fix_columns(model, {0: query}, convex=True)
    return FieldModel(known, 2.0, "random", 0.2, select_softly, loss, query)


def build_single_index() -> FieldModel:
    """Return attention with one column and positions, and a teacher that is partly positional (arXiv 2506.02651)."""

    def attention(z, xp=np):
        weights = xp.exp(z * z.T - (z * z.T).max())
        return weights / weights.sum(1)[:, None]

    fixed = np.exp([[1.0, -1.0], [-1.0, 1.0]]) / (2 * np.cosh(1.0))
    model = ga.sequence_model(lambda u, noise: 0.7 * attention(u) + 0.3 * fixed, attention, n_tokens=2, rank=1, lam=0.1)
    model = replace(model, coordinates=replace(model.coordinates, tau=[[1.0, -1.0]]))
    return FieldModel(model, 2.0, "semantic", 0.3, attention)


def build_robust_regression() -> FieldModel:
    """Return linear regression with Tukey's loss and a tenth of outliers among the labels (arXiv 2502.20003)."""

    def label(u, noise):
        return np.where(noise[1] < -1.28155, noise[0], u[0, 0] + np.sqrt(0.1) * noise[0])

    def linear(z, xp=np):
        return z[0, 0]

    def tukey(y, field, xp=np, width=1.5):
        rest = 1 - ((y - field) / width) ** 2
        return width**2 / 6 * (1 - xp.where(rest > 0, rest, 0.0 * rest) ** 3)

    model = ga.sequence_model(label, linear, tukey, n_tokens=1, rank=1, n_noise=2, lam=0.08)
    return FieldModel(model, 3.0, "semantic", 0.5, linear, tukey)


MODELS = {
    "deep attention": build_deep_attention,
    "single location": build_single_location,
    "several heads": build_several_heads,
    "sparse tokens": build_sparse_tokens,
    "single index": build_single_index,
    "robust regression": build_robust_regression,
}


def count_lines(build: Callable[[], FieldModel]) -> int:
    """Return the number of lines of a model: its function without docstring and return, and functions that it uses."""
    lines = [line for line in inspect.getsource(build).splitlines() if line.strip()][2:-1]
    uses = build is not build_deep_attention and "select_softly" in inspect.getsource(build)
    return len(lines) + (3 if uses else 0)


def gradient_norm(case: FieldModel, data: Any, Q: np.ndarray) -> float:
    """Return ‖∇R‖_F/(λ√d) by torch, from tokens, positions, targets and weights only."""
    import torch

    weights, d = torch.tensor(Q, requires_grad=True), data.dim
    columns, tokens, targets = weights, torch.tensor(np.asarray(data.tokens) + data.positions), data.targets
    if case.fixed:  # known fields contain no positions, which are not zero in the coordinate of the intercept only
        query = (data.Q_star @ np.array(case.fixed))[:, None]
        query[d - 1] = 0
        columns, targets = torch.cat([torch.tensor(query), weights], dim=1), targets[..., 0]
    fields, targets = tokens @ columns / d**0.5, torch.tensor(targets)

    def loss(y, z):
        prediction = case.student(z, torch)
        return 0.5 * ((y - prediction) ** 2).sum() if case.loss is None else case.loss(y, prediction, torch)

    penalized = weights[: d - 1] if case.model.intercept else weights
    risk = torch.vmap(loss)(targets, fields).sum() + data.lam / 2 * (penalized**2).sum()
    (gradient,) = torch.autograd.grad(risk, weights)
    return float(gradient.norm()) / (data.lam * d**0.5)
