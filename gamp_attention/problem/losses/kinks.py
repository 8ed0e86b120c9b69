"""Kinks of losses: whether a loss has kinks, and the subgradients of samples whose single field is at a kink.

At a minimum of the risk, the fields of many samples are exactly at a kink of the loss. There, the risk has no gradient,
but every slope between the slopes on both sides of the kink is a subgradient of the loss. The minimum is a point at
which the subgradient of the risk of smallest norm is zero (Rockafellar, 1970).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from gamp_attention._tools.breakpoints import REACH, find_breakpoints
from gamp_attention.problem.losses.point import for_kernels, sample_derivatives

NEAR = 1e-6  # distance of a field from a kink, relative to the size of the fields, at which it counts as there
JUMP = 1e-3  # difference of the slopes at a kink, relative to the mean absolute slope of the samples, at least
STIFF = 1e7  # curvature of the loss at a kink, in units of the penalty's: fields hardly leave the kink
EXAMINED = 50  # number of samples whose losses are examined for kinks


def has_kinks(loss: Any, params: np.ndarray) -> bool:
    """Return whether the losses of the first samples, with parameters (n, P), have kinks.

    Losses of several fields are examined once, along random lines, for the parameters of the first call.
    """
    if not hasattr(loss, "loss") or for_kernels(loss) is loss:  # kinks are found for registered losses only
        return False
    first = np.ascontiguousarray(params[:EXAMINED], dtype=float)
    kind: Any = type(loss.loss)  # tuples of different classes may be equal
    if loss.n_fields == 1:
        return _has_kinks(loss, kind, first.tobytes(), first.shape)
    known = _examined(loss, kind)
    if not known:
        known.append(_has_kinks(loss, kind, first.tobytes(), first.shape))
    return known[0]


@lru_cache(maxsize=64)
def _examined(loss: Any, kind: Any) -> list[bool]:
    """Return a list that stores whether a loss of several fields has kinks; empty before it is examined."""
    return []


def has_kinks_of_fields(loss: Any, params: np.ndarray) -> bool:
    """Return whether a loss of several fields has kinks, see `has_kinks`."""
    return bool(loss.n_tokens * loss.rank > 1 and has_kinks(loss, params))


def for_proximal_steps(loss: Any, params: np.ndarray) -> Any:
    """Return a loss as proximal steps receive it: as other kernels do, with a mark for kinks in several fields."""
    kernels = for_kernels(loss)
    return kernels._replace(kinked=True) if has_kinks_of_fields(loss, params) else kernels


@lru_cache(maxsize=64)
def _has_kinks(loss: Any, kind: Any, content: bytes, shape: tuple[int, int]) -> bool:
    params = np.frombuffer(content).reshape(shape)
    scale = 1.0 + np.abs(params).max(initial=0.0) / REACH  # the kink may be at a label

    fields, rng = (len(params), loss.n_tokens, loss.rank), np.random.default_rng(0)
    base, direction = rng.standard_normal((2, *fields)) if loss.n_fields > 1 else (np.zeros(fields), np.ones(fields))
    if 1 < loss.n_fields <= shape[1]:  # half of the lines go through labels, at which norms have a kink
        base[::2] = params[::2, : loss.n_fields].reshape(base[::2].shape) / scale

    def values(number: np.ndarray, x: np.ndarray) -> np.ndarray:
        z = base[number] + x[:, None, None] * direction[number]
        return sample_derivatives(loss, params[number], scale * z)[0][:, None]

    return any(len(points) for points in find_breakpoints(values, len(params)))


def subgradients(
    loss: Any, params: np.ndarray, z: np.ndarray, rows: Callable[[np.ndarray], np.ndarray],
    back_project: Callable[[np.ndarray], np.ndarray], ends: tuple[np.ndarray, np.ndarray], stiffness: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Return ℓ (n,), slopes (n, 1, 1) and curvatures (n, 1, 1) at fields z (n, 1, 1), with subgradients at kinks.

    The subgradients minimize the norm of the risk's subgradient. `rows` returns the scaled tokens (m, 1, d) of samples,
    `back_project` the gradient of the losses (d,) for their slopes, and `ends` are both ends of the penalty's
    subgradient, which may have kinks as well. The curvature at a kink is `stiffness`.
    """
    from scipy.optimize import lsq_linear

    value, slope, hess = sample_derivatives(loss, params, z)
    reach = NEAR * (np.abs(z) + np.sqrt(np.mean(z**2)) + 1e-300)
    low, high = (sample_derivatives(loss, params, z + side * reach)[1].ravel() for side in (-1, 1))
    at_kink = np.flatnonzero(high - low > JUMP * np.abs(slope).mean())
    if len(at_kink):
        slope[at_kink], hess[at_kink] = 0.0, stiffness
        left, right = (end.ravel() for end in ends)
        free = np.flatnonzero(right > left)
        columns = np.hstack([rows(at_kink)[:, 0].T, (np.arange(len(left))[:, None] == free).astype(float)])
        bounds = np.append(low[at_kink], 0 * free), np.append(high[at_kink], (right - left)[free])
        found = lsq_linear(columns, -(back_project(slope) + left), bounds)
        slope[at_kink] = found.x[: len(at_kink), None, None]
    return value, slope, hess
