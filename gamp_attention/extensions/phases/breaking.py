"""Changes of phase boundaries by one step of replica symmetry breaking.

Breaking raises the training losses of both branches by small amounts δ_s and δ_p. At α_c of replica symmetry both
branches have equal training loss, so that with breaking

    α_c changes by approximately (δ_p − δ_s)/(E_s' − E_p'),

where E_s' and E_p' are the slopes of the training losses of the semantic and the positional branch in α. F is
stationary in the overlaps and in the Parisi parameter, so that δ is computed at overlaps from coarse grids, with grids
that are refined until its error is small.

The semantic branch appears at the α from which the state without overlaps, θ = m = 0, is unstable: a small θ becomes
larger by one evaluation of the equations. A branch that is stable against breaking (replicon eigenvalue below 1, and no
jumps of the proximal map) does not change.
"""

import numpy as np

from gamp_attention.extensions.phases.scan import Boundary
from gamp_attention.extensions.rsb.broken import NEGLIGIBLE_JUMP, require_problem, solve_broken
from gamp_attention.extensions.rsb.weights import Levels
from gamp_attention.results import ConvergenceError, Status
from gamp_attention.theory.fixed_points.refinement import StateEvolutionResult
from gamp_attention.theory.fixed_points.solve import solve_state_evolution
from gamp_attention.theory.models.model import Model

BROKEN_LINES = ("alpha_c_change", "semantic_from_change")
RTOL = 0.1  # relative accuracy of the overlaps with breaking
SAFETY = 1.5  # error in units of the change by the last refinement


def find_changes(model: Model, crossing: Boundary, appearance: Boundary) -> dict[str, Boundary]:
    """Return the changes of α_c and of the α at which the semantic branch appears by one step, from both boundaries."""
    changes = _change_of_crossing(model, crossing), _change_of_end(model, appearance)
    return dict(zip(BROKEN_LINES, changes, strict=True))


def _change_of_crossing(model: Model, crossing: Boundary, slope_step: float = 0.02) -> Boundary:
    """Return the change x of α_c by one step of breaking on the positional branch.

    With the difference g of the training losses with replica symmetry, x is the root of
    g(α_c + x) − g(α_c) − δ(α_c + x), found by two chord steps with the slope of g over relative steps `slope_step` in
    α. The second step times the ratio of both is an estimate of the error that remains.
    """
    alpha = crossing.value
    if not np.isfinite(alpha):
        return Boundary.none(f"none: {crossing.note.removeprefix('none: ')}")
    rise = _gap(model, alpha * (1 + slope_step))[0] - _gap(model, alpha * (1 - slope_step))[0]
    slope = rise / (2 * slope_step * alpha)
    start, *symmetric = _gap(model, alpha)
    try:
        first = _difference_of_gains(model, alpha, *symmetric)[0] / slope
        there, *symmetric = _gap(model, alpha + first)
        gain, error = _difference_of_gains(model, alpha + first, *symmetric)
    except ConvergenceError as failure:
        return Boundary.none(f"not found: one step near α_c: {failure}")
    second = (gain - (there - start)) / slope
    return Boundary(first + second, abs(error / slope) + second**2 / abs(first), "")


def _gap(model: Model, alpha: float) -> tuple[float, StateEvolutionResult, StateEvolutionResult]:
    """Return the loss of the semantic branch minus the loss of the positional branch, and both solutions."""
    semantic, positional = (
        solve_state_evolution(model, alpha, branch, rtol=1e-6, stability=False)  # accurate, because δ is a difference
        for branch in ("semantic", "positional")
    )
    return semantic.train_loss - positional.train_loss, semantic, positional


def _difference_of_gains(
    model: Model, alpha: float, semantic: StateEvolutionResult, positional: StateEvolutionResult
) -> tuple[float, float]:
    """Return δ_p − δ_s and its error."""
    (below, error), (above, other) = (_gain(model, alpha, branch) for branch in (semantic, positional))
    return above - below, error + other


def _is_stable(symmetric: StateEvolutionResult) -> bool:
    """Return whether replica symmetry is stable: the replicon is below 1, and jumps are negligible."""
    jump, size = float(np.abs(symmetric.jump_mass).max()), float(np.abs(symmetric.V_hat).max())
    return symmetric.replicon < 1 and jump <= NEGLIGIBLE_JUMP * size


