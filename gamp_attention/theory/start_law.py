"""Initial conditions of state evolution: joint second moments of initial weights, positions and teacher.

A start is a name or overlaps. Overlaps determine the second moments if all coordinates have one class, provided that
some weights have them (`_reduce_to_possible`).
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.choices import STARTS
from gamp_attention._tools.numerics import psd_root, symmetrize
from gamp_attention.problem.denoisers.input import initial_variances
from gamp_attention.problem.named_starts import UNINFORMED_SIZE, fill_start
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.weights import overlaps_of_moments
from gamp_attention.theory.models.model import Model


@dataclass(frozen=True, eq=False)
class StartLaw:
    """Second moments of (x⁰, τ, π) in each class of coordinates, and the initial variances V."""

    moments: np.ndarray  # (K, r + S + t, r + S + t)
    V: np.ndarray  # (S, r, r)
    intercept: np.ndarray | None = None  # (r,) initial intercept; 0 if not given
    V_is_given: bool = False  # True if overlaps determine V; otherwise it is the V that message passing starts from

    def overlaps(self, model: Model) -> Overlaps:
        """Return the initial overlaps."""
        r = model.rank
        sums = overlaps_of_moments(model, self.moments[:, :r, :r], self.moments[:, :r, r:], self.V)
        return sums if self.intercept is None else replace(sums, m=sums.m + self.intercept)


def start_law(model: Model, init: Any, needs_V: bool = True) -> StartLaw:
    """Return the second moments of the initial weights.

    Parameters
    ----------
    model : the model.
    init : name of a start (`STARTS`), or overlaps; the latter only if all coordinates have one class. If V is NaN, as
        in results of gradient descent, it is replaced by the V that message passing starts from.
    needs_V : False if V of the overlaps is not used.

    Raises
    ------
    TypeError : if `init` is neither a name nor Overlaps.
    ValueError : if no weights have the overlaps, or V is needed and not positive definite.
    """
    law, r, S, t = model.coordinates, model.rank, model.n_sources, model.teacher_rank
    moments = np.zeros((len(law.weight), r + S + t, r + S + t))
    moments[:, r:, r:] = law.moments
    if not isinstance(init, str):
        return _from_overlaps(model, init, moments, needs_V)
    # x⁰ = B (τ, π) + noise
    B = np.zeros((S + t, r))
    uninformed = fill_start(B, init, model.student.parts, np.eye(S + t)[:, S:], lambda: _position_coefficients(model))
    B = np.ascontiguousarray(B.T)
    moments[:, :r, r:] = B @ law.moments
    moments[:, r:, :r] = np.swapaxes(moments[:, :r, r:], 1, 2)
    moments[:, :r, :r] = B @ law.moments @ B.T + np.diag(UNINFORMED_SIZE**2 * uninformed)
    return StartLaw(moments, initial_variances(law.trace, model.penalty.strength, r))


def require_overlaps(model: Model, init: Any, V: np.ndarray | None = None) -> Overlaps:
    """Return initial overlaps as finite arrays of the model's shapes; raise TypeError or ValueError otherwise.

    If `V` is given, it replaces the V of the overlaps.
    """
    if not all(hasattr(init, name) for name in ("q", "m", "theta", "V")):
        raise check.fail("init", init, "one of " + ", ".join(map(repr, STARTS)) + " or Overlaps", TypeError)
    S, r, t = model.n_sources, model.rank, model.teacher_rank
    shapes = {"q": (S, r, r), "m": (S, r), "theta": (S, r, t), "V": (S, r, r)}
    values = {name: getattr(init, name) for name in shapes} | ({} if V is None else {"V": V})
    return Overlaps(**{name: check.array(f"init.{name}", values[name], shape) for name, shape in shapes.items()})


def _from_overlaps(model: Model, init: Any, moments: np.ndarray, needs_V: bool, excess: float = 0.2) -> StartLaw:
    """Return the second moments of weights with given overlaps; `moments` has the moments of (τ, π) and is filled.

    Overlaps may exceed their bounds for d → ∞ by a relative `excess`, as overlaps of weights at finite d do.
    """
    r, K, law = model.rank, len(moments), model.coordinates
    V = initial_variances(law.trace, model.penalty.strength, r)
    V_is_given = needs_V and not is_unknown(getattr(init, "V", V))
    given = require_overlaps(model, init, None if V_is_given else V)
    if K != 1:
        raise check.fail_words("init", "overlaps", f"a name, as the model has {K} classes of coordinates")
    if np.linalg.eigvalsh(given.V).min() <= 0:
        raise check.fail("init.V", given.V, "positive definite matrices, or NaN for V to start message passing from")
    gamma = law.gamma[0]
    used = np.argmax(gamma)
    second, first = given.q[used] / gamma[used], given.theta[used] / gamma[used]
    for name, value in (("q", second), ("theta", first)):
        actual, proportional = getattr(given, name), gamma[:, None, None] * value
        if np.abs(actual - proportional).max() > excess * np.abs(proportional).max():
            needs = "values in proportion to the eigenvalues γ_l of the tokens, as the same weights act on all tokens"
            raise check.fail(f"init.{name}", actual, needs)
    products = np.concatenate([given.m.T, first], axis=1)  # E[x (τ, π)ᵀ], plus the intercept in m
    intercept = _fit_intercept(given, products, moments[0, r:, r:]) if model.intercept else None
    if intercept is not None:
        products[:, : len(given.m)] -= intercept[:, None]
    products = _reduce_to_possible(given, second, products, moments[0, r:, r:], excess)
    moments[0, :r, :r] = second
    moments[0, :r, r:] = products
    moments[0, r:, :r] = products.T
    return StartLaw(moments, given.V, intercept, V_is_given=V_is_given)


def _fit_intercept(given: Overlaps, products: np.ndarray, law: np.ndarray, tiny: float = 1e-10) -> np.ndarray:
    """Return the intercept (r,) that leaves the smallest part of m outside the range of `law`.

    The arguments are explained in `_reduce_to_possible`; `tiny` is the relative size of rounding errors.
    """
    common = (np.arange(len(law)) < len(given.m)).astype(float)
    outside = common - law @ np.linalg.pinv(law, tiny, hermitian=True) @ common
    if outside @ outside > tiny * len(given.m):
        return np.asarray(products @ outside / (outside @ outside))
    if given.m.any():
        needs = "m = 0, or a name instead of overlaps: weights along the positions can add a common mean to all fields"
        raise check.fail("init.m", given.m, f"{needs}, so that m does not determine the intercept")
    return np.zeros(len(products))


def is_unknown(V: Any) -> bool:
    """Return whether V is NaN throughout."""
    values = np.asarray(check.detach_tensor(V))
    return values.dtype.kind == "f" and values.size > 0 and bool(np.isnan(values).all())


def _reduce_to_possible(
    given: Overlaps, second: np.ndarray, products: np.ndarray, law: np.ndarray, excess: float, chance: float = 0.03
) -> np.ndarray:
    """Return E[x (τ, π)ᵀ] that some weights have together with E[x xᵀ]; raise ValueError if there are none.

    The part of x that (τ, π) explains by linear regression cannot exceed x, and products must be in the range of `law`:
    for example m_l = m_k if the positions of both tokens are equal. Overlaps of weights at finite d may exceed this
    bound by `excess`, because the ρ of their teacher fluctuates; m and θ are then reduced to the bound.

    Parameters
    ----------
    given : overlaps of the start, for error messages.
    second : (r, r) E[x xᵀ].
    products : (r, S + t) E[x (τ, π)ᵀ] according to the overlaps.
    law : (S + t, S + t) E[(τ, π)(τ, π)ᵀ].
    excess : accepted relative excess.
    chance : overlap that weights at finite d have by chance, in units of the largest possible overlap.
    """
    spectrum, tiny = np.linalg.eigvalsh(symmetrize(second)), 1e-8 * np.abs(second).max()
    if np.abs(second - second.T).max() > tiny or spectrum.min() < -tiny:
        raise check.fail("init.q", given.q, "symmetric matrices without negative eigenvalues")
    inverse, root = np.linalg.pinv(law, hermitian=True), np.linalg.pinv(psd_root(second), rcond=1e-6, hermitian=True)
    size = np.sqrt(max(spectrum.max(), 0.0)) * np.sqrt(np.abs(np.diag(law)))
    outside = np.abs(products - products @ inverse @ law).max(axis=0)
    beyond = np.abs(products - root @ psd_root(second) @ products).max(axis=0)  # in directions without weights
    fraction = float(np.linalg.eigvalsh(root @ products @ inverse @ products.T @ root)[-1])
    for name, columns in (("m", slice(None, len(given.m))), ("theta", slice(len(given.m), None))):
        rounding = 1e-8 * np.abs(getattr(given, name)).max(initial=0.0) + 1e-300
        allowed = np.maximum(excess * np.abs(products[:, columns]).max(initial=0.0), chance * size[columns]) + rounding
        if (outside[columns] > allowed).any() or (beyond[columns] > excess * size[columns] + 1e-300).any():
            means = "the positions: m_l = E[x] τ_l, plus the intercept if the model has one"
            of = {"m": means, "theta": "the teacher"}[name]
            raise check.fail(f"init.{name}", getattr(given, name), f"overlaps that some weights have with {of}")
    if fraction > 1 + excess:
        needs = "at least the part of it that m and θ explain, γ_l E[x] E[x]ᵀ and θ_l ρ_l⁻¹ θ_lᵀ"
        raise check.fail("init.q", given.q, f"{needs}; for weights at finite d, use the model `data.instance_model()`")
    return products / np.sqrt(max(fraction, 1.0))


def _position_coefficients(model: Model) -> np.ndarray:
    """Return orthogonal directions of norm √d that span the positions, leading direction first, signed along p_1.

    They are columns (S + t, k) of coefficients of (τ, π).
    """
    law, S = model.coordinates, model.n_sources
    gram = np.einsum("k,klm->lm", law.weight, law.moments[:, :S, :S])  # P Pᵀ
    size, vectors = np.linalg.eigh(gram)
    order = np.argsort(size)[::-1]
    order = order[size[order] > 1e-12 * max(size.max(), 1e-300)]
    rows = (vectors[:, order] / np.sqrt(size[order])).T
    rows = np.where(rows @ gram[:, 0] < 0, -1.0, 1.0)[:, None] * rows
    return np.concatenate([rows, np.zeros((len(rows), model.teacher_rank))], axis=1).T
