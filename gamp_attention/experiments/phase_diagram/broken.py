"""Phase boundaries with one step of replica symmetry breaking on the positional branch.

Breaking raises the training loss of the positional branch by a small amount δ. At α_c of replica symmetry both branches
have equal training loss, so that with breaking

    α_c changes by approximately δ/(E_s' − E_p'),

where E_s' and E_p' are the slopes of the training losses of the semantic and the positional branch in α. F is
stationary in the overlaps and in the Parisi parameter, so that δ is computed at overlaps from coarse grids, with grids
that are refined until its error is small. The semantic branch, and the α at which it appears, do not
change while its replicon eigenvalue is below 1.
"""

from typing import Any

import numpy as np

from gamp_attention.experiments.phase_diagram.scan import Boundary
from gamp_attention.models.model import Model
from gamp_attention.results import ConvergenceError
from gamp_attention.state_evolution.fixed_points.broken import require_problem
from gamp_attention.state_evolution.fixed_points.refinement import StateEvolutionResult
from gamp_attention.state_evolution.fixed_points.solve import solve_state_evolution
from gamp_attention.state_evolution.rsb.weights import Levels

BROKEN_LINES = ("alpha_c_change", "semantic_from_change")
RTOL = 0.1  # relative accuracy of the overlaps with breaking
SYMMETRIC_RTOL = 1e-6  # the same of replica symmetry, because δ is a difference
SLOPE_STEP = 0.02  # relative step in α of the slopes of the training losses
NEAR = 0.01  # relative distance from the α at which the semantic branch appears, at which its replicon is computed
SHARE = 0.03  # requested error of δ in units of δ
RESOLUTIONS = (1, 2, 3)  # of the grids on which F is computed, until its error is small enough
SAFETY = 1.5  # error in units of the change by the last refinement


def find_changes(model: Model, crossing: Boundary, appearance: Boundary) -> dict[str, Boundary]:
    """Return the changes of α_c and of the α at which the semantic branch appears by one step, from both boundaries."""
    changes = _change_of_crossing(model, crossing), _change_of_end(model, appearance)
    return dict(zip(BROKEN_LINES, changes, strict=True))


def _change_of_crossing(model: Model, crossing: Boundary) -> Boundary:
    """Return the change x of α_c by one step of breaking on the positional branch.

    With the difference g of the training losses with replica symmetry, x is the root of
    g(α_c + x) − g(α_c) − δ(α_c + x), found by two chord steps with the slope of g. The second step times the ratio of
    both is an estimate of the error that remains.
    """
    alpha = crossing.value
    if not np.isfinite(alpha):
        return Boundary.none(f"none: {crossing.note.removeprefix('none: ')}")
    rise = _gap(model, alpha * (1 + SLOPE_STEP))[0] - _gap(model, alpha * (1 - SLOPE_STEP))[0]
    slope = rise / (2 * SLOPE_STEP * alpha)
    start, symmetric = _gap(model, alpha)
    try:
        gain, _ = _gain(model, alpha, symmetric)
        first = gain / slope
        there, symmetric = _gap(model, alpha + first)
        gain, error = _gain(model, alpha + first, symmetric)
    except ConvergenceError as failure:
        return Boundary.none(f"not found: one step near α_c: {failure}")
    second = (gain - (there - start)) / slope
    return Boundary(first + second, abs(error / slope) + second**2 / abs(first), "")


def _gap(model: Model, alpha: float) -> tuple[float, StateEvolutionResult]:
    """Return the loss of the semantic branch minus the loss of the positional branch, and the positional solution."""
    semantic, positional = (
        solve_state_evolution(model, alpha, branch, rtol=SYMMETRIC_RTOL, stability=False)
        for branch in ("semantic", "positional")
    )
    return semantic.train_loss - positional.train_loss, positional


def _gain(model: Model, alpha: float, symmetric: StateEvolutionResult) -> tuple[float, float]:
    """Return the difference between the training losses with one step and with replica symmetry, and its error.

    F of one step is computed at its overlaps on grids that are refined until the error is within SHARE.
    """
    step: Any = solve_state_evolution(model, alpha, symmetric.overlaps, rsb=1, rtol=RTOL)
    if not step.converged:
        raise ConvergenceError(step.message, step)
    problem, one = require_problem(model, alpha), np.ones(model.n_tokens)
    m, theta, V = step.overlaps.m[:, 0], step.overlaps.theta[:, 0, 0], step.overlaps.V[:, 0, 0]
    levels, energies = Levels(np.outer(step.levels[:, 0, 0, 0], one), m, theta, V), []
    gain = error = np.nan
    for resolution in RESOLUTIONS:
        hats = problem.hats(levels, step.parisi, resolution)
        energies.append(problem.weights.free_energy(levels, hats, step.parisi))
        if len(energies) > 1:
            gain = energies[-1] - symmetric.train_loss
            error = SAFETY * abs(energies[-1] - energies[-2]) + symmetric.train_loss_error
            if error <= SHARE * abs(gain):
                break
    return gain, error


def _change_of_end(model: Model, appearance: Boundary) -> Boundary:
    """Return zero if the semantic branch is stable against breaking where it appears; otherwise the reason why not."""
    if not np.isfinite(appearance.value):
        return Boundary.none(f"none: {appearance.note.removeprefix('none: ')}")
    near = solve_state_evolution(model, appearance.value * (1 + NEAR), "semantic", rtol=1e-4, stability=False)
    if not near.converged:
        return Boundary.none(f"not found: the semantic branch where it appears: {near.message}")
    if near.replicon >= 1:
        return Boundary.none(f"not computed: the replicon of the semantic branch is {near.replicon:.3g}")
    return Boundary(0.0, 0.0, f"replicon {near.replicon:.3g}")
