"""The law of one's own tokens, as `law_of` finds it, and how far the tokens are from what it assumes."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core.text import Rows, to_error
from gamp_attention.models.coordinates import CoordinateLaw
from gamp_attention.results import Result

VERDICTS = ("as assumed", "mild", "strong")


@dataclass(frozen=True)
class Departure(Result):
    """One way in which data can differ from what the theory assumes.

    Attributes
    ----------
    name : what was measured.
    value, error : its value and standard error, NaN where none is known.
    expected : what it is where the assumption holds.
    verdict : "as assumed", "mild" or "strong".
    meaning : what it does to predictions.
    """

    name: str
    value: float
    error: float
    expected: float
    verdict: str
    meaning: str


@dataclass(frozen=True, eq=False)
class DataLaw(Result, CoordinateLaw):
    """The law of one's own tokens, for `attention_model(coordinates=...)`, and, with a target, `solve_state_evolution`.

    As a `CoordinateLaw` it has a class for each of the eigenvalues γ that the covariances are resolved into, or several
    where positions differ in direction. Solvers of state evolution, `trajectory` and `sample` take it for its `model`.

    Attributes
    ----------
    model : the Model that the law belongs to, with the target, student and penalty of the data.
    departures : of the tokens from what the law assumes, see `Departure`; `str` of the law is their table.
    correlation : (L, L) of the tokens of a sample, tr Σ_ll'/√(tr Σ_ll tr Σ_l'l').
    turned : whether `model` holds this correlation, by uncorrelated tokens u of trace 1 in x = H u. Its overlaps are
        then those of u: QᵀΣ_lQ/d is tr Σ_l/d times its q.
    noise : s, the score noise of the model.
    outside : mean square of the outputs outside of the span of their tokens, which no attention can reach. It adds to
        test errors of finite data, and is not in those of state evolution.
    n_samples : samples that the law was taken from.
    replicas : models of laws without one part of the samples each, for errors of what is computed from the law.
    """

    model: Any
    departures: tuple[Departure, ...]
    correlation: np.ndarray
    turned: bool
    noise: float
    outside: float
    n_samples: int
    replicas: tuple[Any, ...]

    @property
    def strong(self) -> tuple[str, ...]:
        """Names of the departures that are strong: predictions need not hold."""
        return tuple(each.name for each in self.departures if each.verdict == "strong")

    def jackknife(self, values: Any) -> np.ndarray:
        """Standard errors of numbers computed from the law, given the same (k, …) of each of its k replicas."""
        found = np.asarray(values, dtype=float)
        k = len(found)
        return np.sqrt((k - 1) / k * ((found - found.mean(axis=0)) ** 2).sum(axis=0))

    def to_dict(self) -> dict[str, Any]:
        """Plain data of all but the models."""
        return {name: value for name, value in super().to_dict().items() if name not in ("model", "replicas")}

    def _rows(self) -> Rows:
        classes, sources = self.gamma.shape
        head = f"DataLaw: {self.n_samples} samples, {sources} sources, {classes} classes of coordinates"
        head += f", tr Σ/d {', '.join(f'{each:.3g}' for each in self.trace[:8])}{', …' if sources > 8 else ''}"
        rows: Rows = [head, ["  departure", "found", "assumed", "", ""]]
        for each in self.departures:
            assumed = f"{each.expected:.3g}" if np.isfinite(each.expected) else ""
            meaning = each.meaning if each.verdict != VERDICTS[0] else ""
            rows.append([f"  {each.name}", to_error(each.value, each.error), assumed, each.verdict, meaning])
        return rows
