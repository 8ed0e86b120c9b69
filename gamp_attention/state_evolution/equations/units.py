"""Overlaps as vectors, in units that make them comparable."""

from dataclasses import dataclass

import numpy as np

from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.symmetry import Symmetry

NAMES = ("q", "m", "theta", "V")


def units(overlaps: Overlaps) -> dict[str, float]:
    """The size of each family: the largest entry of q and of V, and √q for m and θ."""
    q = float(np.abs(overlaps.q).max())
    return {"q": q, "m": np.sqrt(q), "theta": np.sqrt(q), "V": float(np.abs(overlaps.V).max())}


def relative_change(old: Overlaps, new: Overlaps) -> float:
    """Largest change of an overlap, in units of `new`."""
    size, a, b = units(new), old.arrays(), new.arrays()
    return max(float(np.abs(a[name] - b[name]).max(initial=0) / size[name]) for name in NAMES)


def in_units(old: Overlaps, new: Overlaps) -> np.ndarray:
    """Return the change of all overlaps as one vector, each family in units of `new`."""
    size, a, b = units(new), old.arrays(), new.arrays()
    return np.concatenate([((b[name] - a[name]) / size[name]).ravel() for name in NAMES])


def is_feasible(model: Model, overlaps: Overlaps, slack: float = 1e-4) -> bool:
    """Whether V is positive definite, and the covariances of (ω̃_l, y_l) are so but for a little slack.

    What the teacher does not explain of q may be negative by a share `slack` of q: where it is zero, steps pass it.
    """
    if not all(np.isfinite(values).all() for values in overlaps.arrays().values()):
        return False
    inverse = np.linalg.pinv(model.coordinates.rho, hermitian=True)
    rest = overlaps.q - overlaps.theta @ inverse @ np.swapaxes(overlaps.theta, 1, 2)
    least = np.linalg.eigvalsh(rest).min(axis=-1) + slack * np.linalg.eigvalsh(overlaps.q).max(axis=-1)
    return bool(np.linalg.eigvalsh(overlaps.V).min() > 0 and least.min() > 0)


@dataclass(frozen=True)
class Packing:
    """The free overlaps as one vector, in the units of `like`.

    Families that vanish by symmetry are left out, and where reversing the tokens is a symmetry one half of them.

    Attributes
    ----------
    like : overlaps that set the units and what the left-out families hold.
    names : the families that are free.
    reversal : whether only the first half of the tokens is free.
    exchange : whether only the first token is.
    isotropic : whether only the first entry of a matrix is, which stands for all of its diagonal.
    """

    like: Overlaps
    names: tuple[str, ...]
    reversal: bool = False
    exchange: bool = False
    isotropic: bool = False

    @classmethod
    def of(cls, model: Model, like: Overlaps) -> "Packing":
        """Packing of what the symmetries of a solution leave free."""
        symmetry = Symmetry.of(model, like)
        fixed = {"m": symmetry.m_zero, "theta": symmetry.theta_zero}
        names = tuple(name for name in NAMES if not fixed.get(name, False))
        return cls(like, names, symmetry.reversal, symmetry.exchange, symmetry.isotropic)

    def _free(self, name: str) -> tuple[np.ndarray, ...]:
        """Indices of the free entries of a family."""
        values = self.like.arrays()[name]
        L = values.shape[0]
        kept = np.zeros(values.shape, dtype=bool)
        kept[: 1 if self.exchange else (L + 1) // 2 if self.reversal else L] = True
        if self.reversal and L % 2 and name == "m":
            kept[L // 2] = False
        if name in ("q", "V"):
            kept &= np.tri(values.shape[1], dtype=bool)
        if self.isotropic:
            kept[:, 1:] = kept[..., 1:] = False
        return np.nonzero(kept)

    def pack(self, overlaps: Overlaps) -> np.ndarray:
        """The vector of an Overlaps, in units."""
        size = units(self.like)
        return np.concatenate([overlaps.arrays()[name][self._free(name)] / size[name] for name in self.names])

    @property
    def sizes(self) -> np.ndarray:
        """The unit of each entry of a vector."""
        size = units(self.like)
        return np.concatenate([np.full(len(self._free(name)[0]), size[name]) for name in self.names])

    def unpack(self, vector: np.ndarray) -> Overlaps:
        """The Overlaps of a vector."""
        size, found, first = units(self.like), self.like.arrays(), 0
        for name in self.names:
            free = self._free(name)
            values, count = np.zeros(found[name].shape), len(free[0])
            values[free] = vector[first : first + count] * size[name]
            if name in ("q", "V"):
                values[free[0], free[2], free[1]] = values[free]
            if self.isotropic and name != "m":
                values = values[:, :1, :1] * np.eye(len(values[0]))
            if self.exchange:
                values[1:] = values[0]
            elif self.reversal:
                half = len(values) // 2
                values[len(values) - half :] = (-1 if name == "m" else 1) * values[:half][::-1]
            found[name] = values
            first += count
        return Overlaps(**found)
