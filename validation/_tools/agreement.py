"""Comparison of runs at finite d with state evolution, for scripts about models whose losses are plain functions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gamp_attention.problem.dataset import Dataset


def gradient_norm_by_torch(data: Dataset, Q: np.ndarray, student: Callable[..., Any]) -> float:
    """Return ‖∇R‖_F/(λ√d) of the squared loss at Q (d, r); `student` maps fields (L, r) and the module torch."""
    import torch

    weights = torch.tensor(Q, requires_grad=True)
    fields = torch.tensor(np.asarray(data.tokens)) @ weights / np.sqrt(data.dim)
    predicted = torch.vmap(lambda z: student(z, torch))(fields)
    risk = 0.5 * ((torch.tensor(data.targets) - predicted) ** 2).sum() + data.lam / 2 * (weights**2).sum()
    (gradient,) = torch.autograd.grad(risk, weights)
    return float(gradient.norm()) / (data.lam * np.sqrt(data.dim))


def mean_and_spread(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over the first axis and its standard error."""
    values = np.array(values)
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def softmax(scores: Any) -> Any:
    """Return the softmax of each row of a matrix, in operations that models from plain functions accept."""
    weights = np.exp(scores - scores.max(axis=1)[:, None])
    return weights / weights.sum(axis=1)[:, None]
