"""Tables in Markdown, rounded numbers, means with standard errors, and extrapolation to infinite d."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def markdown_table(heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a table in Markdown with a line for each row; cells are converted to text."""
    heads = list(heads)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def round_number(value: float | None, digits: int = 5) -> float | None:
    """Return a number with few digits; None if it is not finite."""
    return float(f"{value:.{digits}g}") if value is not None and np.isfinite(value) else None


def round_curve(values: Any, digits: int = 5) -> list[float | None]:
    """Return a curve as a list of numbers with few digits, which suffice to draw it."""
    return [round_number(value, digits) for value in np.asarray(values).tolist()]


def mean_and_error(values: Any) -> tuple[float, float]:
    """Return the mean of numbers and its standard error; NaN for the error of a single number."""
    values = np.asarray(values, dtype=float)
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan


def extrapolate(sizes: Sequence[float], means: Any, errors: Any, power: float = 1.0) -> tuple[float, float]:
    """Return the intercept at d = ∞ of a weighted fit linear in d^−power, and its standard error."""
    errors = np.asarray(errors, dtype=float)
    design = np.array([[1.0, d**-power] for d in sizes]) / errors[:, None]
    covariance = np.linalg.inv(design.T @ design)
    target = np.asarray(means, dtype=float) / errors
    return float((covariance @ design.T @ target)[0]), float(np.sqrt(covariance[0, 0]))


def fit_sizes(
    sizes: Any, values: Any, columns: Sequence[Any] = (), power: float = 1.0, scatter: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients of values = x + a d^−power + Σ b · column, and their errors, by weighted least squares.

    The standard deviation of single values decreases as d^−scatter; its size follows from the residuals.
    """
    d, y = (np.asarray(v, dtype=float) for v in (sizes, values))
    scale = d**scatter
    design = np.stack([np.ones(len(d)), d**-power, *columns], axis=1) * scale[:, None]
    inverse = np.linalg.inv(design.T @ design)
    found = inverse @ design.T @ (y * scale)
    noise = np.sum((y * scale - design @ found) ** 2) / (len(d) - len(found))
    return found, np.sqrt(noise * np.diag(inverse))
