"""Boundary of one model: its value of α with an error, or the reason why there is none."""

from typing import NamedTuple

import numpy as np

from gamp_attention.results import shown


@shown
class Boundary(NamedTuple):
    """Value of α with an error, or NaN and the reason.

    Attributes
    ----------
    value, error : α and its half-width, or NaN.
    note : the reason if there is no value, otherwise how the branch ends there; may be empty.
    """

    value: float
    error: float
    note: str

    @classmethod
    def none(cls, note: str) -> "Boundary":
        """Return a boundary without a value, with the reason."""
        return cls(np.nan, np.nan, note)

    @classmethod
    def found(cls, value: float, error: float, tol: float, note: str = "") -> "Boundary":
        """Return a root with its error; a boundary without a value if either is not finite."""
        if not np.isfinite(value + error):
            return cls.none("not found: secants did not converge")
        return cls(float(value), float(error), note if error <= tol else "error above the tolerance")
