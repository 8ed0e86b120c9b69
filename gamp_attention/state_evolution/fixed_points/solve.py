"""Fixed points of state evolution, eq. (7)-(9), to a stated accuracy."""

from dataclasses import replace
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.seeds import Stream, generator
from gamp_attention.models.model import Model, require_model
from gamp_attention.results import Overlaps, Status, finish, stacked
from gamp_attention.state_evolution.dynamics.start_law import checked_overlaps, start_law
from gamp_attention.state_evolution.dynamics.trajectory import follow
from gamp_attention.state_evolution.equations.symmetry import Symmetry, fix_gauge
from gamp_attention.state_evolution.equations.units import is_feasible, units
from gamp_attention.state_evolution.fixed_points.newton import BREAKDOWNS, Root
from gamp_attention.state_evolution.fixed_points.overlap_map import VARIANCES, OverlapMap
from gamp_attention.state_evolution.fixed_points.refinement import Solution, refine
from gamp_attention.state_evolution.fixed_points.result import StateEvolutionHistory, StateEvolutionResult
from gamp_attention.state_evolution.fixed_points.search import breakdown, fixed_point
from gamp_attention.state_evolution.fixed_points.stability import stability, validity
from gamp_attention.state_evolution.rules.choice import first_rule

WARM_UP, WARM_UP_DAMPING, WARM_UP_POINTS = 20, 0.3, 512  # damped GAMP that a named start is followed for
EASY, SLOWEST = 1.5, 8.0  # sample complexity beyond which it is followed with smaller steps, and how much smaller
RELAX_NAMED, RELAX_GIVEN = 4, 1  # damped steps before the first Newton step
FINEST = 1e-10  # relative accuracy that rounding in the proximal maps allows
FAMILY_OF = {"semantic": "theta", "positional": "m"}  # the family that a branch is named after
GONE = 1e-3  # θ or m, in their units, under which the branch named after it is gone


def solve_state_evolution(
    model: Model,
    alpha: float,
    init: Any = "semantic",
    *,
    rtol: float | None = None,
    rule: str = "auto",
    variance: str = "stein",
    max_iter: int = 300,
    max_work: float = 1e8,
    stable: bool = True,
    seed: int = 0,
    raise_on_failure: bool = False,
) -> StateEvolutionResult:
    """Solve the state evolution of equations (7) to (9) to a stated accuracy.

    Eq. :eq:`conjugates`, :eq:`weights`, :eq:`training-loss`, :eq:`test-error`.

    The averages over the channel are refined until the error they cause in every overlap is within rtol. Families
    of overlaps that vanish by symmetry (m or θ) stay exactly zero, whether the solution is stable there or not.

    Parameters
    ----------
    model : the problem.
    alpha : sample complexity, > 0.
    init : "semantic", "positional" or "random", followed for some steps of damped GAMP; or Overlaps to start from.
    rtol : relative error of the overlaps asked for, at least 1e-10; 1e-4 if not given, 2e-3 where the rule is random.
    rule : "split", a product rule cut where the proximal map jumps (L (r + t) <= 6); "lines", randomised lines cut
        there; "sobol", randomised points; "auto" for "split" up to L (r + t) = 4, then "sobol".
    variance : "stein" counts the jumps of the proximal map in V̂, "derivative" averages the a.e. derivative.
    max_iter : bound on the iterations.
    max_work : bound on the proximal problems of one average, at least 1e4.
    stable : also find the stability of the solution.
    seed : of the randomised points.
    raise_on_failure : raise ConvergenceError instead of returning a result that did not converge.

    Returns
    -------
    StateEvolutionResult
        With status INACCURATE where the budget did not allow rtol, and MAX_ITER where it allowed no solution. With LOST
        where a named branch does not exist: then with the overlaps of the solution found instead, roughly, and no
        errors or losses; where all weights go to zero, with tiny overlaps on the way there, and `validity` says so.

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.
    ConvergenceError : with `raise_on_failure`.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> se = ga.solve_state_evolution(ga.paper_model(), alpha=1.5, rtol=1e-3)
    >>> f"{se.status.value}, q = {se.overlaps.q[0, 0, 0]:.4f}"
    'converged, q = 0.0940'
    """
    require_model(model)
    alpha = check.real("alpha", alpha, low=0, strict=True)
    max_work = check.real("max_work", max_work, low=1e4)
    first = first_rule(rule, model, (check.integer("seed", seed, low=0),), max_work)
    if rtol is None:
        rtol = 1e-4 if first.deterministic else 2e-3
    rtol = check.real("rtol", rtol, low=FINEST, high=0.1)
    check.choice("variance", variance, VARIANCES)
    max_iter = check.integer("max_iter", max_iter, low=1)
    check.flag("stable", stable)
    check.flag("raise_on_failure", raise_on_failure)
    F = OverlapMap(model, alpha, first, variance)
    named = isinstance(init, str)
    start = named_start(F, init, seed) if named else given_start(model, init)
    relax, branch = (RELAX_NAMED, init) if named else (RELAX_GIVEN, None)
    result = solve_from(F, start, relax, branch, rtol, max_iter=max_iter, max_work=max_work, stable=stable)
    return finish(result, raise_on_failure, "solve_state_evolution")


