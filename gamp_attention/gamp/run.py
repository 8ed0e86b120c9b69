"""`run_gamp`: its arguments, and message passing from one or several starts, the best of which is followed to the end.

Several starts are compared by successive halving (Karnin et al., 2013; Jamieson and Talwalkar, 2016): all runs make a
few iterations, the half with the higher training loss is stopped, the others continue, and so on. The training loss
after few iterations predicts the final loss well enough to discard poor starts at a fraction of the cost of full runs.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._core import check
from gamp_attention._core.choices import STARTS
from gamp_attention._core.display import DisplayMixin
from gamp_attention._core.numerics import hash_bytes, ignore_float_errors
from gamp_attention._core.progress import show_progress
from gamp_attention._core.runs import Checkpoint, CheckpointFile, Resumable, Tree
from gamp_attention.damping import Damping, Steps
from gamp_attention.data.dataset import Dataset, require_dataset
from gamp_attention.data.passes import Memory
from gamp_attention.data.risk import (
    RiskAtPoint,
    agreement_of,
    is_convex,
    overlaps,
    risk_at,
    scale_tolerance,
    small_unit,
)
from gamp_attention.data.starts import default_start, several_starts
from gamp_attention.gamp.loop import FULL_SEARCH_FIELDS, LATE, Callback, Loop, Plan
from gamp_attention.gamp.result import GampResult, StartRecord, build_result, run_and_settle
from gamp_attention.gamp.settling import MAX_SADDLES, descend_from_saddle
from gamp_attention.gamp.step import GampState, averaged_memory, check_shapes, initial_state, near_fixed_point
from gamp_attention.gamp.survey import (
    LADDER,
    PlannedSurvey,
    SurveyPhase,
    SurveyRecord,
    distinct_surveys,
    flipped_starts,
)
from gamp_attention.penalties.columns import has_spheres
from gamp_attention.results import Overlaps, Status, finish

Start = str | ArrayLike | GampState | GampResult
HOLD_AFTER = 20  # number of iterations with global proximal minima, in runs to a tolerance; later, minima are local
PREDICTED = 40  # iterations of state evolution for onsager="state_evolution"; the last response is repeated
ROUNDS = (6, 15, 30)  # iterations after which starts are compared and some of them stopped
CONTINUED = 0.5  # fraction of the starts that continue after a comparison
# iterations after which runs from surveys, and from flipped samples, are compared; number of runs that then continue
SURVEY_ROUNDS, FINISHED_SURVEYS = (30,), 2
COMPARED_FLIPS, FINISHED_FLIPS = 20, 2
SAME_LOSS = 1e-6  # relative decrease of the training loss below which flips have not improved a minimum
MAX_ROUNDS = 20  # maximum number of minima at which samples are flipped
# survey="auto" continues from the lowest minimum only if
FEW_AGREE = 0.25  # at most this fraction of the starts agree with the lowest minimum, and
LOW_LOSS = 0.25  # its training loss is at most this fraction of the loss at zero weights
MIN_STARTS, MAX_FIELDS = 4, 3  # minimum number of starts, and maximum number of fields of a sample, of survey="auto"
MANY_TIMES = 10.0  # relative excess of a training loss from which a factor is printed instead of a percentage
SURVEY_VALUES = "True, False, 'auto', or positive numbers"
AGREEMENT = 0.9  # minimum overlap with the selected weights at which weights count as (nearly) the same


@dataclass(frozen=True, eq=False)
class IterationOptions(DisplayMixin):
    """Options of the iteration of `run_gamp` that few runs change; pass them as `run_gamp(iteration=...)`.

    Parameters
    ----------
    onsager : response V̂_t: "empirical", computed from the samples; "state_evolution", computed by `trajectory` for the
        same start and damping; or an array (T, S, r, r) of responses, the last of which is repeated. S = L, or the
        number of sources of a mixture.
    empirical_after : iteration from which the empirical response is used, whatever `onsager` is; None for never. If
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
        `tol` is 0 or if `hold_after`, `onsager` or `memory` is given.

    Examples
    --------
    Use the response that state evolution predicts, so that a run follows the prediction even if proximal maps jump:

    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    >>> options = ga.IterationOptions(onsager="state_evolution")
    >>> ga.run_gamp(data, "positional", damping=0.3, tol=0, max_iter=5, iteration=options).n_iter
    5
    """

    onsager: str | ArrayLike = "empirical"
    empirical_after: int | None = None
    memory: Memory = averaged_memory
    V: ArrayLike | None = None
    hold_after: int | None = None
    search: str = "auto"

    @property
    def predictable(self) -> bool:
        """True if response and memory are the defaults, so that acceleration and bounded searches may be used."""
        return isinstance(self.onsager, str) and self.onsager == "empirical" and self.memory is averaged_memory

    def validate(self, data: Dataset) -> "IterationOptions":
        """Return a copy with checked numbers and arrays; `onsager` is checked by `response_rule`.

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


