"""`run_gamp`: message passing from one start to one status."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.numerics import guard_call
from gamp_attention._tools.progress import show_progress
from gamp_attention.gamp.damping import Damping, Steps
from gamp_attention.gamp.descent import has_lagrangian
from gamp_attention.gamp.loop import Loop, LoopSettings, Plan
from gamp_attention.gamp.options import IterationOptions
from gamp_attention.gamp.result import GampResult, run_and_settle
from gamp_attention.gamp.step import GampState, check_shapes, initial_state, near_fixed_point
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.problem.losses.kinks import has_kinks
from gamp_attention.problem.risk import scale_tolerance, small_unit
from gamp_attention.problem.starts import several_starts
from gamp_attention.results import finish

Start = str | ArrayLike | GampState | GampResult


@guard_call
@show_progress("message passing ")
def run_gamp(
    data: Dataset,
    init: Start | None = None,
    risk: str = "exact",
    *,
    damping: Steps = "adaptive",
    tol: float = 1e-8,
    max_iter: int = 10000,
    iteration: IterationOptions | None = None,
    seed: int | np.random.Generator = 0,
    raise_on_failure: bool = False,
    progress: bool | None = None,
) -> GampResult:
    """Run damped GAMP from one start to a critical point of the training risk of equation (3).

    Eq. :eq:`critical`. The algorithm is generalized approximate message passing of Rangan (2011), with vector-valued
    fields as in Javanmard and Montanari (2013); `gamp_attention.gamp.step` has the iteration. `train` makes runs from
    several starts and returns the lowest minimum.

    Parameters
    ----------
    data : the samples.
    init : a named start: "semantic", "positional", "random", or "spectral" (computed from the data); weights (d, r),
        a `GampState`, from which the run continues with its memory; or the
        `GampResult` of a run on nearly the same data, from whose fixed point the run continues.
        If None, "semantic" for data with a teacher, and "spectral" for other data.
    risk : "exact", equation (3), or "asymptotic", equation (41), to compare with state evolution.
    damping : step β in (0, 1], a sequence with a step for each iteration, or "adaptive": 0.3 at first; on divergence
        or a stall the run returns to the best state and continues with a smaller step.
    tol : maximum of ‖∇R‖_F/(λ√d) at convergence, which has the unit of the weights. If weights of 0.01 lead to fields
        above one, or above the labels of the squared loss, the maximum is smaller, in proportion to the weights. With
        tol=0 exactly `max_iter` iterations are run, and the last iterate is returned.
    max_iter : maximum number of iterations. If it is reached, the run stops without descent. The default is so large
        that runs rarely reach it.
    iteration : response, memory, searches, acceleration and callback, if not the defaults of `IterationOptions`.
    seed : seed of a random start.
    raise_on_failure : raise ConvergenceError if the run does not converge.
    progress : show iteration, training loss and gradient norm on standard error. If None, they are shown on a terminal
        if the run takes more than a second.

    Returns
    -------
    GampResult
        `converged` means that the gradient norm is at most `tol`, and `fixed_point` that Q was verified to be a fixed
        point of GAMP. The status is DIVERGED if the risk has no minimum, because unpenalized weights (intercepts, or
        columns with λ = 0) separate the samples.

    Raises
    ------
    TypeError : if an argument does not have the documented type.
    ValueError : if a name is unknown, a number is out of its range, an array does not fit the data or is not finite,
        or `init` or `risk` needs a teacher that the data do not have.
    ConvergenceError : if the run does not converge and `raise_on_failure` is True.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=200, alpha=1.5, seed=0)
    >>> result = ga.run_gamp(data, init="semantic", damping=0.5)
    >>> result.converged, result.gradient_norm < 1e-8
    (True, True)
    """
    check.flag("raise_on_failure", raise_on_failure)
    plan = build_plan(data, init, risk, damping, tol, max_iter, iteration)
    [(name, state)] = build_starts(plan, init, 1, seed)
    result = run_and_settle(Loop(plan, state, name=f"{name} start"))
    return finish(result, raise_on_failure, "run_gamp")


def build_plan(
    data: Dataset, init: Any, risk: str, damping: Steps, tol: float, max_iter: int, iteration: IterationOptions | None
) -> Plan:
    """Return the checked arguments of a run, with options that are resolved for the data.

    Raises
    ------
    TypeError, ValueError : as for `run_gamp`.
    """
    require_dataset(data).terms(risk)
    tol = scale_tolerance(data, check.real("tol", tol, low=0))
    max_iter = check.integer("max_iter", max_iter, low=1)
    Damping(damping)  # raises for anything but steps
    if not (iteration is None or isinstance(iteration, IterationOptions)):
        raise check.fail("iteration", iteration, "IterationOptions", TypeError)
    options = (iteration or IterationOptions()).resolve(data, damping, tol)
    check.require_memory("data.rank", data.dim, data.rank)
    check.require_memory("data.rank", data.n_samples, data.n_tokens, data.rank, data.rank)  # responses of the samples
    check.require_memory("data.rank", 5, data.n_tokens * data.rank, data.n_tokens * data.rank)  # Hessian of a sample
    direction = init.direction if isinstance(init, GampResult) else None
    settings = LoopSettings()
    if has_kinks(data.loss, data.terms(risk).params):
        patience = settings.kink_patience if has_lagrangian(data) else settings.slow_patience
        settings = replace(settings, patience=patience, bounded_patience=patience)
    return Plan(data, risk, damping, tol, max_iter, options, small_unit(data), direction, settings)


def build_starts(
    plan: Plan, init: Start | None, n_starts: int, seed: int | np.random.Generator
) -> list[tuple[str, GampState]]:
    """Return names and states of all starts; the first state has the memory of `init`, if `init` has a memory."""
    data, risk, V = plan.data, plan.risk, plan.options.V
    state: Any = init
    if isinstance(init, GampResult):
        Q = check.array("init.Q", init.Q, (data.dim, data.rank))
        V_there = check.array("init.overlaps.V", init.overlaps.V, (data.n_sources, data.rank, data.rank))
        state = near_fixed_point(data, risk, Q, V_there)
    given = isinstance(state, GampState)
    if given:
        check_shapes(data, state)
    weights = several_starts(data, state.Q if given else init, n_starts, seed, risk)
    starts = [(name, initial_state(data, Q, V)) for name, Q in weights]
    if given:
        changes = {} if V is None else {"V": np.asarray(V)}
        starts[0] = starts[0][0], GampState(**(vars(state) | changes))
    return starts