def _gain(
    model: Model, alpha: float, symmetric: StateEvolutionResult, rtol: float = 0.03, finest: int = 3
) -> tuple[float, float]:
    """Return the difference between the training losses with one step and with replica symmetry, and its error.

    F of one step is computed at its overlaps on grids that are refined until the relative error is within `rtol`, at
    most to the resolution `finest`.
    The difference counts as zero if the clusters collapse: it decreases as the third power of the gap between both
    overlaps.
    """
    if _is_stable(symmetric):
        return 0.0, 0.0
    step = solve_broken(model, alpha, symmetric.overlaps, rtol=RTOL)
    if step.status is Status.LOST:
        return 0.0, 0.0
    if not step.converged:
        raise ConvergenceError(step.message, step)
    problem, one = require_problem(model, alpha), np.ones(model.n_tokens)
    m, theta, V = step.overlaps.m[:, 0], step.overlaps.theta[:, 0, 0], step.overlaps.V[:, 0, 0]
    levels, energies = Levels(np.outer(step.levels[:, 0, 0, 0], one), m, theta, V), []
    gain = error = np.nan
    for resolution in range(1, finest + 1):
        hats = problem.hats(levels, step.parisi, resolution)
        energies.append(problem.weights.free_energy(levels, hats, step.parisi))
        if len(energies) > 1:
            gain = energies[-1] - symmetric.train_loss
            error = SAFETY * abs(energies[-1] - energies[-2]) + symmetric.train_loss_error
            if error <= rtol * abs(gain):
                break
    return gain, error


def _change_of_end(
    model: Model,
    appearance: Boundary,
    near: float = 0.01,
    first_step: float = 0.8,
    max_steps: int = 10,
    tol: float = 1e-3,
) -> Boundary:
    """Return the change of the α at which the semantic branch appears; zero if it is stable against breaking there.

    The stability is computed at the relative distance `near`. The end with one step is the root of log(growth of θ) in
    log α, found by at most `max_steps` secants, the first with the factor `first_step` of α, to the accuracy `tol`.
    """
    if not np.isfinite(appearance.value):
        return Boundary.none(f"none: {appearance.note.removeprefix('none: ')}")
    there = solve_state_evolution(model, appearance.value * (1 + near), "semantic", rtol=1e-4, stability=False)
    if not there.converged:
        return Boundary.none(f"not found: the semantic branch where it appears: {there.message}")
    if _is_stable(there):
        return Boundary(0.0, 0.0, f"replicon {there.replicon:.3g}")
    a, b = np.log(appearance.value), np.log(first_step * appearance.value)
    try:
        here, other = (_log_growth(model, np.exp(x), RTOL, 0) for x in (a, b))
        for _ in range(max_steps):
            slope = (other - here) / (b - a)
            a, b, here = b, b - other / slope, other
            if abs(b - a) < tol:
                break
            other = _log_growth(model, np.exp(b), RTOL, 0)
        else:
            return Boundary.none(f"not found: the search ended at α = {np.exp(b):.3g}")
        fine = _log_growth(model, np.exp(a), 0.03, 1)
    except ConvergenceError as failure:
        return Boundary.none(f"not found: one step without overlaps: {failure}")
    value = np.exp(a - fine / slope)
    error = SAFETY * abs((fine - here) / slope) * value + tol * value + appearance.error
    return Boundary(float(value - appearance.value), float(error), "")


def _log_growth(model: Model, alpha: float, rtol: float, resolution: int, size: float = 1e-3) -> float:
    """Return the logarithm of the growth of θ = `size` √q by one evaluation of the equations with one step."""
    step = solve_broken(model, alpha, "random", rtol=rtol)
    if not step.converged:
        raise ConvergenceError(step.message, step)
    problem, one = require_problem(model, alpha), np.ones(model.n_tokens)
    theta = size * np.sqrt(step.overlaps.q[:, 0, 0])
    levels = Levels(np.outer(step.levels[:, 0, 0, 0], one), 0 * one, theta, step.overlaps.V[:, 0, 0])
    hats = problem.hats(levels, step.parisi, resolution, replicons=False)
    return float(np.log(problem.weights.step(hats, step.parisi).theta[0] / theta[0]))