@ignore_float_errors
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
    init : "semantic", "positional", "random", "spectral" (computed from the data), "posterior" (computed from the data
        and the attention matrix of the teacher), weights (d, r), a `GampState`, from which the run continues with its
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
        fixed points as other runs. Runs with `onsager` or `memory` in `iteration`, or with samples on other workers,
        are not accelerated by default.
    settling : if message passing cycles, finish by descent (see `gamp_attention.gamp.settling`).
    escape : if the run ends at a saddle of the risk, leave it along the direction of lowest curvature and continue to a
        minimum. Each escape counts as an iteration, whose damping is NaN in the history.
    survey : begin with survey propagation, which finds lower minima than message passing does from random starts
        (Lucibello, Saglietti and Lu, 2019; see `gamp_attention.gamp.survey`), and continue from its weights. If True,
        surveys are made from each start and from random starts, at Parisi parameters that are determined from the
        data, until two surveys find the same weights. A positive number, or several, are the Parisi parameters y
        of the surveys from each start. Message passing continues from surveys of different weights, which are compared
        after 30 iterations. If True, and if the loss is not convex, a survey and message passing from the lowest
        minimum follow. Then single samples are moved to other minima of their proximal objectives, from which message
        passing continues, while the training loss falls (see `gamp_attention.gamp.survey`). `result.surveys` lists
        the surveys, and `result.starts` all runs of message passing. If "auto", only this continuation from the lowest
        minimum is made, and only in cases in which it mostly finds better weights: there are at least four starts, at
        most a quarter of them ended in (nearly) the selected weights, and the training loss is at most a quarter of
        the loss at zero weights. In addition, samples need to have at most three fields, the loss must not be
        convex, and survey propagation needs to accept the data and `iteration`.
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
        point of GAMP.

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
    check.require_memory("rank", data.dim, data.rank)
    check.require_memory("n_starts", n_starts, data.n_samples * data.n_tokens + data.dim, data.rank)
    if n_starts > 1 and isinstance(options.onsager, str) and options.onsager == "state_evolution":
        raise check.fail("onsager", options.onsager, "'empirical' or an array if there are several starts")
    if isinstance(survey, str) and survey != "auto":
        raise check.fail("survey", survey, SURVEY_VALUES)
    automatic = isinstance(survey, str) and n_starts >= MIN_STARTS and accepts_surveys(data, options)
    ladder = None if isinstance(survey, str) else _require_ladder(survey, options)

    init = default_start(data) if init is None else init
    starts = build_starts(data, init, risk, options.V, n_starts, seed)
    V_hat = response_rule(data, init, options, starts[0][1], damping, max_iter)
    mode = _select_acceleration(data, accelerate, damping, tol, options)
    direction = init.direction if isinstance(init, GampResult | GampState) else None
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
    phase = None
    if ladder is not None:
        phase, starts = run_surveys(data, risk, surveys, bool(ladder), options.V, file)
        n_finish = min(len(starts), max(n_finish, 1 if phase.agreeing else FINISHED_SURVEYS))
    elif automatic:
        phase, _ = run_surveys(data, risk, [], False, options.V, file)
    rounds = ROUNDS if ladder is None else SURVEY_ROUNDS
    runs = SuccessiveHalving(plan, starts, n_finish, escape, options.V, file, phase, rounds)
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


def report_minimum(data: Dataset, state: GampState, at: RiskAtPoint, tol: float, max_iter: int) -> GampResult:
    """Return the result of `run_gamp` from a state at a minimum of the exact risk, without an iteration.

    The risk at the minimum is `at`; its gradient norm must be at most `tol`.
    """
    plan = Plan(
        data, "exact", "adaptive", tol, max_iter, HOLD_AFTER, LATE, True, lambda t: None, averaged_memory, None,
        state.direction, False, False,
    )  # fmt: skip
    runs = SuccessiveHalving(plan, [("given", state)], 1, False, None, None, None, ROUNDS)
    loop = runs.loops[0]
    result = build_result(plan, loop, loop.end_at(at), [], False, at)
    return replace(result, starts=runs.records(result, loop))


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
    runs: "SuccessiveHalving", phase: SurveyPhase, result: GampResult, loop: Loop, V: ArrayLike | None
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


