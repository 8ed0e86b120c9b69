"""`train`: the lowest minimum of the risk that message passing and descent find from several starts."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gamp_attention._kernels.user_classes import hash_user_classes
from gamp_attention._tools import check
from gamp_attention._tools.checkpoints import Checkpoint, CheckpointFile
from gamp_attention._tools.numerics import guard_call, hash_bytes
from gamp_attention._tools.progress import show_progress
from gamp_attention.extensions.train.runs import SETTINGS, Runs, StartRecord, summarize_starts
from gamp_attention.extensions.train.survey import LADDER, REFINED_AT, SurveyEnd, SurveyRecord
from gamp_attention.gamp.loop import Plan
from gamp_attention.gamp.options import IterationOptions
from gamp_attention.gamp.result import GampResult
from gamp_attention.gamp.run import Start, build_plan, build_starts
from gamp_attention.gamp.step import GampState
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.losses.kinks import has_kinks
from gamp_attention.problem.risk import is_convex
from gamp_attention.problem.starts import several_starts
from gamp_attention.results import finish


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
    survey: bool | str | float = "auto",
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
    survey : begin with survey propagation, which finds lower minima than message passing does from random starts
        (Lucibello, Saglietti and Lu, 2019; see `gamp_attention.extensions.train.survey`). If True, surveys are made
        from each start and from random starts, at Parisi parameters that are determined from the data, until two find
        the same weights. A positive number is the Parisi parameter y of one survey from each start. Message passing
        continues from surveys of different weights, which are compared after 30 iterations. If True,
        and if the loss is not convex, a survey and message passing from the lowest minimum follow; then single samples
        are moved to other minima of their proximal objectives, while the training loss falls. If "auto", only this
        continuation from the lowest minimum is made, if it mostly finds better weights: there are at least four starts,
        at most a quarter of them ended in (nearly) the selected weights, the training loss is at most a quarter of the
        loss at zero weights, samples have at most three fields, and survey propagation accepts data and `iteration`.
    escape : if the run ends at a saddle of the risk, leave it along the direction of lowest curvature and continue to a
        minimum.
    tol, max_iter, iteration : as for `run_gamp`.
    seed : seed of the random starts.
    checkpoint : file to which the state is written once a minute, more often at first, and from which the run resumes
        if the file exists; `Checkpoint(path, every)` sets the time between two writes. A resumed run makes the same
        iterations to the last bit. `max_iter` may be larger than before; all other arguments and the code of your loss
        and penalty must be the same.
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
    check.require_memory("n_starts", n_starts, data.n_samples * data.n_tokens + data.dim, data.rank)
    ladder, bounded = _require_ladder(survey, plan), plan.options.search == "bounded"
    allowed = plan.options.predictable and data.penalty.quadratic and not data.intercept
    few = data.n_tokens * data.rank <= SETTINGS.max_survey_fields and not is_convex(data)  # few nodes
    automatic = survey == "auto" and allowed and few and n_starts >= SETTINGS.min_starts
    starts, surveys, file = build_starts(plan, init, n_starts, seed), list[tuple[str, np.ndarray, float]](), None
    if ladder is not None:
        surveys = [(name, state.Q, y) for name, state in starts for y in ladder or LADDER]
    if ladder == ():
        more = several_starts(data, "random", n_starts + len(LADDER), seed, risk)[n_starts:]
        surveys += [(name, Q, y) for (name, Q), y in zip(more, LADDER, strict=True)]
    if checkpoint is not None:
        memory = np.asarray(starts[0][1].D) if isinstance(init, GampResult | GampState) else None
        kind = "auto" if automatic else ladder
        file = _open_checkpoint(checkpoint, plan, starts, memory, escape, kind, *(Q for _, Q, _ in surveys))
    runs = Runs(plan, escape, file)
    for planned in surveys:
        if ladder or not runs.agree():
            runs.make_survey(*planned, bool(ladder))
    if surveys:
        runs.begin(runs.survey_starts())
        runs.compare(SETTINGS.survey_rounds, 0 if runs.agree() else SETTINGS.finished_surveys - 1)
    elif bounded and plan.options.settling and not has_kinks(data.loss, data.terms(risk).params):
        runs.descend(starts)
    else:
        runs.begin(starts)
        runs.compare(SETTINGS.rounds, 0)
    result = runs.select()
    if ladder == () or (automatic and runs.may_improve(result)):
        result = _refine_minimum(plan, runs, result)
    records = runs.records(result)
    message = f"{result.message} {summarize_starts(records)}" if len(records) > 1 else result.message
    values = vars(result) | {"starts": records, "surveys": tuple(runs.surveys), "message": message}
    return finish(TrainResult(**values, n_escapes=runs.n_escapes), raise_on_failure, "train")


def _refine_minimum(plan: Plan, runs: Runs, result: GampResult) -> GampResult:
    """Return the result after a survey from the lowest minimum and flips of single samples, unless the loss is convex.

    There is no refinement of runs without convergence or to `max_iter`, so that a checkpoint can continue them.
    """
    if is_convex(plan.data) or not result.converged or runs.reached_limit:
        return result
    record = runs.make_survey("minimum", result.Q, REFINED_AT, False)
    if record.ending is not SurveyEnd.FAILED:
        runs.add([runs.survey_start(record)])
        result = runs.select()
    return runs.flip_samples(result)


def _require_ladder(survey: Any, plan: Plan) -> tuple[float, ...] | None:
    """Return the Parisi parameters of the surveys: None for no surveys, or () if the data determine them."""
    if survey is False or survey is None or (isinstance(survey, str) and survey == "auto"):
        return None
    if not plan.options.predictable:
        raise check.fail("survey", survey, "False if `iteration` has another response or memory than the default")
    if not plan.data.penalty.quadratic or plan.data.intercept:
        raise check.fail("survey", survey, "False for intercepts, and for penalties that are not quadratic")
    if survey is True:
        return ()
    return (check.real("survey", survey, low=0, strict=True),)


def _open_checkpoint(
    checkpoint: str | Path | Checkpoint, plan: Plan, starts: list[tuple[str, GampState]], *options: Any
) -> CheckpointFile:
    """Return the checkpoint file of a run; its digest covers all arguments on which iterations depend."""
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    rule = plan.options.memory
    memory = rule.__module__, getattr(rule, "__qualname__", type(rule).__qualname__)
    iteration = replace(plan.options, memory=memory, callback=None)  # type: ignore[arg-type]
    terms, groups = plan.data.terms("exact"), [(rows, sources.tolist()) for rows, sources in plan.data.groups]
    data, tokens = plan.data, plan.data.tokens
    of_tokens = hash_bytes(np.ascontiguousarray(tokens).data)
    values = [terms.params, terms.constant, data.positions, data.spectra, data.source_means, of_tokens]
    values += [tokens.shape, tokens.dtype.str, groups, data.penalty, data.loss, plan.risk, plan.tol]
    values += [array for _, state in starts for array in (state.Q, state.V)] + [*vars(iteration).values(), *options]
    values += hash_user_classes((data.penalty, data.loss))
    with np.printoptions(threshold=sys.maxsize, floatmode="unique"):  # losses and penalties may contain arrays
        words = [value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode() for value in values]
    return CheckpointFile(checkpoint, hash_bytes(*words))
