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


def fit_slope(sizes: Any, samples: Sequence[Any]) -> tuple[float, float]:
    """Return the slope of log median against log size, and its standard error by bootstrap over instances."""
    rng = np.random.default_rng(0)

    def fit(chosen: Sequence[Any]) -> float:
        return float(np.polyfit(np.log(sizes), np.log([np.median(x) for x in chosen]), 1)[0])

    again = [fit([rng.choice(x, len(x)) for x in samples]) for _ in range(1000)]
    return fit(samples), float(np.std(again))