def response_rule(
    data: Dataset, init: Start, options: IterationOptions, state: GampState, damping: Steps, max_iter: int
) -> Callable[[int], np.ndarray | None]:
    """Return the function of the iteration t that gives the response V̂_t, or None for the empirical response.

    Raises
    ------
    TypeError, ValueError : if `options.onsager` is not a response, or "state_evolution" for data without a model.
    """
    onsager = options.onsager
    if isinstance(onsager, str):
        if check.choice("onsager", onsager, ("empirical", "state_evolution")) == "empirical":
            return lambda t: None
        from gamp_attention.state_evolution.dynamics.trajectory import trajectory

        if isinstance(init, str) and init in STARTS and options.V is None:
            start: str | Overlaps = init
        else:
            start = overlaps(data, state.Q, state.V)
        n_iter = min(max_iter, PREDICTED)
        onsager = trajectory(data.instance_model(), data.alpha, start, damping=damping, n_iter=n_iter).V_hat
    table = check.array("onsager", onsager, ("T", data.n_sources, data.rank, data.rank))
    last = inf if options.empirical_after is None else options.empirical_after
    return lambda t: table[min(t, len(table) - 1)] if t < last else None


def digest(data: Dataset, *options: Any) -> str:
    """Return a hash of the numbers that define the risks of a dataset, and of options: arrays, or `repr` of others."""
    arrays = data.terms("exact").params, data.positions, data.spectra, data.source_means
    values = *arrays, data.tokens.shape, data.tokens.dtype.str, data.penalty, data.loss, *options
    return hash_bytes(*(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode() for value in values))


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
        options.onsager, options.empirical_after, plan.bounded, *memory, ladder,
    )  # fmt: skip
    return CheckpointFile(checkpoint, digest(plan.data, *values))


@dataclass(frozen=True)
class StoppedRun:
    """Last entry of the history of a run that was stopped early, because other starts had a lower training loss."""

    n_iter: int
    train_loss: float
    gradient_norm: float
    overlaps: Overlaps
    Q: np.ndarray


