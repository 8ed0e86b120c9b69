"""Comparison of runs at finite d with state evolution, for scripts about models whose losses are plain functions."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gamp_attention.problem.dataset import Dataset
from gamp_attention.results import Overlaps


def gradient_norm_by_torch(data: Dataset, Q: np.ndarray, student: Callable[..., Any]) -> float:
    """Return ‖∇R‖_F/(λ√d) of the squared loss at Q (d, r); `student` maps fields (L, r) and the module torch."""
    import torch

    weights = torch.tensor(Q, requires_grad=True)
    fields = torch.tensor(np.asarray(data.tokens)) @ weights / np.sqrt(data.dim)
    predicted = torch.vmap(lambda z: student(z, torch))(fields)
    risk = 0.5 * ((torch.tensor(data.targets) - predicted) ** 2).sum() + data.lam / 2 * (weights**2).sum()
    (gradient,) = torch.autograd.grad(risk, weights)
    return float(gradient.norm()) / (data.lam * np.sqrt(data.dim))


def column_overlaps(overlaps: Overlaps) -> list[float]:
    """Return the squared norms and the overlaps with the teacher of the columns, averaged over the tokens."""
    q, theta = (np.diagonal(getattr(overlaps, name).mean(axis=0)) for name in ("q", "theta"))
    return [*q.tolist(), *np.abs(theta).tolist()]


def mean_and_spread(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over the first axis and its standard error."""
    values = np.array(values)
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def compare_columns(
    rows: list[dict[str, Any]], name: str, dims: Iterable[int], theory: Any, sigmas: float, finite_size: float
) -> tuple[list[dict[str, Any]], dict[str, dict[str, str]]]:
    """Compare the means of all instances of a model with state evolution.

    Parameters
    ----------
    rows : results of instances, each with name, d and values: `column_overlaps`, then the training loss.
    name : name of the model.
    dims : dimensions.
    theory : result of `solve_state_evolution`.
    sigmas, finite_size : number of standard errors of the stated errors, and relative difference in units of 1/d.

    Returns
    -------
    For each d the means, their standard errors and the deviations in units of the errors of both, followed by the
    theory; and for each d the cells of the table.
    """
    predicted = np.array([*column_overlaps(theory.overlaps), theory.train_loss])
    stated = np.array([*column_overlaps(theory.overlaps_error), theory.train_loss_error])
    rank, numbers, shown = (len(predicted) - 1) // 2, list[dict[str, Any]](), {}
    for d in dims:
        mean, spread = mean_and_spread([row["values"] for row in rows if (row["name"], row["d"]) == (name, d)])
        ratio = np.abs(mean - predicted) / (spread + (stated + finite_size * np.abs(predicted) / d) / sigmas)
        numbers.append(
            {"name": name, "d": d, "mean": mean.tolist(), "spread": spread.tolist(), "ratio": ratio.tolist()}
        )
        shown[f"{name}, d = {d}"] = {
            "‖Q‖²/d": " ".join(f"{v:.4f}" for v in mean[:rank]),
            "overlaps": " ".join(f"{v:.4f}" for v in mean[rank:-1]),
            "theory": " ".join(f"{v:.4f}" for v in predicted[rank:-1]),
            "ε_t": f"{mean[-1]:.6f}",
            "ε_t, theory": f"{predicted[-1]:.6f}",
            "standard errors": f"{ratio.max():.1f}",
        }
    theory_row = {"theory": predicted.tolist(), "stated": stated.tolist(), "validity": theory.validity}
    return [*numbers, {"name": name} | theory_row], shown


def softmax(scores: Any) -> Any:
    """Return the softmax of each row of a matrix, in operations that models from plain functions accept."""
    weights = np.exp(scores - scores.max(axis=1)[:, None])
    return weights / weights.sum(axis=1)[:, None]
