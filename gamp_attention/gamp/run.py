"""`run_gamp`: its arguments, and message passing from one or several starts, surveys and flips of single samples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._core import check
from gamp_attention._core.display import DisplayMixin
from gamp_attention._core.numerics import guard_call, hash_bytes
from gamp_attention._core.progress import show_progress
from gamp_attention._core.runs import Checkpoint, CheckpointFile
from gamp_attention.damping import Damping, Steps
from gamp_attention.data.dataset import Dataset, require_dataset
from gamp_attention.data.passes import Memory
from gamp_attention.data.risk import is_convex, risk_at
from gamp_attention.data.starts import default_start, several_starts
from gamp_attention.data.stores import hash_tokens
from gamp_attention.data.tolerances import scale_tolerance, small_unit
from gamp_attention.gamp.loop import FULL_SEARCH_FIELDS, LATE, Callback, Loop, Plan
from gamp_attention.gamp.result import GampResult, StartRecord
from gamp_attention.gamp.step import GampState, averaged_memory, check_shapes, initial_state, near_fixed_point
from gamp_attention.gamp.successive_halving import AGREEMENT, ROUNDS, SAME_LOSS, SuccessiveHalving, summarize_starts
from gamp_attention.gamp.survey import (
    LADDER,
    PlannedSurvey,
    SurveyPhase,
    SurveyRecord,
    distinct_surveys,
    flipped_starts,
)
from gamp_attention.penalties.columns import has_spheres
from gamp_attention.results import finish

Start = str | ArrayLike | GampState | GampResult
HOLD_AFTER = 20  # number of iterations with global proximal minima, in runs to a tolerance; later, minima are local
# iterations after which runs from surveys are compared, and number of runs that then continue
SURVEY_ROUNDS, FINISHED_SURVEYS = (30,), 2
MAX_ROUNDS = 20  # maximum number of minima at which samples are flipped
# survey="auto" continues from the lowest minimum only if
FEW_AGREE = 0.25  # at most this fraction of the starts agree with the lowest minimum, and
LOW_LOSS = 0.25  # its training loss is at most this fraction of the loss at zero weights
MIN_STARTS, MAX_FIELDS = 4, 3  # minimum number of starts, and maximum number of fields of a sample, of survey="auto"
SURVEY_VALUES = "True, False, 'auto', or positive numbers"


@dataclass(frozen=True, eq=False)
class IterationOptions(DisplayMixin):
    """Options of the iteration of `run_gamp` that few runs change; pass them as `run_gamp(iteration=...)`.

    Parameters
    ----------
    V_hat : (T, S, r, r) responses V̂_t, the last of which is repeated; for example `trajectory(...).V_hat` for the same
        start and damping. S = L, or the number of sources of a mixture. If None, the response is computed from the
        samples.
    empirical_after : iteration from which the empirical response is used, whatever `V_hat` is; None for never. If
        proximal maps jump, state evolution describes only runs with the predicted response, whereas the gradient
        goes to zero only with the empirical response.
    memory : rule for the Onsager memory D, called with D, V g, W g and the step β; see `gamp_attention.gamp.step`.
    V : (S, r, r) variances of the fields at the start; tr Σ_l/(2dλ) if None.
    hold_after : iteration from which each sample keeps its local proximal minimum; before, the global minimum is
        searched for. If None, 20, or never if tol = 0, because state evolution describes global minima.
    search : "full": until iteration `hold_after`, the global minimum of each sample's proximal objective is searched
        for, as state evolution assumes. "bounded": samples are searched at every second iteration only, from two
        further starts, and minima are computed roughly. Descent begins below a gradient norm of 0.3, or when the work
        of message passing equals the work of 250 gradients, or ten times the number of gradients of a first descent
        (see `gamp_attention.gamp.loop`). "auto": for runs to a tolerance, "bounded" if L r > 2; if L r <= 2, searches
        become bounded after an iteration in which a search takes more than 100 minimizations per sample. "full" if
        `tol` is 0 or if `hold_after`, `V_hat` or `memory` is given.

    Examples
    --------
    Use the response that state evolution predicts, so that a run follows the prediction even if proximal maps jump:

    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    >>> path = ga.trajectory(data.instance_model(), data.alpha, "positional", damping=0.3, n_iter=5, n_paths=256)
    >>> options = ga.IterationOptions(path.V_hat)
    >>> ga.run_gamp(data, "positional", damping=0.3, tol=0, max_iter=5, iteration=options).n_iter
    5
    """

    V_hat: ArrayLike | None = None
    empirical_after: int | None = None
    memory: Memory = averaged_memory
    V: ArrayLike | None = None
    hold_after: int | None = None
    search: str = "auto"

    @property
    def predictable(self) -> bool:
        """True if response and memory are the defaults, so that acceleration and bounded searches may be used."""
        return self.V_hat is None and self.memory is averaged_memory

    def validate(self, data: Dataset) -> IterationOptions:
        """Return a copy with checked numbers and arrays; `V_hat` is checked by `response_rule`.

        Raises
        ------
        TypeError, ValueError : if a field does not have the type, shape or range that the class documents.
        """
        check.choice("search", self.search, ("auto", "full", "bounded"))
        check.function("memory", self.memory)
        given = {name: getattr(self, name) for name in ("hold_after", "empirical_after")}
        numbers: dict[str, Any] = {name: check.integer(name, t, low=0) for name, t in given.items() if t is not None}
        if self.V is None:
            return replace(self, **numbers)
        V = check.array("V", self.V, (data.n_sources, data.rank, data.rank))
        symmetric = np.allclose(V, V.transpose(0, 2, 1), rtol=1e-12, atol=0)
        if not (symmetric and np.linalg.eigvalsh(V).min() > 0):
            raise check.fail("V", V, "symmetric positive definite matrices")
        return replace(self, **numbers, V=V)


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
    accelerate: bool | None = None,
    settling: bool = True,
    escape: bool = False,
    survey: bool | str | float | Sequence[float] = False,
    iteration: IterationOptions | None = None,
    n_starts: int = 1,
    n_finish: int = 1,
    seed: int | np.random.Generator = 0,
    callback: Callback | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    raise_on_failure: bool = False,
    progress: bool | None = None,
) -> GampResult:
    """Run damped GAMP to a critical point of the training risk of equation (3).

    Eq. :eq:`critical`. The algorithm is generalized approximate message passing of Rangan (2011), with vector-valued
    fields as in Javanmard and Montanari (2013); `gamp_attention.gamp.step` has the iteration.

    Parameters
    ----------
    data : the samples.
    init : "semantic", "positional", "random", "spectral" (computed from the data), weights (d, r), for example from
        `posterior_start`, a `GampState`, from which the run continues with its
        memory, or the `GampResult` of a run on nearly the same data, from whose fixed point the run continues. If None,
        "semantic" for data with a teacher and "spectral" for other data.
    risk : "exact", equation (3), or "asymptotic", equation (41), to compare with state evolution.
    damping : step β in (0, 1], a sequence with a step for each iteration, or "adaptive": 0.3 at first; on divergence
        or a stall the run returns to the best state and continues with a smaller step. See also `accelerate`.
    tol : maximum of ‖∇R‖_F/(λ√d) at convergence, which has the unit of the weights. If weights of 0.01 lead to fields
        above one, or above the labels of the squared loss, the maximum is smaller, in proportion to the weights. With
        tol=0 exactly `max_iter` iterations are run, and the last iterate is returned.
    max_iter : maximum number of iterations. If it is reached, the run stops without descent. The default is so large
        that runs rarely reach it.
    accelerate : extrapolate by Anderson acceleration, with damped iterations whenever that raises the gradient norm.
        The fixed points stay the same and take fewer iterations, but state evolution no longer describes the iterates.
        If None, runs to a tolerance with adaptive damping take a longer step once the gradient norm is below 0.1, and
        extrapolate below 0.03 once local minima are kept, or below 1 if the loss is convex. They mostly reach the same
        fixed points as other runs. Runs with `V_hat` or `memory` in `iteration`, or with samples on other workers,
        are not accelerated by default.
    settling : if message passing cycles, finish by descent (see `gamp_attention.gamp.settling`).
    escape : if the run ends at a saddle of the risk, leave it along the direction of lowest curvature and continue to a
        minimum. Each escape counts as an iteration, whose damping is NaN in the history.
    survey : begin with survey propagation, which finds lower minima than message passing does from random starts
        (Lucibello, Saglietti and Lu, 2019; see `gamp_attention.gamp.survey`), and continue from its weights. If True,
        surveys are made from each start and from random starts, at Parisi parameters that are determined from the data,
        until two surveys find the same weights. A positive number, or several, are the Parisi parameters y of the
        surveys from each start. Message passing continues from surveys of different weights, which are compared after
        30 iterations. If True, and if the loss is not convex, a survey and message passing from the lowest minimum
        follow. Then single samples are moved to other minima of their proximal objectives, from which message passing
        continues, while the training loss falls (see `gamp_attention.gamp.survey`). Runs that will probably end above
        the lowest minimum are stopped. `result.surveys` lists the surveys, and `result.starts` all runs of message
        passing. If "auto", only this continuation from the lowest minimum is made, and only in cases in which it mostly
        finds better weights: there are at least four starts, at most a quarter of them ended in (nearly) the selected
        weights, and the training loss is at most a quarter of the loss at zero weights. In addition, samples need to
        have at most three fields, the loss must not be convex, and survey propagation needs to accept the data and
        `iteration`.
    iteration : response, memory, first variances and searches, if not the defaults of `IterationOptions`.
    n_starts : number of initializations. The first is `init`; for "spectral", all existing spectral directions come
        first. The rest are random. After 6, 15 and 30 iterations the half with the higher training loss is stopped
        (successive halving). The result is the run of lowest training loss, and `result.starts` lists all runs. It
        does not depend on the number of threads.
    n_finish : number of starts that are run to the end, at most `n_starts`.
    seed : seed of the random starts.
    callback : called with (iteration, state, report) at every iteration, with read-only arrays. With several starts, it
        is called for all iterations of the first start up to the first comparison, then for the second start, and so
        on.
    checkpoint : file to which the state is written once a minute, and from which the run resumes if the file exists;
        `Checkpoint(path, every)` sets the time between two writes. A resumed run makes the same iterations to the last
        bit. `max_iter` may be larger than before; all other arguments must be the same.
    raise_on_failure : raise ConvergenceError if the run does not converge.
    progress : show start, iteration, training loss and gradient norm on standard error. If None, they are shown on a
        terminal if the run takes more than a second.

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
        `init` or `risk` needs a teacher that the data do not have, or the checkpoint belongs to a different run.
    ConvergenceError : if the run does not converge and `raise_on_failure` is True.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=200, alpha=1.5, seed=0)
    >>> result = ga.run_gamp(data, init="semantic", damping=0.5)
    >>> result.converged, result.gradient_norm < 1e-8
    (True, True)
    """
    require_dataset(data)
    data.terms(risk)
    tol = scale_tolerance(data, check.real("tol", tol, low=0))
    max_iter = check.integer("max_iter", max_iter, low=1)
    Damping(damping)  # raises for anything but steps
    for name, flag in {"settling": settling, "escape": escape, "raise_on_failure": raise_on_failure}.items():
        check.flag(name, flag)
    options = _require_options(data, iteration, accelerate, callback)
    n_starts = check.integer("n_starts", n_starts, low=1)
    n_finish = check.integer("n_finish", n_finish, low=1, high=n_starts)
    check.require_memory("data.rank", data.dim, data.rank)
    check.require_memory("data.rank", data.n_samples, data.n_tokens, data.rank, data.rank)  # responses of the samples
    check.require_memory("data.rank", 5, data.n_tokens * data.rank, data.n_tokens * data.rank)  # Hessian of a sample
    check.require_memory("n_starts", n_starts, data.n_samples * data.n_tokens + data.dim, data.rank)
    if isinstance(survey, str) and survey != "auto":
        raise check.fail("survey", survey, SURVEY_VALUES)
    automatic = isinstance(survey, str) and n_starts >= MIN_STARTS and accepts_surveys(data, options)
    ladder = None if isinstance(survey, str) else _require_ladder(survey, options)

    init = default_start(data) if init is None else init
    starts = build_starts(data, init, risk, options.V, n_starts, seed)
    V_hat = response_rule(data, options)
    mode = _select_acceleration(data, accelerate, damping, tol, options)
    direction = init.direction if isinstance(init, GampResult) else None
    plan = Plan(
        data, risk, damping, tol, max_iter, _select_hold_after(data, tol, options), mode, settling, V_hat,
        options.memory, callback, direction, _is_bounded(data, tol, options), _may_bound(tol, options),
        small_unit(data),
    )  # fmt: skip
    surveys: list[PlannedSurvey] = [] if ladder is None else list_surveys(data, risk, starts, ladder, seed)
    file = None
    if checkpoint is not None:
        given_state = starts[0][1] if isinstance(init, GampResult | GampState) else None
        kind = "auto" if automatic else ladder
        file = _open_checkpoint(checkpoint, plan, starts, given_state, options, n_finish, escape, kind, surveys)
    phase, n_tried = None, 0
    if ladder is not None:
        phase, starts = run_surveys(data, risk, surveys, bool(ladder), options.V, file)
        n_finish = min(len(starts), n_finish)
        n_tried = 0 if phase.agreeing else max(0, min(len(starts), FINISHED_SURVEYS) - n_finish)
    elif automatic:
        phase, _ = run_surveys(data, risk, [], False, options.V, file)
    rounds = ROUNDS if ladder is None else SURVEY_ROUNDS
    runs = SuccessiveHalving(plan, starts, n_finish, escape, options.V, file, phase, rounds, n_tried)
    result, loop = runs.run()
    if phase is not None and not ladder and (not automatic or may_improve(data, risk, runs.records(result, loop))):
        result, loop = refine_minimum(runs, phase, result, loop, options.V)
    records = runs.records(result, loop)
    message = f"{result.message} {summarize_starts(records, risk)}" if len(records) > 1 else result.message
    surveyed = () if phase is None else (*phase.records, *phase.refinements)
    result = replace(result, starts=records, message=message, surveys=surveyed)
    return finish(result, raise_on_failure, "run_gamp")


def _require_options(
    data: Dataset, iteration: IterationOptions | None, accelerate: bool | None, callback: Callback | None
) -> IterationOptions:
    """Return the checked options of the iteration.

    Raises
    ------
    TypeError, ValueError : if `iteration`, `accelerate` or `callback` has another type, if an option does not fit the
        data, or if runs on samples of other workers are to be accelerated.
    """
    if accelerate is not None and check.flag("accelerate", accelerate) and not data.rows_here:
        raise check.fail("accelerate", accelerate, "False for data whose samples are on other workers")
    if callback is not None:
        check.function("callback", callback)
    if not (iteration is None or isinstance(iteration, IterationOptions)):
        raise check.fail("iteration", iteration, "IterationOptions", TypeError)
    return (iteration or IterationOptions()).validate(data)


def _select_acceleration(
    data: Dataset, accelerate: bool | None, damping: Steps, tol: float, options: IterationOptions
) -> bool | str:
    """Return `accelerate`; by default, runs that need not follow state evolution are accelerated at their end."""
    if accelerate is not None:
        return accelerate
    return LATE if isinstance(damping, str) and tol > 0 and options.predictable and data.rows_here else False


def _may_bound(tol: float, options: IterationOptions) -> bool:
    """Return whether a run may change to a bounded search, because it need not follow state evolution."""
    return options.search == "auto" and options.predictable and options.hold_after is None and tol > 0


def _is_bounded(data: Dataset, tol: float, options: IterationOptions) -> bool:
    """Return whether searches for global proximal minima are bounded from the start."""
    many_fields = data.n_tokens * data.rank > FULL_SEARCH_FIELDS
    return options.search == "bounded" or (_may_bound(tol, options) and many_fields)


def _select_hold_after(data: Dataset, tol: float, options: IterationOptions) -> int:
    """Return the iteration from which each sample keeps its local proximal minimum."""
    if options.hold_after is not None:
        return options.hold_after
    return HOLD_AFTER if tol > 0 or _is_bounded(data, tol, options) else sys.maxsize


def run_surveys(
    data: Dataset, risk: str, surveys: list[PlannedSurvey], absolute: bool, V: ArrayLike | None,
    file: CheckpointFile | None,
) -> tuple[SurveyPhase, list[tuple[str, GampState]]]:  # fmt: skip
    """Return the survey phase after the surveys from all starts, and name and state of its different weights."""
    tree = None if file is None else file.load()
    phase = SurveyPhase(data, risk, surveys, absolute, None if tree is None else tree.get("surveys"))
    save = None if file is None else partial(file.save, lambda: {"surveys": phase})
    return phase, [survey_start(data, record, V) for record in distinct_surveys(data, phase.run(save))]


def survey_start(data: Dataset, record: SurveyRecord, V: ArrayLike | None) -> tuple[str, GampState]:
    """Return name and state of the start of message passing from the weights of a survey."""
    return f"{record.name}, survey at y = {record.parisi:.3g}", initial_state(data, record.Q, V)


def refine_minimum(
    runs: SuccessiveHalving, phase: SurveyPhase, result: GampResult, loop: Loop, V: ArrayLike | None
) -> tuple[GampResult, Loop]:
    """Return the result after a survey from the lowest minimum and flips of single samples, and its loop.

    Flips are repeated while the loss falls. There is no refinement of runs without convergence or to `max_iter`, so
    that a checkpoint can continue them.
    """
    if not result.converged or runs.reached_limit:
        return result, loop
    record = phase.refine(result.Q, runs.save)
    if record is not None:
        result, loop = runs.add([survey_start(runs.data, record, V)])
    for _ in range(MAX_ROUNDS):
        starts = flipped_starts(runs.data, runs.risk, result.Q, result.overlaps.V)
        if not starts or not result.converged or runs.reached_limit:
            break
        before = result.train_loss
        result, loop = runs.add(starts, hold=True)
        if not result.train_loss < (1 - SAME_LOSS) * before:
            break
    return result, loop


def accepts_surveys(data: Dataset, options: IterationOptions) -> bool:
    """Return whether `survey="auto"` may make a survey: data and options allow it, and it takes few nodes."""
    allowed = options.predictable and not has_spheres(data.penalty) and not data.intercept
    return allowed and data.n_tokens * data.rank <= MAX_FIELDS and not is_convex(data)


def may_improve(data: Dataset, risk: str, records: tuple[StartRecord, ...]) -> bool:
    """Return whether few starts ended in the lowest minimum, although its loss is low: a lower minimum is likely.

    If the loss is high, because of noise or a wrong model, a lower minimum often has a larger test error.
    """
    n_agree = sum(record.agreement >= AGREEMENT for record in records)
    lowest = next(record.train_loss for record in records if record.kept)
    zero = risk_at(data, np.zeros((data.dim, data.rank)), risk).train_loss
    return n_agree <= FEW_AGREE * len(records) and lowest <= LOW_LOSS * zero


def _require_ladder(survey: Any, options: IterationOptions) -> tuple[float, ...] | None:
    """Return the Parisi parameters of the surveys: None for no surveys, or () for parameters determined from the data.

    Raises
    ------
    TypeError, ValueError : if `survey` is neither a boolean nor positive numbers, or does not fit other arguments.
    """
    if survey is False or survey is None:
        return None
    if not options.predictable:
        raise check.fail("survey", survey, "False if `iteration` has another response or memory than the default")
    if survey is True:
        return ()
    numbers = survey if isinstance(survey, Sequence | np.ndarray) and not isinstance(survey, str) else [survey]
    if not len(numbers):
        raise check.fail("survey", survey, SURVEY_VALUES)
    return tuple(check.real("survey", y, low=0, strict=True) for y in numbers)


def list_surveys(
    data: Dataset, risk: str, starts: list[tuple[str, GampState]], ladder: tuple[float, ...],
    seed: int | np.random.Generator,
) -> list[PlannedSurvey]:  # fmt: skip
    """Return name, weights (d, r) and Parisi parameter of all surveys of a run; see `SurveyPhase`.

    Surveys begin from each start and, if `ladder` is (), from random starts.
    """
    surveys: list[PlannedSurvey] = [(name, state.Q, y) for name, state in starts for y in ladder or LADDER]
    if not ladder:
        more = several_starts(data, "random", len(starts) + len(LADDER), seed, risk)[len(starts) :]
        surveys += [(name, Q, y) for (name, Q), y in zip(more, LADDER, strict=True)]
    return surveys


def build_starts(
    data: Dataset, init: Start, risk: str, V: ArrayLike | None, n_starts: int, seed: int | np.random.Generator
) -> list[tuple[str, GampState]]:
    """Return names and states of all starts; the first state has the memory of `init`, if `init` has a memory."""
    state: Any = init
    if isinstance(init, GampResult):
        Q = check.array("init.Q", init.Q, (data.dim, data.rank))
        V_there = check.array("init.overlaps.V", init.overlaps.V, (data.n_sources, data.rank, data.rank))
        state = near_fixed_point(data, risk, Q, V_there)
    if not isinstance(state, GampState):
        return [(name, initial_state(data, Q, V)) for name, Q in several_starts(data, init, n_starts, seed, risk)]
    check_shapes(data, state)
    weights = several_starts(data, state.Q, n_starts, seed, risk)
    first = state if V is None else replace(state, V=np.asarray(V))
    return [(weights[0][0], first), *((name, initial_state(data, Q, V)) for name, Q in weights[1:])]


def response_rule(data: Dataset, options: IterationOptions) -> Callable[[int], np.ndarray | None]:
    """Return the function of the iteration t that gives the response V̂_t, or None for the empirical response.

    Raises
    ------
    TypeError, ValueError : if `options.V_hat` does not have the shape of responses.
    """
    if options.V_hat is None:
        return lambda t: None
    needs = "an array (T, S, r, r), for example V_hat of a trajectory with the same start and damping"
    if isinstance(options.V_hat, str):
        raise check.fail("V_hat", options.V_hat, needs, TypeError)
    table = check.array("V_hat", options.V_hat, ("T", data.n_sources, data.rank, data.rank))
    last = inf if options.empirical_after is None else options.empirical_after
    return lambda t: table[min(t, len(table) - 1)] if t < last else None


def digest(data: Dataset, *options: Any) -> str:
    """Return a hash of a dataset with all of its tokens, and of options: arrays, or `repr` of others."""
    terms, groups = data.terms("exact"), [(rows, sources.tolist()) for rows, sources in data.groups]
    arrays = terms.params, terms.constant, data.positions, data.spectra, data.source_means
    tokens = hash_tokens(data.tokens), data.tokens.shape, data.tokens.dtype.str
    values = *arrays, *tokens, groups, data.penalty, data.loss, *options
    with np.printoptions(threshold=sys.maxsize, floatmode="unique"):  # losses and penalties may contain arrays
        words = [value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode() for value in values]
    return hash_bytes(*words)


def _open_checkpoint(
    checkpoint: str | Path | Checkpoint, plan: Plan, starts: list[tuple[str, GampState]], given: GampState | None,
    options: IterationOptions, n_finish: int, escape: bool, ladder: tuple[float, ...] | str | None,
    surveys: list[PlannedSurvey],
) -> CheckpointFile:  # fmt: skip
    """Return the checkpoint file of a run; its digest covers all arguments on which iterations depend."""
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    memory = options.memory.__module__, getattr(options.memory, "__qualname__", type(options.memory).__qualname__)
    arrays = [array for _, state in starts for array in (state.Q, state.V)]
    arrays += [] if given is None else [np.asarray(given.D)]
    arrays += [Q for _, Q, _ in surveys]
    values: tuple[Any, ...] = (
        plan.risk, *arrays, n_finish, plan.damping, plan.tol, plan.hold_after, plan.accelerate, plan.settling, escape,
        options.V_hat, options.empirical_after, plan.bounded, *memory, ladder,
    )  # fmt: skip
    return CheckpointFile(checkpoint, digest(plan.data, *values))