class SuccessiveHalving(Resumable):
    """Message passing from several starts, of which the starts of lowest training loss are run to the end.

    Parameters
    ----------
    plan : arguments that all runs share.
    starts : names and states.
    n_finish : number of starts that are run to the end.
    escape, V : whether to leave saddles, and first variances of message passing after it; see `run_gamp`.
    file : checkpoint of all runs, from which they resume; None for no checkpoint.
    phase : surveys from which the starts come, which the checkpoint also holds; None if there were none.
    rounds : iterations after which starts are compared.

    Attributes
    ----------
    n_rounds : number of comparisons so far.
    stopped : runs that were stopped early, by the index of their start.
    loops : other runs, by the index of their start.

    Raises
    ------
    ValueError : if a run in the checkpoint is beyond `plan.max_iter`.
    """

    n_rounds: int
    stopped: dict[int, StoppedRun]

    def __init__(
        self, plan: Plan, starts: list[tuple[str, GampState]], n_finish: int, escape: bool, V: ArrayLike | None,
        file: CheckpointFile | None, phase: SurveyPhase | None, rounds: tuple[int, ...],
    ) -> None:  # fmt: skip
        self._escape, self._V, self._rounds = escape, V, rounds
        self._plan, self._n_finish, self._file, self._phase = plan, n_finish, file, phase
        self._names = [name for name, _ in starts]
        self._batches = [0] * len(starts)  # number of the comparison in which a start takes part
        self.n_rounds, self.stopped = 0, {}
        self._results: dict[int, GampResult] = {}
        self._later: Tree = {}  # snapshots of runs in the checkpoint that `add` begins
        save = self._save_loop = None if file is None else self.save
        n = len(starts)
        titles = [f"start {k} of {n} ({name})" if n > 1 else f"{name} start" for k, name in enumerate(self._names, 1)]
        self.loops = {k: Loop(plan, state, save, titles[k]) for k, (_, state) in enumerate(starts)}
        tree = None if file is None else file.load()
        if file is not None and tree is not None and "n_rounds" in tree:
            self.restore(tree)
            reached = max(loop.t for loop in self.loops.values())
            if reached > plan.max_iter:
                needs = f"at least {reached}, the iteration of the checkpoint {file.path}"
                raise check.fail("max_iter", plan.max_iter, needs)

    def run(self) -> tuple[GampResult, Loop]:
        """Return the result of lowest training loss, among converged runs if there are any, and its loop."""
        for until in self._rounds[self.n_rounds :]:
            # a comparison beyond max_iter is left out: a checkpoint of this run can then continue to a larger max_iter
            if len(self.loops) <= self._n_finish or until > self._plan.max_iter:
                break
            for loop in self.loops.values():
                loop.run(until)
            if all(loop.is_only_descent for loop in self.loops.values()):
                break  # the losses of starts do not predict the losses at the ends of descents: run all to the end
            last = until == self._rounds[-1]  # then all but `n_finish` are stopped, otherwise half of the runs
            half = max(self._n_finish, ceil(CONTINUED * len(self.loops)))
            self._stop_worst(self.loops, self._n_finish if last else half)
            self.n_rounds += 1
        interrupted = [loop.run(self._plan.max_iter) is None for loop in self.loops.values()]
        if any(interrupted):
            self.save()  # before max_iter ends the runs, so that a later call can continue them
        self._results = {k: run_and_settle(self._plan, loop) for k, loop in self.loops.items()}
        return self._select()

    def add(self, starts: list[tuple[str, GampState]], hold: bool = False) -> tuple[GampResult, Loop]:
        """Run message passing from further starts; return the result of all runs and its loop.

        Each sample keeps its local proximal minimum if `hold` is True. After `COMPARED_FLIPS` iterations, all but
        `FINISHED_FLIPS` of the runs are stopped.
        """
        plan, new = replace(self._plan, hold_after=0) if hold else self._plan, list[int]()
        batch = self._batches[-1] + 1
        for name, state in starts:
            k = len(self._names)
            self._names.append(name)
            self._batches.append(batch)
            if k not in self.stopped:
                self.loops[k] = loop = Loop(plan, state, self._save_loop, name)
                new.append(k)
                if k in self._later:
                    loop.restore(self._later.pop(k))
        for k in new:
            self.loops[k].run(min(COMPARED_FLIPS, plan.max_iter))
        for k in self._stop_worst(new, FINISHED_FLIPS):
            if self.loops[k].run(plan.max_iter) is None:
                self.save()
            self._results[k] = run_and_settle(plan, self.loops[k])
        return self._select()

    def _select(self) -> tuple[GampResult, Loop]:
        """Return the best result, after leaving saddles, and its loop."""
        best = min(self._results, key=lambda k: (not self._results[k].converged, _order(self._results[k].train_loss)))
        plan, loop, result = self._plan, self.loops[best], self._results[best]
        while self._escape and not result.is_minimum and result.direction is not None and loop.n_escapes < MAX_SADDLES:
            Q, loss_bound = descend_from_saddle(plan.data, plan.risk, result.Q, result.direction)
            loop.restart_from(initial_state(plan.data, Q, self._V), loss_bound)
            result = run_and_settle(plan, loop)
        self._results[best] = result
        return result, loop

    @property
    def data(self) -> Dataset:
        """The samples."""
        return self._plan.data

    @property
    def risk(self) -> str:
        """The risk, "exact" or "asymptotic"."""
        return self._plan.risk

    @property
    def reached_limit(self) -> bool:
        """True if message passing from a start ended at `max_iter`."""
        return any(result.message_passing is Status.MAX_ITER for result in self._results.values())

    def _stop_worst(self, runs: Iterable[int], n_continue: int) -> list[int]:
        """Stop the runs of highest training loss; return the others, `n_continue` of lowest loss."""
        order = sorted(runs, key=lambda k: _order(self.loops[k].record.last[2]))
        for k in order[n_continue:]:
            loop = self.loops.pop(k)
            last_overlaps, norm, loss = loop.record.last
            self.stopped[k] = StoppedRun(loop.t, loss, norm, last_overlaps, loop.recorded_Q)
        return order[:n_continue]

    def records(self, selected: GampResult, selected_loop: Loop) -> tuple[StartRecord, ...]:
        """Return a record of every start, compared with the selected result."""
        losses, records = selected.history.train_loss, list[StartRecord]()
        batch = next(self._batches[k] for k, loop in self.loops.items() if loop is selected_loop)
        for k, name in enumerate(self._names):
            is_selected = self.loops.get(k) is selected_loop
            end: Any = selected if is_selected else self.stopped.get(k) or self._results[k]
            # the selected run may have ended before the run from start k was stopped
            at = min(end.n_iter, len(losses)) - 1 if k in self.stopped and self._batches[k] == batch else -1
            loss = losses[at] if at >= 0 else selected.train_loss
            record = StartRecord(
                name=name, kept=is_selected, status=None if k in self.stopped else end.status, n_iter=end.n_iter,
                train_loss=end.train_loss, gradient_norm=end.gradient_norm,
                excess=float(end.train_loss / loss - 1) if loss else 0.0,
                agreement=1.0 if is_selected else agreement_of(self._plan.data, end.Q, selected.Q),
                overlaps=end.overlaps, Q=end.Q,
            )  # fmt: skip
            records.append(record)
        return tuple(records)

    def save(self) -> None:
        """Write all runs to the checkpoint, if there is one."""
        if self._file is not None:
            self._file.save(self.snapshot)

    def snapshot(self) -> Tree:
        """Return the state of all runs that have begun."""
        surveys = {} if self._phase is None else {"surveys": self._phase}
        return super().snapshot() | surveys | {"loops": {k: loop for k, loop in self.loops.items() if loop.t > 0}}

    def restore(self, tree: Tree) -> None:
        """Continue from a snapshot."""
        super().restore(tree)
        self.loops = {k: loop for k, loop in self.loops.items() if k not in self.stopped}
        trees = {int(k): loop_tree for k, loop_tree in tree.get("loops", {}).items()}
        self._later = {k: loop_tree for k, loop_tree in trees.items() if k >= len(self._names)}
        for k in self.loops.keys() & trees.keys():
            self.loops[k].restore(trees[k])


