"""The distribution of tokens that `law_of` estimates from data, with its departures from the assumptions of the theory.

The class belongs to the models, because the solvers of state evolution accept it in place of its model.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._tools.display import Rows, count_noun, format_to_error
from gamp_attention.results import Result
from gamp_attention.theory.models.coordinates import CoordinateLaw

VERDICTS = ("as assumed", "mild", "strong")


@dataclass(frozen=True)
class Departure(Result):
    """Departure of data from one assumption of the theory.

    Attributes
    ----------
    name : measured quantity.
    value, error : its value and standard error; the error is NaN if unknown.
    expected : value if the assumption holds; NaN if there is no such value.
    verdict : "as assumed", "mild" or "strong".
    meaning : effect on predictions.
    """

    name: str
    value: float
    error: float
    expected: float
    verdict: str
    meaning: str


@dataclass(frozen=True, eq=False)
class DataLaw(Result, CoordinateLaw):
    """Token distribution estimated from data, with its departures from the assumptions of the theory.

    Pass it to `attention_model(coordinates=...)`, or directly as the model to `solve_state_evolution`, `trajectory` and
    `sample`, which then use `model`. As a `CoordinateLaw` it has one class for each of the eigenvalues γ that represent
    the covariances, or several classes per eigenvalue if positions differ in direction.

    Attributes
    ----------
    model : Model with this distribution and the target, student and penalty of the data.
    departures : departures of the tokens from the assumptions, see `Departure`; `str(law)` prints them as a table.
    correlation : (L, L) correlation between the tokens of a sample, tr Σ_ll'/√(tr Σ_ll tr Σ_l'l').
    noise : score noise s of the model.
    outside : mean square of the part of the outputs outside the span of their tokens, which no attention layer can
        produce. It adds to test errors of finite data and is not included in the errors of state evolution.
    n_samples : number of samples from which the distribution was estimated.
    """

    model: Any
    departures: tuple[Departure, ...]
    correlation: np.ndarray
    noise: float
    outside: float
    n_samples: int

    def as_model(self) -> Any:
        """Return `model`, which solvers of state evolution use."""
        return self.model

    @property
    def strong(self) -> tuple[str, ...]:
        """Names of the strong departures, for which predictions may fail."""
        return tuple(departure.name for departure in self.departures if departure.verdict == "strong")

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except the model as numbers, strings, lists and dictionaries."""
        return {name: value for name, value in super().to_dict().items() if name != "model"}

    def _rows(self) -> Rows:
        traces = ", ".join(f"{trace:.3g}" for trace in self.trace)
        head = f"DataLaw: {count_noun(self.n_samples, 'sample')}, coordinates γ {self.gamma.shape}, tr Σ/d {traces}"
        rows: Rows = [head, ["  departure", "measured", "assumed", "", ""]]
        for departure in self.departures:
            assumed = f"{departure.expected:.3g}" if np.isfinite(departure.expected) else ""
            meaning = departure.meaning if departure.verdict != VERDICTS[0] else ""
            measured = format_to_error(departure.value, departure.error)
            rows.append([f"  {departure.name}", measured, assumed, departure.verdict, meaning])
        return rows
