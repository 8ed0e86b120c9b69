"""Initial conditions of state evolution: joint second moments of initial weights, positions and teacher."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention.denoisers.input import initial_variances
from gamp_attention.models.model import Model
from gamp_attention.models.starts import SIZES, STARTS, fill_start
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.weights import overlaps_of_moments


@dataclass(frozen=True, eq=False)
class StartLaw:
    """Second moments of (x⁰, τ, π) in each class of coordinates, and the initial variances V."""

    moments: np.ndarray  # (K, r + S + t, r + S + t)
    V: np.ndarray  # (S, r, r)

    def overlaps(self, model: Model) -> Overlaps:
        """Return the initial overlaps."""
        r = model.rank
        return overlaps_of_moments(model, self.moments[:, :r, :r], self.moments[:, :r, r:], self.V)


def start_law(model: Model, init: Any) -> StartLaw:
    """Return the distribution of the initial weights for a named start or for given overlaps.

    Names are defined in `gamp_attention.models.starts`. Overlaps determine the distribution only if all coordinates are
    in one class; otherwise ValueError is raised.
    """
    law, r, S, t = model.coordinates, model.rank, model.n_sources, model.teacher_rank
    moments = np.zeros((len(law.weight), r + S + t, r + S + t))
    moments[:, r:, r:] = law.moments
    if not isinstance(init, str):
        return _from_overlaps(model, init, moments)
    # x⁰ = B (τ, π) + noise
    B = np.zeros((S + t, r))
    uninformed = fill_start(B, init, model.student.parts, np.eye(S + t)[:, S:], lambda: _position_coefficients(model))
    B = np.ascontiguousarray(B.T)
    moments[:, :r, r:] = B @ law.moments
    moments[:, r:, :r] = np.swapaxes(moments[:, :r, r:], 1, 2)
    moments[:, :r, :r] = B @ law.moments @ B.T + np.diag(SIZES.uninformed**2 * uninformed)
    return StartLaw(moments, initial_variances(law.trace, model.penalty.strength, r))


def checked_overlaps(model: Model, init: Any) -> Overlaps:
    """Return initial overlaps as finite arrays of the model's shapes; raise TypeError or ValueError otherwise."""
    if not isinstance(init, Overlaps):
        raise check.fail("init", init, "one of " + ", ".join(map(repr, STARTS)) + " or Overlaps", TypeError)
    S, r, t = model.n_sources, model.rank, model.teacher_rank
    shapes = {"q": (S, r, r), "m": (S, r), "theta": (S, r, t), "V": (S, r, r)}
    return Overlaps(**{name: check.array(f"init.{name}", getattr(init, name), shape) for name, shape in shapes.items()})


def _from_overlaps(model: Model, init: Any, moments: np.ndarray) -> StartLaw:
    r, S, K = model.rank, model.n_sources, len(moments)
    given = checked_overlaps(model, init)
    if K != 1:
        raise check.fail("init", "overlaps", f"a name, because the model has {K} classes of coordinates")
    gamma = model.coordinates.gamma[0]
    largest = np.argmax(gamma)  # the token whose overlaps determine the moments most accurately
    moments[0, :r, :r] = given.q[largest] / gamma[largest]
    moments[0, :r, r : r + S] = given.m.T
    moments[0, :r, r + S :] = given.theta[largest] / gamma[largest]
    moments[0, r:, :r] = moments[0, :r, r:].T
    return StartLaw(moments, given.V)


def _position_coefficients(model: Model) -> np.ndarray:
    """Return orthogonal directions of norm √d that span the positions, leading direction first, signed along p_1.

    They are columns (S + t, k) of coefficients of (τ, π).
    """
    law = model.coordinates
    gram = np.einsum("k,kl,km->lm", law.weight, law.tau, law.tau)  # P Pᵀ
    size, vectors = np.linalg.eigh(gram)
    order = np.argsort(size)[::-1]
    order = order[size[order] > 1e-12 * max(size.max(), 1e-300)]
    rows = (vectors[:, order] / np.sqrt(size[order])).T
    rows = np.where(rows @ gram[:, 0] < 0, -1.0, 1.0)[:, None] * rows
    return np.concatenate([rows, np.zeros((len(rows), model.teacher_rank))], axis=1).T