def summarize_starts(records: tuple[StartRecord, ...], risk: str) -> str:
    """Return sentences on the starts: the selected start, how many agree with it, and the losses of the others."""
    name = next(record.name for record in records if record.kept)
    differ = [record for record in records if record.agreement < AGREEMENT]
    best, n, n_agree = f"Best of {len(records)} starts: {name!r}.", len(records), len(records) - len(differ)
    if not differ:
        return f"{best} {'Both' if n == 2 else f'All {n}'} gave (nearly) the same weights."
    weights = (
        f"{n_agree} of {n} gave (nearly) the same weights" if n_agree > 1 else "No other start gave the same weights"
    )
    # runs that ended without convergence below the selected run, which is a critical point
    lower = [record for record in differ if record.status is not None and record.excess < 0]
    others = [record.excess for record in differ if record not in lower]
    return f"{best} {weights}{_describe_losses(others)}.{_describe_lower(records, lower, risk)}"


def _describe_losses(excess: list[float]) -> str:
    """Return a clause on the training losses of starts with other weights, relative to the selected start."""
    if not excess:
        return ""
    many = min(excess) > 0 and max(excess) >= MANY_TIMES
    low, high = (f"{1 + ratio:.2g}" if many else _percent(ratio) for ratio in (min(excess), max(excess)))
    span = low if low == high else f"{low} to {high}"
    remainder = f"the other {len(excess)}" if len(excess) > 1 else "the other one"
    if many:
        return f"; {remainder} had {span} times its training loss when stopped"
    if min(excess) < 0:  # iterates of runs that were stopped early are not critical points, so their loss may be lower
        return f"; the training loss of {remainder} differed by {span} % when stopped"
    return f"; {remainder} had a training loss {span} % higher when stopped"


def _describe_lower(records: tuple[StartRecord, ...], lower: list[StartRecord], risk: str) -> str:
    """Return a sentence on the lowest of the runs without convergence below the selected run; nothing without them."""
    if not lower:
        return ""
    lowest = min(lower, key=lambda record: record.train_loss)
    weights = f"result.starts[{records.index(lowest)}].Q"
    return (
        f" The run from {lowest.name!r} did not converge, although its training loss {lowest.train_loss:.6g} is "
        f"{_percent(-lowest.excess)} % lower: minimize_risk(data, {weights}, {risk!r}) (gamp-attention fit: another "
        "--seed) may reach a lower minimum."
    )


def _percent(ratio: float) -> str:
    """Return a ratio in percent: whole percents from 10 % on, otherwise two digits; two digits from 10 000 % on."""
    return f"{100 * ratio:.0f}" if 0.1 <= abs(ratio) < 100 else f"{100 * ratio:.2g}"


def _order(loss: float) -> float:
    """Return a training loss for comparisons; a loss that is not finite counts as infinite."""
    return loss if np.isfinite(loss) else inf
