"""Survey propagation: message passing over clusters of minima, which finds low minima from random starts.

Generalized approximate survey propagation (Lucibello, Saglietti and Lu, 2019) is GAMP with one step of replica symmetry
breaking: besides the weights Q and the variances V, it has the covariance U of the fields between the minima of a
cluster; see `survey_step`. For y = 0 and U = 0 the iteration is GAMP. If U goes to zero, all minima of the cluster
coincide: then it has found a fixed point of GAMP, for example a minimum that no random start of GAMP reaches.

Parisi parameters are in units of the inverse standard deviation over samples of the Moreau envelope at weights without
information, so that they do not depend on the scale of the loss.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from gamp_attention._tools import progress
from gamp_attention._tools.numerics import symmetrize
from gamp_attention._tools.checkpoints import Resumable
from gamp_attention.extensions.train.survey_averages import average_fields, first_variances, quadratic_clusters
from gamp_attention.gamp.step import averaged_memory, initial_state
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.denoisers.input import field_variances, products
from gamp_attention.problem.denoisers.newton import NotPositiveDefinite
from gamp_attention.problem.passes import TokenMatrix, next_memory
from gamp_attention.problem.risk import is_convex, risk_at
from gamp_attention.problem.sources import sum_over_tokens
from gamp_attention.problem.stores import join_parts, token_blocks
from gamp_attention.results import Result

LADDER = (1.5, 3.0)  # Parisi parameters of the surveys from each start; then one random start for each of them
REFINED_AT = 3.0  # Parisi parameter of the survey from the lowest minimum
EQUAL_LOSSES = 1e-6  # standard deviation of losses, in units of their mean, below which all samples count as equal


@dataclass(frozen=True)
class SurveyState:
    """State of survey propagation between two iterations."""

    Q: np.ndarray  # (d, r) weights
    V: np.ndarray  # (S, r, r) variances of the fields within a minimum; S = L, or the number of sources of a mixture
    U: np.ndarray  # (S, r, r) covariances of the fields between the minima of a cluster
    D: np.ndarray  # (n, L, r) Onsager memory
    z: np.ndarray | None = None  # (n, K, L r) minimizers at the nodes of the inner field; None at first


def survey_step(
    data: Dataset, risk: str, state: SurveyState, beta: float, parisi: float, jumps: bool = False
) -> SurveyState:
    """Return the state after one iteration of survey propagation with step β at the Parisi parameter y.

    Eq. :eq:`survey-step`. With averages over the inner field ω + √U u in `survey_averages`,

        ω_l = X̃_l Q − D_l,   V̂_l = (1/d) Σ_μ R̄_l,   Δ_l = (1/d) Σ_μ Δ_{μ,l},   η = mean weights for the force X̃ᵀḡ
        Q ← (1−β) Q + β η,   V ← (1−β) V + β W,   U ← (1−β) U + β W',   D ← (1−β) D + β (W + y W') ḡ

    With `jumps`, minima at the nodes of the inner field are searched for globally, and V̂ contains the jumps of the
    minimum between nodes. Raises NotPositiveDefinite if V is no longer positive definite.
    """
    Q, V, U = state.Q, state.V, state.U
    params, parts, force = data.terms(risk).params, list[Any](), np.zeros(Q.shape)
    for rows, sources, block in token_blocks(data.matrix.tokens, data.groups):
        matrix = TokenMatrix(block, data.matrix.positions)
        omega = matrix.fields(Q) - state.D[rows]
        start = None if state.z is None else state.z[rows]
        averages, z = average_fields(data.loss, params[rows], omega, V[sources], U[sources], parisi, start, jumps)
        force += matrix.back_project(averages.g)
        parts.append((averages, z))
    averages, z = map(join_parts, zip(*parts, strict=True))
    V_hat, spread = (
        symmetrize(sum_over_tokens(data.groups, data.n_sources, values)) / data.dim
        for values in (averages.response, averages.spread)
    )
    new = quadratic_clusters(data.penalty, data.spectra, V_hat, spread, parisi)
    eta, spectra = products(new.response, force + products(new.precision, Q)), data.spectra
    inner, of_clusters = (np.broadcast_to(spectra, (len(spectra), len(x))) for x in (new.inner, new.covariance))
    W = field_variances(data.penalty, inner, new.inner)
    W_inner = symmetrize(np.einsum("li,iab->lab", of_clusters, new.covariance)) / len(new.covariance)
    D = next_memory(data.groups, state.D, averages.g, averaged_memory, V, W + parisi * W_inner, beta)
    Q, V, U = ((1 - beta) * old + beta * to for old, to in ((Q, eta), (V, W), (U, W_inner)))
    return SurveyState(Q, V, U, D, z)


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

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except Q as plain data."""
        return {name: value for name, value in super().to_dict().items() if name != "Q"}


