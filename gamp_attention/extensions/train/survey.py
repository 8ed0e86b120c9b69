"""Survey propagation: message passing over clusters of minima, which finds low minima from random starts.

Generalized approximate survey propagation (Lucibello, Saglietti and Lu, 2019) is GAMP with one step of replica symmetry
breaking. Besides the weights Q and the variances V, it has the covariance U of the fields between the minima of a
cluster. With the averages of `gamp_attention.extensions.train.survey_averages` at the Parisi parameter y, one iteration
with step β is

    ω_l = X̃_l Q − D_l
    ḡ, R̄, Δ_μ = averages of the output denoiser over the inner field ω + √U u
    V̂_l = (1/d) Σ_μ R̄_l,   Δ_l = (1/d) Σ_μ Δ_{μ,l}
    η, C̄, Δx = averages of the input denoiser, with response Σ_l γ_l V̂_l and spread Σ_l γ_l Δ_l
    W_l = (1/d) Σ_i γ_l^i C̄_i,   W'_l = (1/d) Σ_i γ_l^i Δx_i
    Q ← (1−β) Q + β η,   V ← (1−β) V + β W,   U ← (1−β) U + β W',   D ← (1−β) D + β (W + y W') ḡ

For y = 0 and U = 0 this is the iteration of GAMP. If U goes to zero, all minima of the cluster coincide: then survey
propagation has found a fixed point of GAMP, for example a minimum that no random start of GAMP reaches.

`SurveyPhase` is the survey phase of `train`. From each start it makes a few surveys, one for each Parisi parameter
of a ladder, and then the same from random starts; message passing continues from their weights. The ladder is in units
of the inverse standard deviation over samples of the Moreau envelope at weights without information, so that it does
not depend on the scale of the loss. Smaller y leads to typical clusters of higher loss, and larger y to the traps of
GAMP. Two surveys that find the same weights end the phase. Unless the loss is convex, a further survey follows after
message passing: it begins from the lowest minimum so far, which message passing then replaces if it finds a lower
minimum. Finally single samples are flipped (`gamp_attention.extensions.train.flips`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import combinations
from typing import Any, ClassVar

import numpy as np

from gamp_attention._tools import check, progress
from gamp_attention._tools.display import DisplayMixin, count_noun
from gamp_attention._tools.numerics import guard_call, symmetrize
from gamp_attention._tools.snapshots import Resumable, Tree
from gamp_attention.extensions.train.survey_averages import (
    InnerAverages,
    average_fields,
    first_variances,
    inner_nodes,
    update_cluster,
)
from gamp_attention.gamp.step import averaged_memory, initial_state
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.problem.denoisers.newton import NotPositiveDefinite
from gamp_attention.problem.passes import TokenMatrix, next_memory
from gamp_attention.problem.risk import is_convex, risk_at
from gamp_attention.problem.sources import sum_over_tokens
from gamp_attention.problem.stores import join_parts, token_blocks
from gamp_attention.problem.symmetries import agreement_of
from gamp_attention.results import Columns, Result

# Parisi parameters of the surveys from each start, in units of `initial_survey`; then one random start for each of them
LADDER = (1.5, 3.0)
REFINED_AT = 3.0  # Parisi parameter of the survey from the lowest minimum, in the same units
SAME_WEIGHTS = 0.99  # smallest overlap of the weights of two surveys that count as equal
STEP = 0.4  # step β of the iterations of a survey
N_ITER = 45  # maximum number of iterations of a survey
COLLAPSED = 1e-2  # trace of U, in units of the trace of the fields' second moments, below which a cluster has collapsed
# iteration from which a survey ends if its spread is above WIDE_SPREAD, because it will not collapse
LATE_ITERATION, WIDE_SPREAD = 30, 0.2
AT_REST = 3e-3  # relative change of the weights in an iteration below which a survey may have come to rest
SPREAD_AT_REST = 2e-2  # the same for the spread; above it, a survey collapses slowly
EQUAL_LOSSES = 1e-6  # standard deviation of losses, in units of their mean, below which all samples count as equal


PlannedSurvey = tuple[str, np.ndarray, float]  # name of the start, weights (d, r), Parisi parameter
Save = Callable[[], None] | None


@dataclass(frozen=True, eq=False)
class SurveyState(DisplayMixin):
    """State of survey propagation between two iterations.

    Attributes
    ----------
    Q : (d, r) weights.
    V : (S, r, r) variances of the fields within a minimum; S = L, or the number of sources of a mixture.
    U : (S, r, r) covariances of the fields between the minima of a cluster.
    D : (n, L, r) Onsager memory.
    z : (n, K, L r) minimizers at the nodes of the inner field; None before the first iteration.
    """

    Q: np.ndarray
    V: np.ndarray
    U: np.ndarray
    D: np.ndarray
    z: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class SurveyReport(DisplayMixin):
    """Report of an iteration of survey propagation on the state at which it started.

    Attributes
    ----------
    omega, averages : (n, L, r) centers of the inner fields, and averages of the output denoiser over the inner fields.
    V_hat, spread : (S, r, r) V̂ and Δ, summed over samples and divided by d.
    W, W_inner : (S, r, r) new V and U before they are averaged over iterations.
    """

    omega: np.ndarray
    averages: InnerAverages
    V_hat: np.ndarray
    spread: np.ndarray
    W: np.ndarray
    W_inner: np.ndarray


@guard_call
def survey_step(
    data: Dataset, risk: str, state: SurveyState, damping: float, parisi: float, jumps: bool = False
) -> tuple[SurveyState, SurveyReport]:
    """Return the state after one iteration of survey propagation, as a pure function: the given state is not changed.

    Eq. :eq:`survey-step`. The equations of the iteration are at the top of `gamp_attention.extensions.train.survey`
    (Lucibello, Saglietti and Lu, 2019).

    Parameters
    ----------
    data, risk : the samples, and "exact" or "asymptotic".
    state : state before the iteration, for example `initial_survey(data, risk, Q)[0]`.
    damping : step β in (0, 1].
    parisi : Parisi parameter y >= 0, which multiplies losses of single samples.
    jumps : whether minima at the nodes of the inner field are searched for globally, and V̂ contains the jumps of the
        minimum between nodes. Then fixed points are those of one step of replica symmetry breaking, but an iteration
        takes longer; `train` uses it for losses of a single field that are not convex. U must be positive definite.

    Returns
    -------
    SurveyState, SurveyReport : the next state, and a report on `state`.

    Raises
    ------
    TypeError : if an argument does not have the documented type.
    ValueError : if `risk` is unknown, `damping` is not in (0, 1], `parisi` is negative, or an array of `state` does not
        fit the data.
    NotPositiveDefinite : if V is no longer positive definite.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    >>> state, unit = ga.initial_survey(data, "exact", np.zeros((100, 1)))
    >>> state, report = ga.survey_step(data, "exact", state, damping=0.4, parisi=1.5 * unit)
    >>> state.Q.shape, state.U.shape, report.V_hat.shape
    ((100, 1), (2, 1, 1), (2, 1, 1))
    """
    require_dataset(data).terms(risk)
    beta = check.real("damping", damping, low=0, high=1, strict=True)
    y = check.real("parisi", parisi, low=0)
    check.flag("jumps", jumps)
    _check_shapes(data, state)
    Q, V, U = state.Q, state.V, state.U
    params, parts, force = data.terms(risk).params, list[Any](), np.zeros(Q.shape)
    for rows, sources, block in token_blocks(data.matrix.tokens, data.groups):
        matrix = TokenMatrix(block, data.matrix.positions)
        omega = matrix.fields(Q) - state.D[rows]
        start = None if state.z is None else state.z[rows]
        averages, z = average_fields(data.loss, params[rows], omega, V[sources], U[sources], y, start, jumps)
        force += matrix.back_project(averages.g)
        parts.append((omega, averages, z))
    omega, averages, z = map(join_parts, zip(*parts, strict=True))
    V_hat, spread = (
        symmetrize(sum_over_tokens(data.groups, data.n_sources, values)) / data.dim
        for values in (averages.response, averages.spread)
    )
    new = update_cluster(data.penalty, data.spectra, V_hat, spread, force, Q, V, U, y, beta)
    D = next_memory(data.groups, state.D, averages.g, averaged_memory, V, new.W + y * new.W_inner, beta)
    report = SurveyReport(omega, averages, V_hat, spread, new.W, new.W_inner)
    return SurveyState(new.Q, new.V, new.U, D, z), report


def _check_shapes(data: Dataset, state: SurveyState) -> None:
    """Raise if the arrays of a state do not have the shapes of the data: compiled code does not check bounds."""
    if not isinstance(state, SurveyState):
        raise check.fail("state", state, "a SurveyState, such as initial_survey(data, risk, Q)[0]", TypeError)
    n, L, S, r = data.n_samples, data.n_tokens, data.n_sources, data.rank
    shapes = {"Q": (data.dim, r), "V": (S, r, r), "U": (S, r, r), "D": (n, L, r)}
    if state.z is not None:
        shapes["z"] = (n, len(inner_nodes(L * r)[0]), L * r)
    for name, shape in shapes.items():
        check.require_shape(f"state.{name}", getattr(state, name), shape)


@guard_call
def initial_survey(data: Dataset, risk: str, Q: np.ndarray) -> tuple[SurveyState, float]:
    """Return a state for weights Q (d, r) from which survey propagation begins, and a unit of the Parisi parameter.

    The iteration is due to Lucibello et al. (2019); the first variances are a choice of this package.

    U is the second moment of the fields of weights with unit variance, and V the self-consistent variance of uniformly
    weighted inner fields around zero, at most the initial variance of message passing. The unit is the inverse standard
    deviation over samples of the mean Moreau envelope of these fields, or the inverse mean if all samples are equal, as
    in logistic regression.

    Parameters
    ----------
    data, risk : the samples, and "exact" or "asymptotic".
    Q : (d, r) weights.

    Returns
    -------
    SurveyState, and the unit of `parisi`, positive.

    Raises
    ------
    ValueError : if `Q` does not have the documented shape or is not finite, or `risk` is unknown.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    >>> state, unit = ga.initial_survey(data, "exact", data.Q_star)
    >>> state.U.shape, unit > 0
    ((2, 1, 1), True)
    """
    start, (V, U, unit) = initial_state(require_dataset(data), Q), _first_variances(data, risk)
    return SurveyState(start.Q, V, U, start.D), unit


def _first_variances(data: Dataset, risk: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the first V and U of surveys, for any weights, and the unit of the Parisi parameter."""
    terms = data.terms(risk)
    samples = [(data.loss, terms.params[rows], sources, float(data.dim)) for rows, sources in data.groups]
    V, U, envelopes = first_variances(data.penalty, data.spectra, samples, data.rank)
    losses = np.concatenate(envelopes) + terms.constant
    deviation, mean = float(np.std(losses)), float(np.mean(np.abs(losses)))
    scale = deviation if deviation > EQUAL_LOSSES * mean else mean
    return V, U, 1 / scale if np.isfinite(scale) and scale > 0 else 1.0


