"""`train`: the lowest minimum of the risk that message passing and descent find from several starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.checkpoints import Checkpoint, CheckpointFile
from gamp_attention._tools.numerics import guard_call, hash_bytes
from gamp_attention._tools.progress import show_progress
from gamp_attention._tools.snapshots import Resumable
from gamp_attention.extensions.train.descents import DescentPhase
from gamp_attention.extensions.train.flips import flipped_starts
from gamp_attention.extensions.train.halving import SAME_LOSS, SuccessiveHalving
from gamp_attention.extensions.train.records import AGREEMENT, StartRecord, summarize_starts
from gamp_attention.extensions.train.survey import LADDER, PlannedSurvey, SurveyPhase, SurveyRecord, distinct_surveys
from gamp_attention.gamp.loop import Loop, Plan
from gamp_attention.gamp.options import IterationOptions
from gamp_attention.gamp.result import GampResult
from gamp_attention.gamp.run import Start, build_plan, build_starts
from gamp_attention.gamp.step import GampState, initial_state
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.risk import is_convex, risk_at
from gamp_attention.problem.starts import several_starts
from gamp_attention.problem.stores import hash_tokens
from gamp_attention.results import finish

SURVEY_VALUES = "True, False, 'auto', or positive numbers"


@dataclass(frozen=True)
class TrainSettings:
    """Rules of `train`: when starts are compared, and when surveys and flips follow."""

    rounds: tuple[int, ...] = (6, 15, 30)  # iterations after which starts are compared and half of them stopped
    # iterations after which runs from surveys are compared, and number of runs that then continue
    survey_rounds: tuple[int, ...] = (30,)
    finished_surveys: int = 2
    max_rounds: int = 20  # maximum number of minima at which samples are flipped
    # survey="auto" continues from the lowest minimum only if at most this fraction of the starts agree with it, and its
    # training loss is at most this fraction of the loss at zero weights
    few_agree: float = 0.25
    low_loss: float = 0.25
    min_starts: int = 4  # minimum number of starts of survey="auto"
    max_fields: int = 3  # maximum number of fields of a sample of survey="auto", whose nodes grow exponentially with it


SETTINGS = TrainSettings()


@dataclass(frozen=True, eq=False)
class TrainResult(GampResult):
    """Outcome of `train`: the result of the selected run, and records of all runs.

    Attributes
    ----------
    n_escapes : number of saddles that were left; each is an iteration of the history, whose damping is NaN.
    starts : a `StartRecord` for each start.
    surveys : a `SurveyRecord` for each survey; each survey is a start.
    Others : as for `GampResult`.
    """

    n_escapes: int = 0
    starts: tuple[StartRecord, ...] = ()
    surveys: tuple[SurveyRecord, ...] = ()


@guard_call
@show_progress("training ")
def train(
    data: Dataset,
    init: Start | None = None,
    risk: str = "exact",
    *,
    n_starts: int = 8,
    n_finish: int = 1,
    survey: bool | str | float | Sequence[float] = "auto",
    escape: bool = True,
    tol: float = 1e-8,
    max_iter: int = 10000,
    iteration: IterationOptions | None = None,
    seed: int | np.random.Generator = 0,
    checkpoint: str | Path | Checkpoint | None = None,
    raise_on_failure: bool = False,
    progress: bool | None = None,
) -> TrainResult:
    """Train the layer from several starts; return the lowest minimum of the training risk of equation (3).

    Eq. :eq:`critical`. Each start is a run of message passing as in `run_gamp`. The starts are compared by successive
    halving: after 6, 15 and 30 iterations the half with the higher training loss is stopped. For samples with more than
    two fields L r, whose proximal steps take much longer than a gradient, descents from all starts come first. If at
    least half of them end in the same lowest weights, message passing only verifies or improves this end; otherwise
    message passing is also run from the starts of the lower half of the descents. For more than 24 fields, the result
    is the lowest descent.

    Parameters
    ----------
    data : the samples.
    init : the first start, as for `run_gamp`; for "spectral", all existing spectral directions come first. The other
        starts are random.
    risk : "exact" or "asymptotic", as for `run_gamp`.
    n_starts : number of starts.
    n_finish : number of starts that are run to the end, at most `n_starts`.
    survey : begin with survey propagation, which finds lower minima than message passing does from random starts
        (Lucibello, Saglietti and Lu, 2019; see `gamp_attention.extensions.train.survey`), and continue from its
        weights. If True, surveys are made from each start and from random starts, at Parisi parameters that are
        determined from the data, until two surveys find the same weights. A positive number, or several, are the Parisi
        parameters y of the surveys from each start. Message passing continues from surveys of different weights, which
        are compared after 30 iterations. If True, and if the loss is not convex, a survey and message passing from the
        lowest minimum follow. Then single samples are moved to other minima of their proximal objectives, from which
        message passing continues, while the training loss falls. Runs that will probably end above the lowest minimum
        are stopped. If "auto", only this continuation from the lowest minimum is made, and only in cases in which it
        mostly finds better weights: there are at least four starts, at most a quarter of them ended in (nearly) the
        selected weights, and the training loss is at most a quarter of the loss at zero weights. In addition, samples
        need to have at most three fields, the loss must not be convex, and survey propagation needs to accept the data
        and `iteration`.
    escape : if the run ends at a saddle of the risk, leave it along the direction of lowest curvature and continue to a
        minimum.
    tol, max_iter, iteration : as for `run_gamp`.
    seed : seed of the random starts.
    checkpoint : file to which the state is written once a minute, and from which the run resumes if the file exists;
        `Checkpoint(path, every)` sets the time between two writes. A resumed run makes the same iterations to the last
        bit. `max_iter` may be larger than before; all other arguments must be the same.
    raise_on_failure : raise ConvergenceError if the selected run does not converge.
    progress : show start, iteration, training loss and gradient norm on standard error. If None, they are shown on a
        terminal if the run takes more than a second.

    Returns
    -------
    TrainResult
        The run of lowest training loss, among the converged runs if there are any. It does not depend on the number of
        threads.

    Raises
    ------
    TypeError : if an argument does not have the documented type.
    ValueError : if a name is unknown, a number is out of its range, an array does not fit the data or is not finite,
        `init` or `risk` needs a teacher that the data do not have, or the checkpoint belongs to a different run.
    ConvergenceError : if the run does not converge and `raise_on_failure` is True.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> x = np.random.default_rng(0).normal(size=(200, 2, 100)) / 2
    >>> data = ga.Dataset(x, x[:, ::-1], positions=np.outer([1, -1], np.full(100, 0.1)), lam=0.1)
    >>> result = ga.train(data, n_starts=4)
    >>> result.is_minimum, len(result.starts)
    (True, 4)
    """
    for name, flag in {"escape": escape, "raise_on_failure": raise_on_failure}.items():
        check.flag(name, flag)
    plan = build_plan(data, init, risk, "adaptive", tol, max_iter, iteration)
    n_starts = check.integer("n_starts", n_starts, low=1)
    n_finish = check.integer("n_finish", n_finish, low=1, high=n_starts)
    check.require_memory("n_starts", n_starts, data.n_samples * data.n_tokens + data.dim, data.rank)
    if isinstance(survey, str) and survey != "auto":
        raise check.fail("survey", survey, SURVEY_VALUES)
    automatic = isinstance(survey, str) and n_starts >= SETTINGS.min_starts and _accepts_surveys(plan)
    ladder = None if isinstance(survey, str) else _require_ladder(survey, plan.options)

    starts = build_starts(plan, init, n_starts, seed)
    surveys = [] if ladder is None else _list_surveys(plan, starts, ladder, seed)
    file = None
    if checkpoint is not None:
        memory = np.asarray(starts[0][1].D) if isinstance(init, GampResult | GampState) else None
        file = _open_checkpoint(
            checkpoint, plan, starts, surveys, memory, n_finish, escape, "auto" if automatic else ladder
        )
    phase, n_tried, rounds = None, 0, SETTINGS.rounds
    if ladder is not None:
        phase, starts = _run_surveys(plan, surveys, bool(ladder), file)
        n_finish, rounds = min(len(starts), n_finish), SETTINGS.survey_rounds
        n_tried = 0 if phase.agreeing else max(0, min(len(starts), SETTINGS.finished_surveys) - n_finish)
    elif automatic:
        phase, _ = _run_surveys(plan, [], False, file)
    phases: dict[str, Resumable] = {} if phase is None else {"surveys": phase}
    begins = n_starts * (plan.options.search == "bounded" and plan.options.settling and ladder is None)
    descents = _run_descents(plan, starts[:begins], file, phases)
    stopped, beyond = None, None
    if descents is not None:
        starts, stopped, beyond = descents.continued(n_finish)
        rounds, n_tried = ((), 0) if descents.conclusive else (rounds, 1)
    runs = SuccessiveHalving(plan, starts, n_finish, escape, file, phases, rounds, n_tried, stopped, beyond)
    if descents is not None and descents.only:
        for loop in runs.loops.values():
            loop.end_at_start()
    result, loop = runs.run()
    if phase is not None and not ladder and (not automatic or _may_improve(plan, runs.records(result, loop))):
        result, loop = _refine_minimum(runs, phase, result, loop)
    records = runs.records(result, loop)
    message = f"{result.message} {summarize_starts(records, risk)}" if len(records) > 1 else result.message
    surveyed = () if phase is None else (*phase.records, *phase.refinements)
    values = vars(result) | {"starts": records, "surveys": surveyed, "message": message, "n_escapes": runs.n_escapes}
    return finish(TrainResult(**values), raise_on_failure, "train")


def _run_surveys(
    plan: Plan, surveys: list[PlannedSurvey], absolute: bool, file: CheckpointFile | None
) -> tuple[SurveyPhase, list[tuple[str, GampState]]]:
    """Return the survey phase after the surveys from all starts, and name and state of its different weights."""
    tree = None if file is None else file.load()
    phase = SurveyPhase(plan.data, plan.risk, surveys, absolute, None if tree is None else tree.get("surveys"))
    save = None if file is None else partial(file.save, lambda: {"surveys": phase})
    return phase, [_survey_start(plan, record) for record in distinct_surveys(plan.data, phase.run(save))]


def _run_descents(
    plan: Plan, starts: list[tuple[str, GampState]], file: CheckpointFile | None, phases: dict[str, Resumable]
) -> DescentPhase | None:
    """Return the descents from all starts, which are added to the phases of checkpoints; None without starts."""
    if not starts:
        return None
    tree = None if file is None else file.load()
    descents = phases["descents"] = DescentPhase(plan, starts, None if tree is None else tree.get("descents"))
    descents.run(None if file is None else partial(file.save, lambda: phases))
    return descents


def _survey_start(plan: Plan, record: SurveyRecord) -> tuple[str, GampState]:
    """Return name and state of the start of message passing from the weights of a survey."""
    name = f"{record.name}, survey at y = {record.parisi:.3g}"
    return name, initial_state(plan.data, record.Q, plan.options.V)


def _refine_minimum(
    runs: SuccessiveHalving, phase: SurveyPhase, result: GampResult, loop: Loop
) -> tuple[GampResult, Loop]:
    """Return the result after a survey from the lowest minimum and flips of single samples, and its loop.

    Flips are repeated while the loss falls. There is no refinement of runs without convergence or to `max_iter`, so
    that a checkpoint can continue them.
    """
    if not result.converged or runs.reached_limit:
        return result, loop
    plan = loop.plan
    record = phase.refine(result.Q, runs.save)
    if record is not None:
        result, loop = runs.add([_survey_start(plan, record)])
    for _ in range(SETTINGS.max_rounds):
        starts = flipped_starts(plan.data, plan.risk, result.Q, result.overlaps.V)
        if not starts or not result.converged or runs.reached_limit:
            break
        before = result.train_loss
        result, loop = runs.add(starts, hold=True)
        if not result.train_loss < (1 - SAME_LOSS) * before:
            break
    return result, loop


def _accepts_surveys(plan: Plan) -> bool:
    """Return whether `survey="auto"` may make a survey: data and options allow it, and it takes few nodes."""
    data = plan.data
    allowed = plan.options.predictable and not data.intercept
    return allowed and data.n_tokens * data.rank <= SETTINGS.max_fields and not is_convex(data)


def _may_improve(plan: Plan, records: tuple[StartRecord, ...]) -> bool:
    """Return whether few starts ended in the lowest minimum, although its loss is low: a lower minimum is likely.

    If the loss is high, because of noise or a wrong model, a lower minimum often has a larger test error.
    """
    n_agree = sum(record.agreement >= AGREEMENT for record in records)
    lowest = next(record.train_loss for record in records if record.kept)
    zero = risk_at(plan.data, np.zeros((plan.data.dim, plan.data.rank)), plan.risk).train_loss
    return n_agree <= SETTINGS.few_agree * len(records) and lowest <= SETTINGS.low_loss * zero


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


def _list_surveys(
    plan: Plan, starts: list[tuple[str, GampState]], ladder: tuple[float, ...], seed: int | np.random.Generator
) -> list[PlannedSurvey]:
    """Return name, weights (d, r) and Parisi parameter of all surveys; see `SurveyPhase`.

    Surveys begin from each start and, if `ladder` is (), from random starts.
    """
    surveys: list[PlannedSurvey] = [(name, state.Q, y) for name, state in starts for y in ladder or LADDER]
    if not ladder:
        more = several_starts(plan.data, "random", len(starts) + len(LADDER), seed, plan.risk)[len(starts) :]
        surveys += [(name, Q, y) for (name, Q), y in zip(more, LADDER, strict=True)]
    return surveys


def digest_run(data: Dataset, *options: Any) -> str:
    """Return a hash of a dataset with all of its tokens, and of options: arrays, or `repr` of others."""
    terms, groups = data.terms("exact"), [(rows, sources.tolist()) for rows, sources in data.groups]
    arrays = terms.params, terms.constant, data.positions, data.spectra, data.source_means
    tokens = hash_tokens(data.tokens), data.tokens.shape, data.tokens.dtype.str
    values = *arrays, *tokens, groups, data.penalty, data.loss, *options
    with np.printoptions(threshold=sys.maxsize, floatmode="unique"):  # losses and penalties may contain arrays
        words = [value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode() for value in values]
    return hash_bytes(*words)


def _open_checkpoint(
    checkpoint: str | Path | Checkpoint, plan: Plan, starts: list[tuple[str, GampState]], surveys: list[PlannedSurvey],
    first_memory: np.ndarray | None, *options: Any,
) -> CheckpointFile:  # fmt: skip
    """Return the checkpoint file of a run; its digest covers all arguments on which iterations depend."""
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    rule = plan.options.memory
    memory = rule.__module__, getattr(rule, "__qualname__", type(rule).__qualname__)
    arrays = [array for _, state in starts for array in (state.Q, state.V)] + [Q for _, Q, _ in surveys]
    arrays += [] if first_memory is None else [first_memory]
    iteration = replace(plan.options, memory=memory, callback=None)  # type: ignore[arg-type]
    given: tuple[Any, ...] = (plan.risk, *arrays, plan.tol, *vars(iteration).values(), *options)
    return CheckpointFile(checkpoint, digest_run(plan.data, *given))
