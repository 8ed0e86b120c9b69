"""Overlaps as vectors, in units that make their entries comparable."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from gamp_attention._tools.numerics import symmetrize
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.directions import DIRECTIONS
from gamp_attention.theory.equations.symmetry import Symmetry
from gamp_attention.theory.models.model import Model

NAMES = ("q", "m", "theta", "V")
# smallest part of q that the teacher does not explain, relative to q: as a unit of steps of q, and for scores
MIN_UNEXPLAINED = 1e-4
COMMON = 1e-9  # relative difference from exactly proportional overlaps, or equal means, that rounding explains


def units(overlaps: Overlaps) -> dict[str, float]:
    """Return the unit of each family of overlaps: the largest entry of q and of V, and √q for m and θ."""
    q = float(np.abs(overlaps.q).max())
    return {"q": q, "m": np.sqrt(q), "theta": np.sqrt(q), "V": float(np.abs(overlaps.V).max())}


def relative_change(old: Overlaps, new: Overlaps) -> float:
    """Return the largest change of an overlap, in units of `new`."""
    size, a, b = units(new), old.arrays(), new.arrays()
    return max(float(np.abs(a[name] - b[name]).max(initial=0) / size[name]) for name in NAMES)


def is_feasible(model: Model, overlaps: Overlaps, slack: float = 1e-4) -> bool:
    """Return whether V is positive definite and the covariances of (ω̃_l, y_l) nearly so.

    The part of q that the teacher does not explain, q − θ ρ⁻¹ θᵀ, may have negative eigenvalues down to −slack times
    the largest eigenvalue of q, because iterations pass such overlaps if it is zero at the solution.
    """
    if not all(np.isfinite(values).all() for values in overlaps.arrays().values()):
        return False
    return bool(np.linalg.eigvalsh(overlaps.V).min() > 0 and unexplained_fraction(model, overlaps) > -slack)


def unexplained_fraction(model: Model, overlaps: Overlaps) -> float:
    """Return the smallest eigenvalue of q − θ ρ⁻¹ θᵀ, over all sources in units of the largest of q."""
    smallest = np.linalg.eigvalsh(subtract_explained(model, overlaps)).min(axis=-1)
    return float((smallest / np.linalg.eigvalsh(overlaps.q).max(axis=-1)).min())


def subtract_explained(model: Model, overlaps: Overlaps) -> np.ndarray:
    """Return the part of q that the teacher does not explain, q − θ ρ⁻¹ θᵀ (L, r, r)."""
    return overlaps.q - overlaps.theta @ model.coordinates.rho_inverse @ np.swapaxes(overlaps.theta, 1, 2)


@dataclass(frozen=True)
class Packing:
    """Conversion between overlaps and a vector of their free entries, in the units of `like`.

    An entry is free if no symmetry determines it from the others.
    """

    like: Overlaps  # overlaps that define the units and the values of the families that are not free
    names: tuple[str, ...]  # names of the free families
    symmetry: Symmetry = field(default_factory=Symmetry)  # symmetries that the overlaps have
    # for each source its variance in units of the first source's, if q, θ and V are proportional to it; otherwise empty
    variances: tuple[float, ...] = ()
    same_mean: tuple[int, ...] = ()  # for each source the first source with the same mean, if `variances` are given

    @classmethod
    def of(cls, model: Model, like: Overlaps) -> "Packing":
        """Return the packing of the entries that the symmetries of `like` leave free."""
        symmetry = Symmetry.of(model, like)
        zero = {"m": symmetry.m_zero or not (like.m.any() or model.has_means), "theta": symmetry.theta_zero}
        names = tuple(name for name in NAMES if not zero.get(name, False))
        return cls(like, names, symmetry, *_find_common_sources(model, like))

    @cached_property
    def _units(self) -> dict[str, float]:
        """Unit of each family."""
        return units(self.like)

    @cached_property
    def _free(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Free entries of each free family, see `_free_entries`."""
        arrays, common = self.like.arrays(), (self.symmetry, self.variances, self.same_mean)
        return {name: _free_entries(name, arrays[name].shape, *common) for name in self.names}

    def pack(self, overlaps: Overlaps) -> np.ndarray:
        """Return the free entries as a vector, in units."""
        arrays, size = overlaps.arrays(), self._units
        return np.concatenate([arrays[name].ravel()[self._free[name][0]] / size[name] for name in self.names])

    @property
    def sizes(self) -> np.ndarray:
        """Unit of each entry of a vector."""
        return np.concatenate([np.full(len(self._free[name][0]), self._units[name]) for name in self.names])

    def unpack(self, vector: np.ndarray) -> Overlaps:
        """Return the overlaps with given free entries; all others follow by symmetry or are taken from `like`."""
        size, arrays, first = self._units, self.like.arrays(), 0
        for name in self.names:
            columns = self._free[name][1]
            last = first + columns.shape[1]
            arrays[name] = (columns @ (vector[first:last] * size[name])).reshape(arrays[name].shape)
            first = last
        return Overlaps(**arrays)

    def basis(self, model: Model, at: Overlaps, step: Callable[[Overlaps], Overlaps]) -> np.ndarray:
        """Return unit changes of overlaps `at` as columns (k, k) of vectors; `step` returns the overlaps after a step.

        If the part of q that the teacher does not explain is small, θ changes at a constant size of it, and its unit is
        this size before or after the step: V and ε_g may be as small.
        """
        x, columns = self.pack(at), np.diag(replace(self, like=at).sizes / self.sizes)
        part = np.abs(subtract_explained(model, at)).max() / np.abs(at.q).max()
        if part > MIN_UNEXPLAINED**0.5:
            return columns
        family, after = np.repeat(self.names, [len(self._free[name][0]) for name in self.names]), step(at)
        part = max(part, np.abs(subtract_explained(model, after)).max() / np.abs(after.q).max())
        columns[family == "q"] *= max(part, DIRECTIONS.determined)
        for k in np.flatnonzero(family == "theta"):
            ahead, behind = (subtract_explained(model, self.unpack(x + s * columns[:, k])) for s in (0.5, -0.5))
            columns[:, k] += np.where(family == "q", self.pack(replace(at, q=behind - ahead)), 0.0)
        return columns

    def pairs_around(
        self, model: Model, at: Overlaps, fraction: float, smallest: float = MIN_UNEXPLAINED
    ) -> list[tuple[Overlaps, Overlaps]]:
        """Return a pair of overlaps on both sides of given overlaps for each free entry, for central differences.

        An entry of θ changes together with q, so that the part of q that the teacher does not explain stays the same.
        Then all pairs are feasible, even if the teacher explains nearly all of q, and differences are large compared
        with the noise of random rules: a `fraction` of √q for m and θ, of the unexplained part for q, and of V. The
        unexplained part counts as at least `smallest` times q.
        """
        x, size, remaining = self.pack(at), self._units, subtract_explained(model, at)
        diagonal = {name: np.diagonal(v, axis1=1, axis2=2) for name, v in (("q", at.q), ("V", at.V))}
        noise = np.maximum(np.diagonal(remaining, axis1=1, axis2=2), smallest * diagonal["q"])
        # without noise, θ changes little compared with the root of the unexplained part, which V and ε_g depend on
        most = diagonal["q"] if smallest else np.minimum(diagonal["q"], noise / fraction)
        pairs: list[tuple[Overlaps, Overlaps]] = []
        for name in self.names:
            for l, a, *b in zip(*np.unravel_index(self._free[name][0], at.arrays()[name].shape), strict=True):
                scale = {"q": noise, "V": diagonal["V"], "theta": most}.get(name, diagonal["q"])
                step = np.sqrt(scale[l, a] * (scale[l, b[0]] if name in ("q", "V") else 1.0))
                shift = np.zeros(len(x))
                shift[len(pairs)] = fraction * step / size[name]
                ahead, behind = (self.unpack(x + sign * shift) for sign in (1, -1))
                if name == "theta":
                    ahead, behind = (
                        replace(other, q=other.q + remaining - subtract_explained(model, other))
                        for other in (ahead, behind)
                    )
                pairs.append((ahead, behind))
        return pairs