class SurveyEnd(Enum):
    """Ending of a survey.

    Attributes
    ----------
    COLLAPSED : U went to zero, so that the weights are near a fixed point of message passing.
    SPREAD : it came to rest or reached its last iteration, and the cluster still consists of several minima.
    FAILED : V was no longer positive definite, or numbers were not finite.
    """

    COLLAPSED = "collapsed"
    SPREAD = "spread"
    FAILED = "failed"


@dataclass(frozen=True, eq=False)
class SurveyRecord(Result):
    """Outcome of one survey of `train(survey=...)`, from whose weights message passing continues.

    Attributes
    ----------
    name : name of the start from which the survey began; "minimum" for the survey from the lowest minimum.
    parisi : Parisi parameter y, the inverse of a loss per sample.
    ending : reason for its end.
    n_iter : number of iterations.
    spread : trace of U in units of the trace of the fields' second moments, at the end.
    train_loss : training loss ε_t of its weights.
    Q : (d, r) its weights.
    """

    name: str
    parisi: float
    ending: SurveyEnd
    n_iter: int
    spread: float
    train_loss: float
    Q: np.ndarray

    _columns: ClassVar[Columns] = {
        "y": lambda record: f"{record.parisi:.3g}",
        "spread": lambda record: f"{record.spread:.1e}",
        "ε_t": lambda record: f"{record.train_loss:.6f}",
    }

    def _heading(self) -> str:
        return f"{type(self).__name__}: {self.name}, {self.ending.value} after {count_noun(self.n_iter, 'iteration')}"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except Q as plain data."""
        return {name: value for name, value in super().to_dict().items() if name != "Q"}


def distinct_surveys(data: Dataset, records: Sequence[SurveyRecord]) -> list[SurveyRecord]:
    """Return the surveys that did not find the same weights as an earlier survey, and the first in any case."""
    distinct = list[SurveyRecord]()
    for record in records:
        if all(agreement_of(data, record.Q, other.Q) < SAME_WEIGHTS for other in distinct):
            distinct.append(record)
    return distinct


class SurveyPhase(Resumable):
    """Surveys from several starts, one after the other, until two find the same weights, and from a minimum.

    Parameters
    ----------
    data, risk : the samples, and "exact" or "asymptotic".
    surveys : name, weights (d, r) and Parisi parameter of each survey; the parameter is in units of `initial_survey`,
        unless `absolute` is True.
    absolute : whether the Parisi parameters are absolute. Then `refine` makes no survey.
    tree : snapshot from which the phase continues; None if it begins.
    """

    records: list[SurveyRecord]  # finished surveys from the starts
    refinements: list[SurveyRecord]  # the survey from a minimum, if it has finished
    state: SurveyState | None  # state of the current survey; None before its first iteration
    t: int  # number of its iterations

    def __init__(
        self, data: Dataset, risk: str, surveys: Sequence[PlannedSurvey], absolute: bool, tree: Tree = None
    ) -> None:
        self._data, self._risk, self._surveys, self._absolute = data, risk, surveys, absolute
        self._jumps = data.n_tokens * data.rank == 1 and not is_convex(data)  # searches of one field are cheap
        self.records, self.refinements, self.state, self.t = [], [], None, 0
        if tree is not None:
            self.restore(tree)

    def run(self, save: Save = None) -> list[SurveyRecord]:
        """Make the surveys until two find the same weights, or all if their parameters are given; return their records.

        `save` is called before each iteration, to write a checkpoint.
        """
        while len(self.records) < len(self._surveys) and (self._absolute or not self.agreeing):
            of = f"{len(self.records) + 1} of at most {len(self._surveys)} "
            self.records.append(self._survey(*self._surveys[len(self.records)], of, save, may_rest=True))
        return self.records

    def refine(self, Q: np.ndarray, save: Save = None) -> SurveyRecord | None:
        """Return the survey from a minimum Q (d, r).

        None if the loss is convex, if all Parisi parameters are given, or if the survey failed.
        """
        if self._absolute or is_convex(self._data):
            return None
        if not self.refinements:
            self.refinements.append(self._survey("minimum", Q, REFINED_AT, "", save, may_rest=False))
        record = self.refinements[0]
        return None if record.ending is SurveyEnd.FAILED else record

    @cached_property
    def _first(self) -> tuple[np.ndarray, np.ndarray, float]:
        return _first_variances(self._data, self._risk)

    @property
    def agreeing(self) -> list[SurveyRecord]:
        """First two surveys that found the same weights; empty if there are none."""
        finished = [record for record in self.records if record.ending is not SurveyEnd.FAILED]
        for record, other in combinations(finished, 2):
            if agreement_of(self._data, record.Q, other.Q) >= SAME_WEIGHTS:
                return [record, other]
        return []

    def _survey(self, name: str, Q: np.ndarray, parisi: float, number: str, save: Save, may_rest: bool) -> SurveyRecord:
        """Return the record of a survey, or continue with the survey of the checkpoint.

        If it `may_rest`, it ends as soon as it has come to rest, or if its spread is still large at a late iteration;
        from a minimum it first seems to rest there.
        """
        data = self._data
        V, U, unit = self._first
        if self.state is None:
            start = initial_state(data, Q)
            self.state = SurveyState(start.Q, V, U, start.D)
        y = parisi if self._absolute else parisi * unit
        ending, rests = SurveyEnd.SPREAD, False
        spread = spread_of(data, self.state) if self.t else np.inf
        while self.t < N_ITER and not rests and ending is SurveyEnd.SPREAD:
            if save is not None:
                save()
            if progress.is_shown():
                progress.describe(f"survey {number}from {name}, iteration {self.t}, spread {spread:.1e}")
            try:
                after, _ = survey_step(data, self._risk, self.state, STEP, y, self._jumps)
            except (np.linalg.LinAlgError, NotPositiveDefinite):
                ending = SurveyEnd.FAILED
                break
            if not (np.isfinite(after.Q).all() and np.isfinite(after.U).all()):
                ending = SurveyEnd.FAILED
                break
            change = float(np.linalg.norm(after.Q - self.state.Q)) / max(float(np.linalg.norm(after.Q)), 1e-300)
            self.state, self.t, before = after, self.t + 1, spread
            spread = spread_of(data, after)
            at_rest = change < AT_REST and abs(spread - before) < SPREAD_AT_REST * spread
            rests = may_rest and (at_rest or (self.t >= LATE_ITERATION and spread > WIDE_SPREAD))
            ending = SurveyEnd.COLLAPSED if spread < COLLAPSED else ending
        Q, n_iter = self.state.Q, self.t
        self.state, self.t = None, 0
        return SurveyRecord(name, y, ending, n_iter, spread, risk_at(data, Q, self._risk).train_loss, Q)


def spread_of(data: Dataset, state: SurveyState) -> float:
    """Return the trace of U, in units of the trace of the second moments of the fields of the weights."""
    moments = np.einsum("li,ia->", np.broadcast_to(data.spectra, (len(data.spectra), data.dim)), state.Q**2) / data.dim
    return float(np.trace(state.U, axis1=1, axis2=2).sum() / max(moments, np.finfo(float).tiny))
