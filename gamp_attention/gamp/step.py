"""Generalized Approximate Message Passing: the iteration, as a pure step on an explicit state.

With X̃ = (x + p)/√d, step β and the denoiser of `gamp_attention.problem.denoisers.output`, one iteration is

    ω_l = X̃_l Q − D_l                                  local fields less their memory
    z   = prox(ω; V),   g_l = V_l⁻¹(z_l − ω_l)           output denoiser
    V̂_l = −(1/d) Σ_μ ∂g_l/∂ω_l,   A_i = Σ_l γ_l^i V̂_l     its response
    b   = X̃ᵀg + A Q,   η_i = argmin r(x) + ½ xᵀA_i x − b_iᵀx,   C_i = ∂η_i/∂b_i    input denoiser
    W_l = (1/d) Σ_i γ_l^i C_i
    Q ← (1−β) Q + β η,   V ← (1−β) V + β W,   D ← (1−β) D + β W g

Without damping, β = 1, this is generalized approximate message passing (Rangan, 2011) with vector-valued fields
(Javanmard and Montanari, 2013). D is the Onsager term. The damped Q depends on every earlier b, and the moving average
of W g is the exact Onsager term of this dependence. D = V g is not: with it, damped iterations neither converge nor
follow state evolution.

A memory rule computes D of the next iteration. It is called with D of this iteration, V g and W g, all (n, L, r), and
the step β; V is already averaged over iterations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.display import DisplayMixin
from gamp_attention._tools.numerics import guard_call, symmetrize
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.problem.denoisers.input import initial_variances, input_step
from gamp_attention.problem.denoisers.newton import LAST_STEP
from gamp_attention.problem.denoisers.output import Denoised
from gamp_attention.problem.denoisers.prox import MAX_STARTS
from gamp_attention.problem.passes import Memory, Pass, next_memory, pass_over
from gamp_attention.problem.risk import gradient_norm, normalized_risk, on_kinks, risk_at, smallest_subgradient
from gamp_attention.problem.sources import apply_by_source, sum_over_tokens


def averaged_memory(D: np.ndarray, Vg: np.ndarray, Wg: np.ndarray, beta: float) -> np.ndarray:
    """Return (1−β) D + β W g, the exact Onsager term of the damped iteration.

    Eq. :eq:`memory`. For the undamped iteration this is the Onsager term of Rangan (2011).
    """
    return (1 - beta) * D + beta * Wg


def naive_memory(D: np.ndarray, Vg: np.ndarray, Wg: np.ndarray, beta: float) -> np.ndarray:
    """Return V g, the Onsager term of the undamped iteration, which is wrong for β < 1: included to show its failure.

    Eq. :eq:`naive-memory`.
    """
    return Vg


@dataclass(frozen=True, eq=False)
class StepReport(DisplayMixin):
    """Report of an iteration on the state at which it started.

    Attributes
    ----------
    train_loss, gradient_norm : ε_t and ‖∇R‖_F/(λ√d) at state.Q. If the penalty has kinks, weights that should be at a
        kink are first moved there by `on_kinks`. Runs with a tolerance do this only if the norm is near the tolerance;
        before, both are estimates, see `evaluate_risk`.
    omega, denoised : (n, L, r) centers of the proximal step, and the result of the output denoiser.
    V_hat : (L, r, r) response used for A.
    W : (L, r, r) new variances before they are averaged over iterations.
    """

    train_loss: float
    gradient_norm: float
    omega: np.ndarray
    denoised: Denoised
    V_hat: np.ndarray
    W: np.ndarray


def evaluate_risk(data: Dataset, risk: str, Q: np.ndarray, out: Pass, exact_below: float) -> tuple[float, float]:
    """Return training loss and gradient norm at weights Q (d, r), from the pass of the iteration that started there.

    If the penalty has kinks, they are evaluated at the weights returned by `on_kinks`, which takes another pass over
    the data. To save this pass, the training loss at Q is returned and the norm is estimated with the gradient of the
    losses at Q, if the estimate is larger than `exact_below`.
    """
    loss = normalized_risk(data, Q, np.sum(out.losses + data.terms(risk).constant))
    moved = Q if data.penalty.smooth else on_kinks(data.penalty, Q, out.smooth)[0]
    norm = gradient_norm(data, smallest_subgradient(data.penalty, moved, out.smooth))
    if data.penalty.smooth or norm > exact_below:
        return loss, norm
    at = risk_at(data, moved, risk)
    return at.train_loss, at.gradient_norm


@dataclass(frozen=True, eq=False)
class GampState(DisplayMixin):
    """State of message passing between two iterations.

    Attributes
    ----------
    Q : (d, r) weights.
    V : (L, r, r) variances of the fields. For mixtures, V, V_hat and W have a matrix for each of the S sources.
    D : (n, L, r) Onsager memory.
    z : (n, L, r) minimizers of the last proximal step, from which the next proximal step starts; None before the first.
    """

    Q: np.ndarray
    V: np.ndarray
    D: np.ndarray
    z: np.ndarray | None = None


def initial_state(data: Dataset, Q: ArrayLike, V: ArrayLike | None = None) -> GampState:
    """Return the state before the first iteration of message passing (Rangan, 2011), with a memory D of zero.

    Parameters
    ----------
    data : the samples.
    Q : (d, r) weights.
    V : (L, r, r) variances; if None, V_l = tr Σ_l/(2dλ) times the identity matrix.

    Returns
    -------
    GampState

    Raises
    ------
    TypeError : if `data` is not a dataset, or `Q` or `V` not an array of real numbers.
    ValueError : if `Q` or `V` does not have the documented shape or is not finite.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    >>> state = ga.initial_state(data, data.Q_star)
    >>> state.Q.shape, state.V.shape, bool(state.D.any())
    ((100, 1), (2, 1, 1), False)
    """
    S, L, r = require_dataset(data).n_sources, data.n_tokens, data.rank
    Q = check.array("Q", Q, (data.dim, r))
    if V is not None:
        V = check.array("V", V, (S, r, r))
    else:
        V = initial_variances(data.spectra.mean(axis=1), data.penalty.strength, r)
    return GampState(np.array(Q), np.array(V), np.zeros((data.n_samples, L, r)))


def near_fixed_point(data: Dataset, risk: str, Q: np.ndarray, V: np.ndarray) -> GampState:
    """Return the state with D = V g and z = X̃Q, a fixed point for critical weights Q (d, r) and their V (S, r, r)."""
    at = risk_at(data, Q, risk)
    return GampState(Q.copy(), V.copy(), apply_by_source(data.groups, V, -at.loss_gradients), at.z.copy())


def check_shapes(data: Dataset, state: GampState, V_hat: np.ndarray | None = None) -> None:
    """Raise if the arrays of a state do not have the shapes of the data: compiled code does not check bounds."""
    if not isinstance(state, GampState):
        raise check.fail("state", state, "a GampState, such as initial_state(data, Q)", TypeError)
    n, L, S, r = data.n_samples, data.n_tokens, data.n_sources, data.rank
    wanted = {"state.Q": (data.dim, r), "state.V": (S, r, r), "state.D": (n, L, r), "state.z": (n, L, r)}
    given: tuple[Any, ...] = (state.Q, state.V, state.D, state.z)
    for (name, shape), array in [*zip(wanted.items(), given, strict=True), (("V_hat", (S, r, r)), V_hat)]:
        if array is not None or name not in ("state.z", "V_hat"):
            check.require_shape(name, array, shape)


@guard_call
def gamp_step(
    data: Dataset,
    risk: str,
    state: GampState,
    damping: float,
    *,
    hold: bool = False,
    max_starts: int | None = None,
    last_step: float = LAST_STEP,
    V_hat: np.ndarray | None = None,
    memory: Memory = averaged_memory,
    exact_below: float = math.inf,
) -> tuple[GampState, StepReport]:
    """Return the state after one iteration of GAMP, as a pure function: the given state is not changed.

    Eq. :eq:`averages`. The equations of the iteration are at the top of `gamp_attention.gamp.step`.

    Parameters
    ----------
    data, risk : the samples, and "exact" or "asymptotic".
    state : state before the iteration.
    damping : step β in (0, 1].
    hold : continue each sample's local minimum of the proximal objective from `state.z`, without a search.
    max_starts : maximum number of further starts of each sample's search for a lower minimum, as in `denoise`. By
        default searches are not bounded, as state evolution assumes.
    last_step : size of a Newton step of the minimizations, relative to the fields, after which none follows. The next
        step would be of the order of its square.
    V_hat : (L, r, r) response to use instead of the empirical response, for example from state evolution.
    memory : rule for the Onsager memory D, called with D, V g, W g and the step β; see `gamp_attention.gamp.step`.
    exact_below : gradient norm above which the report has estimates, if the penalty has kinks: exact numbers take
        another pass over the data.

    Returns
    -------
    GampState, StepReport : the next state, and a report on `state`.

    Raises
    ------
    TypeError : if an argument does not have the documented type.
    ValueError : if `risk` is unknown, `damping` is not in (0, 1], `max_starts` is negative, or an array of `state`,
        `V_hat` or the value of `memory` does not fit the data.
    numpy.linalg.LinAlgError, NotPositiveDefinite : if V is no longer positive definite.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    >>> state = ga.initial_state(data, data.Q_star)
    >>> for _ in range(5):
    ...     state, report = ga.gamp_step(data, "asymptotic", state, damping=0.5)
    >>> state.Q.shape, report.V_hat.shape, report.denoised.solved.all().item()
    ((100, 1), (2, 1, 1), True)
    """
    require_dataset(data).terms(risk)
    beta = check.real("damping", damping, low=0, high=1, strict=True)
    check.flag("hold", hold)
    most = MAX_STARTS if max_starts is None else check.integer("max_starts", max_starts, low=0)
    last_step = check.real("last_step", last_step, low=0, strict=True)
    check_shapes(data, state, V_hat)
    V_hat = None if V_hat is None else check.array("V_hat", V_hat, np.shape(V_hat))
    Q, V, D, z = state.Q, state.V, state.D, state.z

    # output step, in one pass over the tokens: ω = X̃Q − D, z = prox(ω; V), g = V⁻¹(z − ω), V̂ = −(1/d) Σ ∂g/∂ω
    most = 0 if hold and z is not None else most
    out = pass_over(data, risk, Q, D, V, z, max_starts=most, last_step=last_step)
    if V_hat is None:
        V_hat = symmetrize(sum_over_tokens(data.groups, data.n_sources, out.denoised.response) / data.dim)

    # input step: A = Σ γ V̂, b = X̃ᵀg + A Q, η = argmin r(x) + ½ xᵀA x − bᵀx, W = (1/d) Σ γ ∂η/∂b
    eta, _, W = input_step(data.penalty, data.spectra, V_hat, out.force, Q)

    # averages over iterations
    V = (1 - beta) * V + beta * W
    D = next_memory(data.groups, D, out.denoised.g, memory, V, W, beta)
    after = GampState(Q=(1 - beta) * Q + beta * eta, V=V, D=D, z=out.denoised.z)
    return after, StepReport(*evaluate_risk(data, risk, Q, out, exact_below), out.omega, out.denoised, V_hat, W)