@lru_cache(maxsize=128)
def _free_entries(
    name: str, shape: tuple[int, ...], symmetry: Symmetry, variances: tuple[float, ...], same_mean: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return flat indices (k,) of the free entries of a family, and all entries (n, k) for one unit of each of them.

    A unit entry, extended by all symmetries, is not zero at entries that it determines. Of these, the first is free.
    """
    images = []
    for values in np.eye(int(np.prod(shape))).reshape(-1, *shape):
        if name in ("q", "V"):
            values = symmetrize(values)
        if variances and name != "m":
            values = np.array(variances)[:, None, None] * values[:1]
        elif same_mean and name == "m":
            values = values[list(same_mean)]
        images.append(symmetry.mean(name, values).ravel())
    extended, free = np.array(images), np.zeros(len(images), dtype=bool)
    for k in range(len(extended)):
        free[k] = extended[k, k] > 0 and not extended[free, k].any()
    rows = np.flatnonzero(free)
    return rows, (extended[rows] / extended[rows, rows][:, None]).T


def _find_common_sources(model: Model, overlaps: Overlaps) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the variances and means that sources of labels have in common, see `Packing`; empty if there are none.

    The sources are tokens, or pairs of class and token. With one class of coordinates the weights have the same law for
    all sources, so that q, θ and V are multiples of their variances, and m is the same for sources of equal means.
    """
    law = model.coordinates
    if model.attention or len(law.weight) > 1 or model.n_sources == 1:
        return (), ()
    ratios = law.gamma[0] / law.gamma[0, 0]
    for values in (overlaps.q, overlaps.theta, overlaps.V):
        if not np.abs(values - ratios[:, None, None] * values[:1]).max() <= COMMON * np.abs(values).max():
            return (), ()
    second = law.moments[0][: model.n_sources, : model.n_sources]
    size = np.diagonal(second)
    distance = size[:, None] + size - 2 * second
    same = [int(np.argmax(row <= COMMON * max(size.max(), 1e-300))) for row in distance]
    equal = np.abs(overlaps.m - overlaps.m[same]).max() <= COMMON * (np.abs(overlaps.m).max() + 1e-300)
    return tuple(ratios), tuple(same) if equal and not Symmetry.of(model, overlaps).reversal else ()
