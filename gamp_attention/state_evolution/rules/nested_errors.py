"""Test errors of models with one field of the student: nested averages over the coordinates of teacher and student.

The averages are computed as in `nested`, with panels that end at jumps and kinks of the labels.
"""

from collections.abc import Callable

import numpy as np

from gamp_attention._core.quadrature import gauss_hermite, tensor_grid
from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.channel import Channel
from gamp_attention.state_evolution.rules.nested import (
    NESTED,
    Limits,
    NestedRule,
    label_cuts,
    nested_average,
    size_of_fields,
)
from gamp_attention.state_evolution.rules.rule import component_channels

MAX_FINER = 5  # maximum number of smaller tolerances
GOOD = 0.1  # error in units of the requested error, below which no smaller tolerance is tried


def average_error(model: Model, overlaps: Overlaps, rtol: float) -> tuple[float, float]:
    """Return the test error of a model with one field of the student, and its error.

    The error is the difference from the average with a ten times larger tolerance, and at least a fraction of the
    last tolerance. Tolerances decrease until it is small compared with `rtol`.
    """
    tol = min(rtol, NESTED.max_tol)
    value, error = error_within(model, overlaps, tol), np.inf
    for _ in range(MAX_FINER):
        tol = 0.1 * tol
        finer = error_within(model, overlaps, tol)
        value, error = finer, max(abs(finer - value), NESTED.unresolved * tol * abs(finer))
        if error <= GOOD * rtol * abs(value):
            break
    return value, error


def error_within(model: Model, overlaps: Overlaps, tol: float) -> float:
    """Return the test error with a tolerance of each panel, relative to the size of the errors."""
    total = 0.0
    for probability, _, channel in component_channels(NestedRule(), model, overlaps):
        total += probability * float(_average_errors(channel, tol)[0])
    return total


def expand_error(model: Model, overlaps: Overlaps, tol: float) -> Callable[[Overlaps], float] | None:
    """Return the test error to first order in the overlaps, as a function of nearby overlaps.

    Its derivatives are averages with powers of e, as in `FieldExpansion`. None if the teacher nearly determines ω.
    """
    parts = []
    for _, _, channel in component_channels(NestedRule(), model, overlaps):
        u = channel.root[0, 0, 0]
        if not u > NESTED.min_expanded * size_of_fields(channel.overlaps):
            return None
        values = _average_errors(channel, tol, expanded=True)
        parts.append((values[0], np.append(values[1:3], values[3:]) / u, channel))

    def error(there: Overlaps) -> float:
        total = 0.0
        channels = component_channels(NestedRule(), model, there)
        for (probability, _, new), (value, slopes, old) in zip(channels, parts, strict=True):
            shift = [new.overlaps.m[0, 0] - old.overlaps.m[0, 0], new.root[0, 0, 0] - old.root[0, 0, 0]]
            total += probability * (value + slopes @ np.append(shift, (new.slope - old.slope).ravel()))
        return float(total)

    return error


def _average_errors(channel: Channel, tol: float, expanded: bool = False) -> np.ndarray:
    """Return the test error of a channel; if `expanded`, also u times its derivatives in m, u and the slope, (3 + t,).

    `tol` is the tolerance of each panel, relative to the size of the errors.
    """

    def errors(points: np.ndarray, _: np.ndarray) -> np.ndarray:
        values = channel.errors(points)[:, None]
        if not expanded:
            return values
        e, y = points[:, -1:], channel.teacher(points[:, :-1])[0][:, 0]
        return np.hstack([values, values * e, values * (e**2 - 1), values * e * y])

    points = gauss_hermite(NESTED.pilot_nodes)[0]
    size = np.abs(errors(tensor_grid(points, channel.n_white), np.zeros(0))).mean(axis=0) + 1e-300
    size[1:] = np.inf
    limits = Limits(min(max(tol, 1e-13), NESTED.max_tol), channel.symmetry.m_zero, NESTED.panel_nodes[0])
    return nested_average(errors, label_cuts(channel), channel.n_white, limits, size)