def solve_from(
    F: OverlapMap,
    start: Overlaps,
    relax: int,
    branch: str | None,
    rtol: float,
    *,
    max_iter: int = 300,
    max_work: float = 1e8,
    stable: bool = False,
) -> StateEvolutionResult:
    """A fixed point from given overlaps, after so many damped steps; LOST where it is not on the branch of a name."""
    root = fixed_point(F, start, F.rule.rough, max_iter, relax)
    if not root.status.converged:
        return _failed(root)
    try:
        if not vanished(branch, root.overlaps):
            solution = refine(root, rtol, max_work)
            if not vanished(branch, solution.overlaps):
                return _result(root, solution, stable)
            root = replace(root, path=[*root.path, solution.overlaps])
        return _failed(replace(root, status=Status.LOST))
    except BREAKDOWNS as error:
        return _failed(replace(root, status=breakdown(error)))


def named_start(F: OverlapMap, name: str, seed: int) -> Overlaps:
    """Where damped GAMP goes from a named start, with what vanishes by symmetry exactly zero."""
    rng = generator(seed, Stream.STARTS)
    start = start_law(F.model, name)
    slower = min(max(1.0, F.alpha / EASY), SLOWEST)  # the mean direction overshoots in proportion to α
    n_steps = int(WARM_UP * min(slower, 2))  # its cost grows with the square
    end = follow(F.model, F.alpha, start, WARM_UP_DAMPING / slower, n_steps, WARM_UP_POINTS, rng)[0][-1]
    begun = start.overlaps(F.model)
    end = Symmetry.of(F.model, begun).impose(fix_gauge(F.model, end))
    if F.model.even:  # of two mirror images, the one that it started near
        side = {name: np.sign(np.sum(begun.arrays()[name] * end.arrays()[name])) or 1 for name in ("m", "theta")}
        end = replace(end, m=side["m"] * end.m, theta=side["theta"] * end.theta)
    return end


def given_start(model: Model, init: Any) -> Overlaps:
    """Overlaps given by the user, checked."""
    given = checked_overlaps(model, init)
    if not is_feasible(model, given, slack=0.0):
        raise check.fail("init", init, "V_l and q_l − θ_l ρ_l⁻¹ θ_lᵀ positive definite")
    return given


def vanished(name: str | None, overlaps: Overlaps) -> bool:
    """Whether the overlap that a branch is named after is gone."""
    family = FAMILY_OF.get(name or "")
    return family is not None and bool(np.abs(overlaps.arrays()[family]).max() < GONE * units(overlaps)[family])


def _result(root: Root, found: Solution, stable: bool) -> StateEvolutionResult:
    F, image = found.F, found.image
    share = float(image.hats.jump_mass.sum() / image.hats.V.sum())
    consistent, words = validity(found.replicon, share)
    return StateEvolutionResult(
        status=found.status,
        n_iter=len(root.path) - 1 + found.n_iter,
        residual=found.residual,
        history=_history([*root.path, found.overlaps]),
        overlaps=found.overlaps,
        overlaps_error=found.overlaps_error,
        error=found.error,
        train_loss=found.train_loss,
        train_loss_error=found.train_loss_error,
        test_error=found.test_error,
        test_error_error=found.test_error_error,
        jump_mass=image.hats.jump_mass,
        jump_mass_error=found.jump_mass_error,
        V_hat=image.hats.V,
        replicon=found.replicon,
        replicon_error=found.replicon_error,
        stability=stability(F.on(F.rule.for_stability()), found.overlaps) if stable else None,
        consistent=consistent,
        validity=words,
        variance=F.variance,
        rule=F.rule.name,
    )


def _failed(root: Root) -> StateEvolutionResult:
    """The result where there is no fixed point of the kind asked for: the last overlaps, without errors."""
    nothing = Overlaps(**{name: np.full_like(values, np.nan) for name, values in root.overlaps.arrays().items()})
    consistent, words = validity(np.nan, np.nan)
    if root.status is Status.LOST and np.isnan(root.residual):
        words = "none: all weights go to zero"
    return StateEvolutionResult(
        status=root.status,
        n_iter=len(root.path) - 1,
        residual=root.residual if np.isfinite(root.residual) else np.inf,
        history=_history(root.path),
        overlaps=root.overlaps if root.status in (Status.MAX_ITER, Status.LOST) else nothing,
        overlaps_error=nothing,
        error=np.nan,
        train_loss=np.nan,
        train_loss_error=np.nan,
        test_error=np.nan,
        test_error_error=np.nan,
        jump_mass=nothing.V,
        jump_mass_error=nothing.V,
        V_hat=nothing.V,
        replicon=np.nan,
        replicon_error=np.nan,
        stability=None,
        consistent=consistent,
        validity=words,
        variance=root.F.variance,
        rule=root.F.rule.name,
    )


def _history(path: list[Overlaps]) -> StateEvolutionHistory:
    return StateEvolutionHistory(**stacked(path))