@dataclass(frozen=True)
class SurveySettings:
    """Step and ends of surveys; spreads are in units of the trace of the fields' second moments."""

    step: float = 0.4  # step β
    n_iter: int = 45  # maximum number of iterations
    collapsed: float = 1e-2  # spread below which a cluster has collapsed
    # iteration from which a survey ends if its spread is above `wide`, because it will not collapse
    late: int = 30
    wide: float = 0.2
    rest: float = 3e-3  # relative change of the weights in an iteration below which a survey may have come to rest
    spread_at_rest: float = 2e-2  # the same for the spread; above it, a survey collapses slowly


class Survey(Resumable):
    """A survey, which can be interrupted between two iterations, and resumed."""

    state: SurveyState | None  # None before its first iteration
    t: int  # number of its iterations

    def __init__(self, data: Dataset, risk: str, settings: SurveySettings = SurveySettings()) -> None:
        self._data, self._risk, self._settings, self.state, self.t = data, risk, settings, None, 0

    @cached_property
    def _first(self) -> tuple[np.ndarray, np.ndarray, float]:
        """V and U from which surveys begin, and the unit of the Parisi parameter."""
        data, terms = self._data, self._data.terms(self._risk)
        samples = [(data.loss, terms.params[rows], sources, float(data.dim)) for rows, sources in data.groups]
        V, U, envelopes = first_variances(data.penalty, data.spectra, samples, data.rank)
        losses = np.concatenate(envelopes) + terms.constant
        deviation, mean = float(np.std(losses)), float(np.mean(np.abs(losses)))
        scale = deviation if deviation > EQUAL_LOSSES * mean else mean
        return V, U, 1 / scale if np.isfinite(scale) and scale > 0 else 1.0

    def run(
        self, name: str, Q: np.ndarray, parisi: float, absolute: bool, save: Callable[[], None], title: str
    ) -> SurveyRecord:
        """Return the record of the survey from weights Q (d, r), or of the survey of the checkpoint, which continues.

        It ends as soon as it has come to rest, or if its spread is still large at a late iteration; but not from a
        minimum, where it first seems to rest. `parisi` is in units of the data unless it is `absolute`.
        """
        data, settings = self._data, self._settings
        V, U, unit = self._first
        if self.state is None:
            start = initial_state(data, Q)
            self.state = SurveyState(start.Q, V, U, start.D)
        y = parisi if absolute else parisi * unit
        jumps = data.n_tokens * data.rank == 1 and not is_convex(data)  # searches of one field are cheap
        ending, rests = SurveyEnd.SPREAD, False
        spread = self._spread() if self.t else np.inf
        while self.t < settings.n_iter and not rests and ending is SurveyEnd.SPREAD:
            save()
            if progress.is_shown():
                progress.describe(f"survey {title}from {name}, iteration {self.t}, spread {spread:.1e}")
            try:
                after = survey_step(data, self._risk, self.state, settings.step, y, jumps)
            except (np.linalg.LinAlgError, NotPositiveDefinite):
                ending = SurveyEnd.FAILED
                break
            if not (np.isfinite(after.Q).all() and np.isfinite(after.U).all()):
                ending = SurveyEnd.FAILED
                break
            change = float(np.linalg.norm(after.Q - self.state.Q)) / max(float(np.linalg.norm(after.Q)), 1e-300)
            self.state, self.t, before = after, self.t + 1, spread
            spread = self._spread()
            if spread < settings.collapsed:
                ending = SurveyEnd.COLLAPSED
            at_rest = change < settings.rest and abs(spread - before) < settings.spread_at_rest * spread
            rests = at_rest or (self.t >= settings.late and spread > settings.wide)
            rests &= name != "minimum"
        Q, n_iter = self.state.Q, self.t
        self.state, self.t = None, 0
        return SurveyRecord(name, y, ending, n_iter, spread, risk_at(data, Q, self._risk).train_loss, Q)

    def _spread(self) -> float:
        """Return the trace of U, in units of the trace of the second moments of the fields of the weights."""
        data, state = self._data, self.state
        assert state is not None
        spectra = np.broadcast_to(data.spectra, (len(data.spectra), data.dim))
        moments = np.einsum("li,ia->", spectra, state.Q**2) / data.dim
        return float(np.trace(state.U, axis1=1, axis2=2).sum() / max(moments, np.finfo(float).tiny))
