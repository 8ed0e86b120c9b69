"""One boundary of one model: its place in α with an error, or in words why there is none."""

from typing import NamedTuple

import numpy as np

from gamp_attention.results import shown


@shown
class Boundary(NamedTuple):
    """A value of α with an error, or NaN and why.

    Attributes
    ----------
    value, error : α and its half-width, or NaN.
    note : empty, or why there is no value, or how the branch ends there.
    """

    value: float
    error: float
    note: str

    @classmethod
    def none(cls, note: str) -> "Boundary":
        """There is none."""
        return cls(np.nan, np.nan, note)

    @classmethod
    def found(cls, value: float, error: float, tol: float, note: str = "") -> "Boundary":
        """A root with its error, which is infinite where it was not found."""
        if not np.isfinite(value + error):
            return cls.none("not found: secants did not converge")
        return cls(float(value), float(error), note if error <= tol else "error above the tolerance")
