"""Fixed points of state evolution with k steps of replica symmetry breaking, from a replica-symmetric solution.

`require_problem` returns the output channel of the model (`one_field` or `two_fields`). `solve_ladder` solves k = 1, 2,
… in turn, each from the solution before (`solve`), and builds the results. For `steps="full"` the numbers for three
successive k are extrapolated to k → ∞ (`extrapolate_ladder`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.display import Rows, format_with_error
from gamp_attention._tools.numerics import guard_call
from gamp_attention._tools.progress import show_progress
from gamp_attention.extensions.rsb.one_field import OneField
from gamp_attention.extensions.rsb.solve import (
    BrokenProblem,
    BrokenSolution,
    LevelPacking,
    first_starts,
    follow_levels,
    solve_steps,
    split_start,
)
from gamp_attention.extensions.rsb.two_fields import TwoFields
from gamp_attention.extensions.rsb.weights import Levels
from gamp_attention.problem.penalties.standard import has_one_strength, refuse_intercept
from gamp_attention.results import Overlaps, Status, finish, stack_overlaps
from gamp_attention.theory.fixed_points.observables import deterministic_test_error
from gamp_attention.theory.fixed_points.refinement import StateEvolutionHistory, StateEvolutionResult
from gamp_attention.theory.fixed_points.solve import require_rtol
from gamp_attention.theory.models.model import Model, require_model
from gamp_attention.theory.start_law import require_overlaps, start_law

SOLVED = (Status.CONVERGED, Status.INACCURATE)  # statuses of results with numbers
MAX_STEPS = 3  # largest number k of steps
FULL = "full"  # name of the limit k → ∞
SHIFT, ENERGY_POWER, POWER = 1.1, 4.0, 2.0  # numbers approach k → ∞ as (k + SHIFT)^−power, see `extrapolate_ladder`
LIMIT_SAFETY = 2.0  # error of the limit k → ∞ in units of its change by the last step
UNSOLVED = "unknown: no solution with distinct levels was found"
NEGLIGIBLE_JUMP = 1e-3  # jump mass in units of V̂ below which jumps are negligible
MIN_ALPHA, MAX_ALPHA = 1e-4, 1e4  # sample complexities beyond which the lattice of a sample does not fit into memory


@dataclass(frozen=True, eq=False, kw_only=True)
class BrokenStateEvolutionResult(StateEvolutionResult):
    """Fixed point of state evolution with k steps of replica symmetry breaking.

    The fields of `StateEvolutionResult` describe the minima of the ground state, or of the clusters at the requested
    Parisi parameters: `overlaps.q` is q_k, `overlaps.V` is the response of a minimum, and `replicon` belongs to the
    innermost level. Errors are estimated from successive refinements of the grids, times 1.5.

    With `steps="full"` the overlaps, the losses, V̂ and the jump mass are limits k → ∞, whose errors contain the error
    of the extrapolation. The number of levels has no limit: `levels`, `parisi`, `complexity`, `replicon`, `replicons`
    and `consistent` are of the solution with three steps. For k → ∞ each level is marginal, with a replicon of 1.

    Attributes
    ----------
    levels, levels_error : (k + 1, L, r, r) overlaps q_0, …, q_k. q_0 is the overlap of minima of different outermost
        clusters, and q_k the overlap of a minimum with itself.
    parisi, parisi_error : (k,) Parisi parameters y_1 < … < y_k, inverse losses of a sample; errors are zero if they
        were given.
    complexity, complexity_error : (k,) y_j² ∂F/∂y_j. For k = 1 it is the complexity, the logarithm of the number of
        clusters of minima per coordinate. It is zero at the ground state.
    replicons, replicons_error : (k + 1,) replicon eigenvalue of each level; a level is stable against a further step
        if it is below 1. The last omits the jumps of the proximal map.
    """

    levels: np.ndarray
    levels_error: np.ndarray
    parisi: np.ndarray
    parisi_error: np.ndarray
    complexity: np.ndarray
    complexity_error: np.ndarray
    replicons: np.ndarray
    replicons_error: np.ndarray

    @property
    def n_steps(self) -> int:
        """Number of steps of replica symmetry breaking."""
        return len(self.parisi)

    def _rows(self) -> Rows:
        rows = super()._rows()
        pairs = (self.levels[:, 0, 0, 0], self.levels_error[:, 0, 0, 0]), (self.parisi, self.parisi_error)
        q, y = (
            ", ".join(format_with_error(float(v), float(e), 4) for v, e in zip(*pair, strict=True)) for pair in pairs
        )
        return [*rows[:-1], ["  q_0, …, q_k", q], ["  Parisi parameters", y], rows[-1]]


@guard_call
@show_progress("replica symmetry breaking ")
def solve_broken(
    model: Model,
    alpha: float,
    init: str | Overlaps = "semantic",
    *,
    steps: int | str = 1,
    parisi: ArrayLike | None = None,
    rtol: float | None = None,
    raise_on_failure: bool = False,
    progress: bool | None = None,
) -> BrokenStateEvolutionResult:
    """Solve state evolution with k steps of replica symmetry breaking, to a requested accuracy.

    The search begins with the flow of the replica-symmetric equations from the start. The model must have one column, a
    ridge penalty, and labels of one token or attention with two tokens of opposite positions and without score noise.

    Parameters
    ----------
    model : the problem.
    alpha : sample complexity n/d, > 0.
    init : "semantic", "positional" or "random"; or Overlaps, for example of a replica-symmetric solution.
    steps : number k of steps, 1 to 3, or "full" for the limit k → ∞, extrapolated from k = 1 to 3; its status is
        INACCURATE if an error of the limit is above `rtol`.
    parisi : (k,) fixed Parisi parameters, increasing. If not given, they are found such that the free energy is
        largest: the ground state.
    rtol : requested relative error of the overlaps (of all q in units of q_k, and m and θ in units of its root) and of
        the training loss, between 1e-10 and 0.1; by default 1e-4.
    raise_on_failure : whether to raise ConvergenceError instead of returning a result that did not converge.
    progress : whether to show the progress. If None, it is shown on a terminal, after a second.

    Returns
    -------
    BrokenStateEvolutionResult
        Overlaps of all levels and Parisi parameters. The status is LOST if no solution with distinct levels was found,
        for example because replica symmetry is not broken, as for every convex loss.

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if `alpha` is not from 1e-4 to 1e4; if `init` is an unknown name; if `steps`, `parisi` or `rtol` is out
        of range; or if replica symmetry breaking is not implemented for the model.
    ConvergenceError : if the result did not converge and `raise_on_failure` is True.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.glm_model(ga.PhaseRetrievalLoss(), lam=0.01)
    >>> se = ga.solve_broken(model, alpha=1.0, init="random", rtol=0.1)
    >>> f"{se.status.value}, {se.parisi.size} Parisi parameter"
    'converged, 1 Parisi parameter'
    """
    model = require_model(model)
    alpha = check.real("alpha", alpha, low=MIN_ALPHA, high=MAX_ALPHA)
    steps, given = require_steps(steps, parisi)
    rtol = require_rtol(1e-4 if rtol is None else rtol)
    check.flag("raise_on_failure", raise_on_failure)
    problem = require_problem(model, alpha)
    start = start_law(model, init).overlaps(model) if isinstance(init, str) else require_overlaps(model, init)
    if steps == FULL:
        result = extrapolate_ladder(solve_ladder(model, problem, start, MAX_STEPS, None, rtol, True), rtol)
    else:
        result = solve_ladder(model, problem, start, int(steps), given, rtol, False)[-1]
    return finish(result, raise_on_failure, "solve_broken")


def require_steps(steps: Any, parisi: Any) -> tuple[int | str, np.ndarray | None]:
    """Return the number of steps, or FULL, and given Parisi parameters (k,), or None if they are to be found."""
    accepted = f"an integer from 1 to {MAX_STEPS}, or {FULL!r} for the limit of infinitely many steps"
    is_number = isinstance(steps, Integral) and not isinstance(steps, bool)
    if not (is_number or isinstance(steps, str)):
        raise check.fail("steps", steps, accepted, TypeError)
    if not (1 <= steps <= MAX_STEPS if is_number else steps == FULL):
        raise check.fail("steps", steps, accepted)
    if parisi is None:
        return steps, None
    if steps == FULL:
        raise check.fail("parisi", parisi, f"None for steps = {FULL!r}, or steps from 1 to {MAX_STEPS}")
    values = np.atleast_1d(np.asarray(parisi, dtype=float))
    if values.shape != (steps,) or not (np.isfinite(values).all() and values[0] > 0 and (np.diff(values) > 0).all()):
        raise check.fail("parisi", parisi, f"{steps} positive increasing number(s)")
    return steps, values


def require_problem(model: Model, alpha: float) -> BrokenProblem:
    """Return the output channel of a model; ValueError if replica symmetry breaking is not implemented for it."""
    refuse_intercept(model.intercept, "False for replica symmetry breaking")
    one_token, two_tokens = model.n_tokens == 1 and not model.attention, model.n_tokens == 2 and model.attention
    sizes = f"r = {model.rank}, t = {model.teacher_rank}, {len(model.components)} component(s)"
    noiseless = one_token or not model.task.n_noise
    single = len(model.components) == model.rank == model.teacher_rank == 1
    for accepted, got, needs in (
        (has_one_strength(model.penalty), type(model.penalty).__name__, "a ridge penalty with one λ"),
        (single, sizes, "r = t = 1 and no mixture"),
        (one_token or two_tokens, f"L = {model.n_tokens}", "labels of one token, or attention with two tokens"),
        (one_token or (model.even and model.reversible), "another model", "opposite positions, and equal tokens"),
        (noiseless, f"score noise of {model.task.n_noise} numbers", "noiseless targets of attention"),
    ):
        if not accepted:
            raise check.fail_words("model", got, f"{needs} for replica symmetry breaking")
    return OneField(model, alpha) if one_token else TwoFields(model, alpha)


def solve_ladder(
    model: Model, problem: BrokenProblem, start: Overlaps, k: int, parisi: np.ndarray | None, rtol: float,
    refine_all: bool,
) -> list[BrokenStateEvolutionResult]:  # fmt: skip
    """Return the solutions with 1, 2, …, k steps, each the start of the next; fewer if a search fails.

    `parisi` are the Parisi parameters of the last. Unless `refine_all`, solutions with fewer steps are only starts, so
    that they are solved on the coarsest grids. Near the end of a branch they may be too inaccurate as starts; if a
    search fails, all solutions are therefore refined.
    """
    signs, one = problem.signs, np.ones(len(problem.signs))
    means = [values[:, 0, 0].mean() * one for values in (start.q, start.theta, start.V)]  # equal for all tokens
    given = Levels(means[0][None], (start.m[:, 0] @ signs) / len(signs) * signs, *means[1:])
    # given overlaps that vanish by symmetry may contain rounding errors
    smallest = problem.search.faded * np.sqrt(given.q[0, 0])
    if not model.even:
        given = _leave_zero(problem, given, smallest)
    m, theta = (bool(np.abs(values).max() > smallest) for values in (given.m, given.theta))
    symmetric = _symmetric(problem, given, LevelPacking(signs, 0, m, theta))
    starts = first_starts(symmetric, parisi if k == 1 else None, problem.search)
    results = []
    for step in range(1, k + 1):
        packing = LevelPacking(signs, step, m, theta, parisi if step == k else None)
        if packing.parisi is not None:
            starts = [(levels, packing.parisi) for levels, _ in starts]
        finest = None if step == k or refine_all else 0
        solution = solve_steps(problem, packing, starts, rtol, finest)
        if revived := _restore_faded(problem, packing, solution, given):
            solution = solve_steps(problem, packing, [revived], rtol, finest)
        for name in _faded(problem, solution, packing):
            words = f'{name} goes to zero: the branch has no fixed point with these steps; init="random" starts without'
            solution = solution._replace(status=Status.LOST, message=words)
        results.append(_result(model, solution, packing, rtol))
        if solution.status not in SOLVED:
            break
        starts = [split_start(solution.levels, solution.parisi)]
    if len(results) > 1 and not refine_all and results[-1].status not in SOLVED:
        return solve_ladder(model, problem, start, k, parisi, rtol, True)
    return results


def _leave_zero(problem: BrokenProblem, given: Levels, smallest: float) -> Levels:
    """Return replica-symmetric overlaps, in which m and θ that are at most `smallest` are replaced by those of a step.

    Zero may be no solution. The averages take it for a symmetry; therefore a step is the mean of steps from small
    values of both signs.
    """
    zero = [name for name in ("m", "theta") if np.abs(getattr(given, name)).max() <= smallest]
    small, none, after = problem.search.seed * np.sqrt(given.q[-1]), np.zeros(0), []
    with suppress(ArithmeticError, np.linalg.LinAlgError):
        for sign in (1, -1) if zero else ():
            start = given._replace(**{name: sign * small for name in zero})
            after.append(problem.weights.step(problem.hats(start, none, 0, replicons=False), none))
        return given._replace(**{name: np.mean([getattr(new, name) for new in after], axis=0) for name in zero})
    return given


def _symmetric(problem: BrokenProblem, given: Levels, packing: LevelPacking) -> Levels:
    """Return replica-symmetric overlaps near given overlaps; the given overlaps if the search fails."""
    capped = given._replace(V=np.minimum(given.V, problem.weights.law.trace))  # starts have V of the penalty alone
    for start in (given, capped):  # given overlaps may be a solution
        with suppress(ArithmeticError, np.linalg.LinAlgError):
            return packing.unpack(follow_levels(problem, packing, packing.pack(start, np.zeros(0))))[0]
    return given


def _faded(problem: BrokenProblem, solution: BrokenSolution, packing: LevelPacking) -> list[str]:
    """Return which of θ and m, free on this branch, have gone to zero in a solution."""
    levels, free = solution.levels, {"theta": packing.theta, "m": packing.m}
    small = problem.search.faded * np.sqrt(levels.q[-1, 0])
    is_solved = solution.status in SOLVED
    return [name for name in free if is_solved and free[name] and np.abs(getattr(levels, name)).max() < small]


def _restore_faded(
    problem: BrokenProblem, packing: LevelPacking, solution: BrokenSolution, given: Levels
) -> tuple[Levels, np.ndarray] | None:
    """Return a start in which θ or m of a solution, which have gone to zero, are not zero; None if they would not grow.

    The search begins with replica symmetry, where θ or m may vanish although the branch exists with breaking. Then the
    solution without θ is unstable: an evaluation of the equations multiplies a small θ by a factor above 1.
    """
    levels, parisi = solution.levels, solution.parisi
    names, unit = _faded(problem, solution, packing), np.sqrt(levels.q[-1, 0])
    if not names:
        return None
    signs = {name: np.sign(getattr(given, name)) for name in names}
    small = levels._replace(**{name: problem.search.seed * unit * sign for name, sign in signs.items()})
    new = problem.weights.step(problem.hats(small, parisi, 0, replicons=False), parisi)
    if not all(np.linalg.norm(getattr(new, name)) > np.linalg.norm(getattr(small, name)) for name in names):
        return None
    return levels._replace(**{name: problem.search.restored * unit * sign for name, sign in signs.items()}), parisi


def _result(model: Model, solution: BrokenSolution, packing: LevelPacking, rtol: float) -> BrokenStateEvolutionResult:
    """Return the public result of a solution."""
    levels, parisi, errors = solution.levels, solution.parisi, solution.indicator_errors
    indicators = solution.indicators
    overlaps, k, solved, error = _overlaps(levels), packing.k, solution.status in SOLVED, solution.error
    # errors of logarithms of q_0 and of the gaps; q_j is their sum. Without a solution all errors are NaN
    rest, unit = list(error[k + 2 :]), np.sqrt(levels.q[-1])
    q_error = np.cumsum(error[1 : k + 2, None] * np.concatenate([levels.q[:1], levels.gaps]), axis=0)
    zero = np.full(len(levels.m), 0.0 if solved else np.nan)
    m_error = rest.pop(0) * unit if packing.m else zero
    theta_error = rest.pop(0) * unit if packing.theta else zero
    overlaps_error = _overlaps(Levels(q_error, m_error, theta_error, error[0] * levels.V))
    test, test_error = np.nan, np.nan
    if np.isfinite(solution.relative_error):  # not on the coarsest grids only
        test, test_error = _test_error(model, overlaps, overlaps_error, rtol)
    block = np.ones((len(packing.signs), 1, 1))
    jump, size = indicators.V_hat - indicators.V_derivative, max(abs(indicators.V_hat), abs(indicators.V_derivative))
    return BrokenStateEvolutionResult(
        status=solution.status,
        n_iter=solution.n_iter,
        residual=solution.residual,
        history=StateEvolutionHistory(**stack_overlaps([_overlaps(step) for step in solution.path])),
        overlaps=overlaps,
        overlaps_error=overlaps_error,
        relative_error=solution.relative_error,
        train_loss=solution.energy if solved else np.nan,
        train_loss_error=solution.energy_error if solved else np.nan,
        test_error=test,
        test_error_error=test_error,
        jump_mass=jump * block,
        jump_mass_error=(errors.V_hat + errors.V_derivative) * block,
        V_hat=indicators.V_hat * block,
        V_hat_error=errors.V_hat * block,
        replicon=float(indicators.replicons[-1]),
        replicon_error=float(errors.replicons[-1]),
        stability=None,
        consistent=bool(solved and indicators.replicons.max() < 1 and abs(jump) <= NEGLIGIBLE_JUMP * size),
        validity=_validity(solution, jump / size) if solved else UNSOLVED,
        response="stein",
        rule="grid",
        message=solution.message,
        levels=levels.q[:, :, None, None],
        levels_error=q_error[:, :, None, None],
        parisi=parisi,
        parisi_error=np.array(rest) * parisi if packing.parisi is None else np.full(k, zero[0]),
        complexity=indicators.complexity,
        complexity_error=errors.complexity,
        replicons=indicators.replicons,
        replicons_error=errors.replicons,
    )


def _overlaps(levels: Levels) -> Overlaps:
    """Return the overlaps of a minimum."""
    q, theta, V = (values[:, None, None] for values in (levels.q[-1], levels.theta, levels.V))
    return Overlaps(q=q, m=levels.m[:, None], theta=theta, V=V)


def _validity(solution: BrokenSolution, jumps: float) -> str:
    """Return in words whether further steps would change the solution."""
    k, replicons = len(solution.parisi), solution.indicators.replicons
    steps = "one step" if k == 1 else f"{k} steps"
    unstable = [f"{value:.3g} at level {level}" for level, value in enumerate(replicons) if not value < 1]
    reasons = [f"replicon eigenvalues are not below 1 ({', '.join(unstable)})"] if unstable else []
    if abs(jumps) > NEGLIGIBLE_JUMP:
        reasons.append(f"the proximal map jumps within clusters (jump mass {100 * jumps:.2g} % of V̂)")
    words = f"the solution with {steps} is consistent"
    if reasons:
        words = f"after {steps}, a further step changes the solution and raises the training loss, because "
    return f"broken: minima form clusters; {words}{' and '.join(reasons)}"


def _test_error(model: Model, overlaps: Overlaps, error: Overlaps, rtol: float) -> tuple[float, float]:
    """Return the test error of a minimum and its error, from its average and from the errors of the overlaps."""
    value, own_error = deterministic_test_error(model, overlaps, rtol)
    shifts = []
    for name in ("q", "m", "theta"):
        if np.any(getattr(overlaps, name)):
            moved = replace(overlaps, **{name: getattr(overlaps, name) + getattr(error, name)})
            shifts.append(deterministic_test_error(model, moved, rtol)[0] - value)
    return value, own_error + float(np.linalg.norm(shifts))


def extrapolate_steps(values: list[Any], power: float = ENERGY_POWER) -> tuple[Any, Any]:
    """Return the limit k → ∞ of numbers for k = 1, 2, 3, … (three or more), and its error.

    A number that approaches its limit as (k + SHIFT)^−p has the limit x_k + (x_k − x_{k−1})/(ratio − 1), ratio = ((k +
    SHIFT)/(k − 1 + SHIFT))^p. The error is twice the difference between the limits from the last two values and from
    the two values before. For the Sherrington-Kirkpatrick model, whose energy is known to many digits, the true error
    is 1.4 times this difference.
    """
    ratios = [((k + SHIFT) / (k - 1 + SHIFT)) ** power for k in range(2, len(values) + 1)]
    limits = [b + (b - a) / (ratio - 1) for (a, b), ratio in zip(pairwise(values), ratios, strict=True)]
    return limits[-1], LIMIT_SAFETY * np.abs(limits[-1] - limits[-2])


def extrapolate_ladder(results: list[BrokenStateEvolutionResult], rtol: float) -> BrokenStateEvolutionResult:
    """Return numbers for k → ∞ from the solutions with k = 1, 2, 3.

    For the energy p = 4, the exponent of the Sherrington-Kirkpatrick model, and SHIFT is fitted to its energies for k =
    1, 2, 3; for overlaps and for the jump mass p = 2, and the error is at least the change from the last solution.
    Levels, Parisi parameters and replicons are of the last solution. The status is INACCURATE if an error of the limit
    is larger than `rtol`.
    """
    last = results[-1]
    if len(results) < MAX_STEPS or not all(r.status in SOLVED for r in results):
        words = f"the limit needs the solutions with 1 to {MAX_STEPS} steps, but with {len(results)}: {last.message}"
        return replace(last, message=words)

    def limit(values: list[Any], errors: Any) -> tuple[Any, Any]:
        value, change = extrapolate_steps(values, POWER)
        return value, errors + np.maximum(change, np.abs(value - values[-1]))

    energy, change = extrapolate_steps([r.train_loss for r in results])
    changed: dict[str, Any] = {"train_loss": energy, "train_loss_error": last.train_loss_error + change}
    for name in ("test_error", "V_hat", "jump_mass"):
        values, errors = [getattr(r, name) for r in results], getattr(last, f"{name}_error")
        changed[name], changed[f"{name}_error"] = limit(values, errors)
    overlaps = [r.overlaps.arrays() for r in results]
    own_errors = last.overlaps_error.arrays()
    limits = {name: limit([o[name] for o in overlaps], own_errors[name]) for name in own_errors}
    changed["overlaps"] = Overlaps(**{name: value for name, (value, _) in limits.items()})
    changed["overlaps_error"] = Overlaps(**{name: error for name, (_, error) in limits.items()})
    words = f"extrapolated from {MAX_STEPS - 2} to {MAX_STEPS} steps of replica symmetry breaking"
    words = f"broken: minima form clusters; {words}; levels, Parisi parameters and replicons are of {MAX_STEPS} steps"
    relative = {name: float(np.max(error / np.abs(value))) for name, (value, error) in limits.items() if value.any()}
    relative["training loss"] = float(changed["train_loss_error"] / abs(changed["train_loss"]))
    worst = max(relative, key=relative.__getitem__)
    changed["relative_error"] = max(relative[worst], last.relative_error)
    if last.status is Status.CONVERGED and changed["relative_error"] > rtol:
        changed["status"] = Status.INACCURATE
        changed["message"] = f"{worst} of the limit of many steps has an error of {100 * relative[worst]:.2g} %"
    return replace(last, **changed, validity=words)
