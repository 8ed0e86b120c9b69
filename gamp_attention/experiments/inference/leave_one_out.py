"""The leave-one-out error of a minimum, without training again for every sample.

A Newton step without each sample, by the Hessian, or the cavity fields of message passing, give the fields of all
samples. Some samples are refitted exactly: the samples whose errors change the most, and a random part of the others,
which corrects the rest and gives the correction a standard error.

The result of `leave_one_out`.

The fields of each sample under weights trained without it, by one Newton step or by the mean field.

At a minimum Q, with A_μ = X̃^μ H⁻¹ (X̃^μ)ᵀ and D = ∇²ℓ_μ, one Newton step of the risk without sample μ takes its fields
to z − (1 − A_μ D)⁻¹ A_μ g. The step is exact if the risk is quadratic. Sources: K. Rahnama Rad and A. Maleki, J. R.
Stat. Soc. B 82, 965 (2020); S. Wang et al., ICML 2018, for penalties with kinks.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.display import Rows, format_to_error
from gamp_attention._core.numerics import ignore_float_errors, mean_and_error, one_thread
from gamp_attention.data.dataset import Dataset, require_dataset
from gamp_attention.data.risk import RiskAtPoint, response, risk_at, susceptibility
from gamp_attention.denoisers.input import denoise_weights, precisions, prior_response
from gamp_attention.experiments.inference.hessian import (
    FactoredHessian,
    TokenRows,
    factored_hessian,
    scaled_blocks,
    token_rows,
)
from gamp_attention.experiments.inference.refits import refit_samples, tokens_fields
from gamp_attention.losses.glm import SquaredLoss
from gamp_attention.losses.point import sample_derivatives
from gamp_attention.results import Result


@dataclass(frozen=True, eq=False)
class LeaveOneOut(Result):
    """Errors of samples under weights trained without them, of `leave_one_out`.

    Attributes
    ----------
    test_error, test_error_error : mean of `errors`, an estimate of ε_g, and its standard error, which includes the
        standard error of the correction by refits.
    in_training : the same mean with the samples in training.
    errors : (n,) ‖y − f(x)‖²/(dL) of each sample; of labels their loss.
    fields : (n, L, r) fields z of each sample under weights trained without it.
    form : "hessian" or "cavity" (see `leave_one_out`).
    trusted : whether the mean agrees with exact refits: within 5 % or three standard errors; `message` says why not.
    doubtful : (n,) whether the formula is doubtful for a sample, because only this sample determines some weights or
        because its removal changes the curvature of the other samples.
    remainder : (n,) length of the second Newton step without the sample relative to the first; NaN if the sample was
        not refitted, zero for penalties with kinks.
    refitted : (n,) whether the error is the error of an exact refit.
    with_choice : the mean where the start was chosen anew without each sample; NaN where one start alone was followed
        to its end.
    message : the outcome in words.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    >>> loo = ga.leave_one_out(data, ga.run_gamp(data))
    >>> loo.in_training < loo.test_error < loo.bound(0.9)
    True
    """

    test_error: float
    test_error_error: float
    in_training: float
    errors: np.ndarray
    fields: np.ndarray
    form: str
    trusted: bool
    doubtful: np.ndarray
    remainder: np.ndarray
    refitted: np.ndarray
    with_choice: float
    message: str

    def bound(self, level: float = 0.9) -> float:
        """A bound that the error of a new sample keeps with a probability of about `level`: split-conformal of errors.

        Eq. :eq:`error-bound`. The (1 + 1/n) `level` quantile of the errors; infinite where n is too small for it. For
        the squared loss of a single field, labels are then within sqrt(2 bound) of z.
        """
        level = check.real("level", level, low=0, high=1, strict=True)
        rank = int(np.ceil(level * (len(self.errors) + 1)))
        return float(np.sort(self.errors)[rank - 1]) if rank <= len(self.errors) else float("inf")

    def _rows(self) -> Rows:
        rows: Rows = [f"{type(self).__name__}: {len(self.errors)} samples, {self.form}"]
        numbers = [("ε_g", self.test_error, self.test_error_error), ("in training", self.in_training, np.nan)]
        rows += [[f"  {name}", format_to_error(value, error)] for name, value, error in numbers]
        rows.append(["  doubtful", str(np.count_nonzero(self.doubtful))])
        return [*rows, f"  {self.message}"]


@dataclass(frozen=True, eq=False)
class Removed:
    """The fields of samples that a Newton step leaves out.

    Attributes
    ----------
    fields : (n, L, r) of each sample.
    stiffness : (n,) the smallest real part of the eigenvalues of 1 − A D.
    hessian : the factored Hessian.
    """

    fields: np.ndarray
    stiffness: np.ndarray
    hessian: FactoredHessian

    @property
    def minimum(self) -> bool:
        """Return whether the Hessian is positive definite."""
        return self.hessian.signs is None


def removed(data: Dataset, at: RiskAtPoint, Q: np.ndarray, tokens: TokenRows | None = None) -> Removed:
    """Return the fields of each sample after a Newton step of the risk without it, from Q (d, r).

    Eq. :eq:`leave-one-out`.
    """
    n, k = data.n_samples, data.n_tokens * data.rank
    g, D = -at.loss_gradients.reshape(n, k), at.hessians
    A = np.empty((n, k, k))
    tokens = TokenRows(data) if tokens is None else tokens
    with one_thread():
        H = factored_hessian(data, at, Q, tokens)
        for rows, x in tokens.blocks():
            columns = H.columns(x)
            A[rows] = H.leverages(columns, H.whiten(columns), k)
        left = np.eye(k) - A @ D
        try:
            moved = np.linalg.solve(left, A @ g[..., None])[..., 0]  # (1 − A D)⁻¹ A g
        except np.linalg.LinAlgError:  # a sample alone determines weights
            moved = (np.linalg.pinv(left) @ (A @ g[..., None]))[..., 0]
        stiffness = np.linalg.eigvals(left).real.min(axis=1)
    return Removed(at.z - moved.reshape(at.z.shape), stiffness, H)


def risks_without(data: Dataset, at: RiskAtPoint, fields: np.ndarray) -> np.ndarray:
    """Return the smallest risk without each sample (n,), from its fields z_∖ without it: lower by ℓ + gᵀ(z − z_∖)/2."""
    g, loss = -at.loss_gradients, sample_derivatives(at.loss, at.params, at.z)[0]
    return at.train_loss * data.dim - loss - 0.5 * np.einsum("nla,nla->n", g, at.z - fields)


def weight_responses(data: Dataset, at: RiskAtPoint, Q: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Return C = ∂η_i/∂b_i (d, r, r), or (1, r, r) if equal for all i, at a minimum Q with variances V (S, r, r)."""
    V_hat = response(data, at.hessians, V)
    if data.penalty.quadratic:
        return prior_response(data.spectra, data.penalty.lam, V_hat)[1]
    A = precisions(data.penalty, data.spectra, V_hat)
    b = np.einsum("iab,ib->ia", np.broadcast_to(A, (data.dim, *A.shape[1:])), Q) - at.smooth
    return denoise_weights(data.penalty, b, A)[1]


def cavity_fields(data: Dataset, at: RiskAtPoint, C: np.ndarray) -> np.ndarray:
    """Return cavity fields z − A_μ g (n, L, r) with A_μ = (1/d) Σ_i (x+p)_i C_i (x+p)_iᵀ, C_i the responses of weights.

    Eq. :eq:`cavity-field`.

    For d → ∞ and independent coordinates A_μ is V, and these are z − V g, the fields of message passing.
    """
    g, found = -at.loss_gradients, at.z.copy()
    if len(C) == 1 and not data.is_labelled:  # the products of tokens are known
        L = data.n_tokens
        G = data.terms("exact").params[:, : L * L].reshape(-1, L, L)
        return found - G @ g @ C[0].T
    for rows, x in scaled_blocks(data):
        if len(C) == 1:
            found[rows] -= x @ x.transpose(0, 2, 1) @ g[rows] @ C[0].T
            continue
        for a in range(data.rank):
            for b in range(data.rank):
                weighed = np.ascontiguousarray(x * C[:, a, b])
                found[rows, :, a] -= np.einsum("nli,nki,nk->nl", weighed, x, g[rows, :, b], optimize=True)
    return found


FORMS = ("hessian", "cavity")


@dataclass(frozen=True)
class BeliefSettings:
    """What is computed by default, and when it is trusted."""

    exact: int = 2000  # weights, or fields if fewer, up to which the Hessian is factored by default
    largest: int = 6000  # the same if the mean field is not trusted
    gradient: float = 1e-3  # norm of the exact risk's gradient at weights that count as a minimum
    all_of: float = 1e7  # n² (L d r + 100 (L r)²) up to which every sample is refitted by default
    top: int = 24  # refitted samples with the largest change of their error
    random: int = 40  # refitted samples among the others
    columns: int = 128  # samples that are refitted together
    share: float = 1 / 60  # standard error of the correction, relative to the estimate, that is trusted
    sole: float = 0.05  # smallest eigenvalue of 1 − A D below which a sample alone determines weights
    remainder: float = 0.08  # change of curvature beyond which a sample is doubtful
    rough: float = 0.1  # median change of curvature, if above 1/√d, from which on there are many minima
    scale: tuple[float, float] = (0.05, 20.0)  # range of the factor that corrects the shifts of fields


BELIEF = BeliefSettings()


@ignore_float_errors
def leave_one_out(data: Dataset, gamp: Any, *, form: str | None = None, refits: int | None = None) -> LeaveOneOut:
    """Estimate the test error from the training data: the mean error of samples under weights trained without them.

    Eq. :eq:`leave-one-out`, corrected by refits, eq. :eq:`refit-correction`.

    Parameters
    ----------
    data : the samples, of any distribution.
    gamp : the result of `run_gamp` or `minimize_risk` on them, with the exact risk.
    form : "hessian", a Newton step without each sample by the factored Hessian; "cavity", the fields of message
        passing, at the cost of a pass over the tokens, with refits by conjugate gradients. If not given, "hessian" if
        d r or n L r is at most 2000, or at most 6000 if "cavity" is not trusted; otherwise "cavity".
    refits : number of samples that are left out by exact refits, which correct the others and decide `trusted`: the
        samples whose errors change the most, and random samples. If not given, all samples of small problems and 64
        otherwise; none if the Newton step is exact.

    Returns
    -------
    LeaveOneOut

    Raises
    ------
    TypeError : if `data` is no Dataset or `gamp` no result of training.
    ValueError : if `gamp` is not a minimum of the exact risk of these data, or for an unknown form.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=200, alpha=1.5, seed=0)
    >>> loo = ga.leave_one_out(data, ga.run_gamp(data))
    >>> loo.trusted, loo.errors.shape
    (True, (300,))
    >>> loo.in_training < 0.7 * loo.test_error
    True
    """
    Q, at = trained(data, gamp)
    if refits is not None:
        refits = check.integer("refits", refits, low=0, high=data.n_samples)
    if form is not None:
        check.choice("form", form, FORMS)
    size = min(data.dim, data.n_samples * data.n_tokens) * data.rank
    chosen = form or FORMS[size > BELIEF.exact]
    estimate, reasons = _estimate(data, gamp, at, Q, chosen, refits)
    if form is None and chosen == "cavity" and estimate.apart and size <= BELIEF.largest:
        chosen = "hessian"
        estimate, reasons = _estimate(data, gamp, at, Q, chosen, refits)
    with_choice = _with_choice(data, gamp, at, estimate.formula, chosen)
    mean, error = mean_and_error(estimate.errors)
    return LeaveOneOut(
        test_error=mean, test_error_error=float(np.hypot(error, estimate.correction_error)),
        in_training=float(estimate.in_training.mean()), errors=estimate.errors, fields=estimate.fields, form=chosen,
        trusted=not reasons, doubtful=estimate.doubtful, remainder=estimate.remainder, refitted=estimate.refitted,
        with_choice=with_choice, message=_describe(reasons, estimate),
    )  # fmt: skip


def _estimate(
    data: Dataset, gamp: Any, at: RiskAtPoint, Q: np.ndarray, form: str, refits: int | None
) -> tuple["_Estimate", list[str]]:
    """Return the estimate by a form, and what speaks against it."""
    tokens = token_rows(data) if form == "hessian" else TokenRows(data)
    found = removed(data, at, Q, tokens) if form == "hessian" else None
    fields = cavity_fields(data, at, responses(data, gamp, at, Q)) if found is None else found.fields
    reasons = _reasons(gamp, found, fields)
    estimate = _Estimate(data, at, fields, found)
    if not reasons and not (estimate.is_exact and refits is None):
        with one_thread():
            estimate.refit(Q, tokens, None if found is None else found.hessian, _count(data, refits))
        reasons = estimate.reasons()
    return estimate, reasons


def trained(data: Dataset, gamp: Any) -> tuple[np.ndarray, RiskAtPoint]:
    """Return the weights of a result and the exact risk there; raise unless they are of these data and of that risk."""
    require_dataset(data)
    if not all(hasattr(gamp, name) for name in ("Q", "overlaps", "converged", "is_minimum", "gradient_norm")):
        raise check.fail("gamp", gamp, "a result of run_gamp or minimize_risk", TypeError)
    Q = check.array("gamp.Q", gamp.Q, (data.dim, data.rank))
    at = risk_at(data, Q, "exact")
    if not at.gradient_norm <= BELIEF.gradient + 10 * gamp.gradient_norm:
        needs = f"weights that the exact risk of these data has led to, with the gradient norm {gamp.gradient_norm:.2g}"
        got = f"{at.gradient_norm:.2g}: run_gamp(data, risk='exact') gives them"
        raise ValueError(f"gamp: needs {needs}, got {got}")
    return Q, at


def is_trusted(data: Dataset, gamp: Any) -> bool:
    """Return whether the leave-one-out error of a result is trusted."""
    return leave_one_out(data, gamp).trusted


def is_convex(data: Dataset) -> bool:
    """Return whether the risk is convex, as the loss declares; penalties always are."""
    return bool(getattr(data.student, "convex", False))


def sample_errors(data: Dataset, fields: np.ndarray, rows: Any = slice(None)) -> np.ndarray:
    """Return ‖y − f(x)‖²/(dL) (n,) of samples that have these fields (n, L, r); of labels their loss."""
    terms = data.terms("exact")
    losses = sample_derivatives(data.loss, terms.params[rows], fields)[0] + terms.constant[rows]
    return losses if data.is_labelled else 2 * losses / data.n_tokens


def data_fields(data: Dataset, Q: np.ndarray, sample: int) -> np.ndarray:
    """Return the fields (L, r) of one sample."""
    return tokens_fields(data, Q, np.array([sample]))[0]


class _Estimate:
    """Errors of samples left out, corrected by exact refits of some of them."""

    def __init__(self, data: Dataset, at: RiskAtPoint, fields: np.ndarray, found: Removed | None) -> None:
        self.data, self.at, self.found = data, at, found
        n = data.n_samples
        self.formula, self.fields, self.errors = fields, fields.copy(), sample_errors(data, fields)
        self.in_training = sample_errors(data, at.z)
        self.refitted, self.remainder = np.zeros(n, bool), np.full(n, np.nan)
        self.stiffness = np.ones(n) if found is None else found.stiffness
        self.correction_error, self.bias, self.unknown, self.lost, self.rough = 0.0, 0.0, 0.0, 0, False

    @property
    def is_exact(self) -> bool:
        """Whether the Newton step is exact, the risk being quadratic."""
        return self.found is not None and isinstance(self.data.student, SquaredLoss) and self.data.penalty.quadratic

    @property
    def doubtful(self) -> np.ndarray:
        """(n,) whether the formula of a sample is doubtful."""
        return (self.stiffness < BELIEF.sole) | (self.remainder > BELIEF.remainder)

    def refit(self, Q: np.ndarray, tokens: TokenRows, H: Any, count: int) -> None:
        """Refit some samples, and correct the fields of all others."""
        n = self.data.n_samples
        top, random = _selected(np.abs(self.errors - self.in_training), n, count)
        bound = np.inf if is_convex(self.data) else max(BELIEF.rough, 1 / np.sqrt(self.data.dim))
        drawn = random if len(random) else top  # typical samples
        fields, remainder, reached = self._refitted(Q, drawn, tokens, H, bound)
        self.remainder[drawn] = remainder
        if len(drawn) and np.median(remainder) > bound:
            self.rough = True
            return
        if len(random):
            self._correct(random[reached], fields[reached], n - len(top))
            self._keep(random, fields, reached, (n - len(top)) / len(random))
            fields, remainder, reached = self._refitted(Q, top, tokens, H, np.inf)
            self.remainder[top] = remainder
        self._keep(top, fields, reached, 1.0)

    def _refitted(self, Q: np.ndarray, samples: np.ndarray, tokens: TokenRows, H: Any, bound: float) -> Any:
        """Refit samples (m,) in parts: their fields, remainders, and whether they reached a minimum."""
        if not len(samples):
            return np.zeros((0, *self.at.z.shape[1:])), np.zeros(0), np.zeros(0, bool)
        parts = np.array_split(samples, -(-len(samples) // BELIEF.columns))
        ended = [refit_samples(self.data, self.at, Q, part, tokens, H, bound) for part in parts]
        return (np.concatenate([getattr(each, name) for each in ended]) for name in ("fields", "remainder", "reached"))

    def _keep(self, samples: np.ndarray, fields: np.ndarray, reached: np.ndarray, weight: float) -> None:
        """Take the fields of refits that reached a minimum; the errors of others, times their weight, are unknown."""
        there = samples[reached]
        self.lost += int(np.count_nonzero(~reached))
        self.unknown += weight * float(np.abs(self.errors[samples[~reached]]).sum()) / len(self.errors)
        self.fields[there], self.refitted[there] = fields[reached], True
        self.errors[there] = sample_errors(self.data, fields[reached], there)

    def _correct(self, samples: np.ndarray, fields: np.ndarray, of: int) -> None:
        """Scale the shifts of the fields so that random samples (m,) have the mean error of their refits.

        `of` is the number of samples that these were drawn from.
        """
        if not len(samples) or len(samples) == of:
            return
        from scipy.optimize import brentq

        exact = sample_errors(self.data, fields, samples)
        z, shifts = self.at.z[samples], self.fields[samples] - self.at.z[samples]

        def apart(factor: float) -> float:
            return float((sample_errors(self.data, z + factor * shifts, samples) - exact).mean())

        low, high = BELIEF.scale
        factors = np.unique(np.concatenate([np.geomspace(low, high, 25), [1.0]]))
        values = np.array([apart(factor) for factor in factors])
        changes = np.flatnonzero(values[:-1] * values[1:] <= 0)
        if len(changes):
            k = changes[np.argmin(np.abs(np.log(factors[changes])))]
            factor = float(brentq(apart, factors[k], factors[k + 1], xtol=1e-10))
        else:
            factor = float(factors[np.argmin(np.abs(values))])
        self.fields = self.at.z + factor * (self.fields - self.at.z)
        self.errors = sample_errors(self.data, self.fields)
        left = exact - self.errors[samples]
        share = of / self.data.n_samples
        spread = left.std(ddof=1) / np.sqrt(len(left)) if len(left) > 1 else np.inf
        self.correction_error = float(share * spread * np.sqrt(1 - len(left) / of))
        self.bias = float(share * abs(left.mean()))

    @property
    def apart(self) -> bool:
        """Whether the correction is too uncertain: above a standard error of the estimate and 5 % / 3 of it."""
        mean, error = mean_and_error(self.errors)
        unknown = self.bias + self.unknown + self.correction_error
        return unknown > max(BELIEF.share * abs(mean), np.nan_to_num(error))

    def reasons(self) -> list[str]:
        """Return what speaks against the estimate."""
        if self.rough:
            return ["the risk has many minima, among which the samples chose, so that the estimate may be too low"]
        if not self.apart:
            return []
        if self.unknown > self.correction_error + self.bias:
            return [f"refits of {self.lost} of the samples did not reach a minimum"]
        size = self.correction_error + self.bias
        return [f"refits of single samples differ from their estimates by {size:.2g} in the mean"]


def _count(data: Dataset, refits: int | None) -> int:
    """Return the number of samples that are refitted."""
    return refits_by_default(data) if refits is None else refits


def refits_by_default(data: Dataset) -> int:
    """Return the number of samples that are refitted if the user does not choose it: all samples of small problems."""
    n = data.n_samples
    k = data.n_tokens * data.rank
    every = float(n) ** 2 * (k * data.dim + 100 * k**2) <= BELIEF.all_of
    return n if every else min(n, BELIEF.top + BELIEF.random)


def _selected(changes: np.ndarray, n: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples of largest changes, and random others: `count` samples in all."""
    top = min(n, -(-count * BELIEF.top // (BELIEF.top + BELIEF.random))) if count < n else n
    order = np.argsort(-np.nan_to_num(changes, nan=np.inf), kind="stable")[:top]
    drawn = np.random.default_rng(0).permutation(n)  # equal for all values of a path
    return order, drawn[~np.isin(drawn, order)][: count - top]


def responses(data: Dataset, gamp: Any, at: RiskAtPoint, Q: np.ndarray) -> np.ndarray:
    """Return the responses of the weights, from the variances of the overlaps if these are known."""
    V = gamp.overlaps.V if np.isfinite(gamp.overlaps.V).all() else susceptibility(data, at, Q)
    if not np.isfinite(V).all():  # only their size is unknown, which refits correct
        V = np.tile(np.eye(data.rank), (data.n_sources, 1, 1))
        V *= (data.spectra.mean(axis=1) / (1 + data.penalty.strength))[:, None, None]
    return weight_responses(data, at, Q, V)


def _with_choice(data: Dataset, gamp: Any, at: RiskAtPoint, fields: np.ndarray, form: str) -> float:
    """Return the mean error if each sample has the start of lowest risk without it, of the starts that converged."""
    ended = [one for one in getattr(gamp, "starts", ()) if not one.kept and one.status is not None]
    others = [one for one in ended if one.status.converged]
    if not others:
        return float("nan")
    risks, errors = [risks_without(data, at, fields)], [sample_errors(data, fields)]
    for one in others:
        there = risk_at(data, one.Q, "exact")
        if form == "hessian":
            left = removed(data, there, one.Q).fields
        else:
            left = cavity_fields(data, there, responses(data, one, there, one.Q))
        risks.append(risks_without(data, there, left))
        errors.append(sample_errors(data, left))
    best = np.argmin(risks, axis=0)
    return float(np.array(errors)[best, np.arange(len(best))].mean())


def _reasons(gamp: Any, found: Removed | None, fields: np.ndarray) -> list[str]:
    """Return what speaks against an estimate before samples are refitted."""
    if not gamp.converged:
        return ["the training did not converge"]
    if not gamp.is_minimum or (found is not None and not found.minimum):
        return ["the weights are a saddle of the risk, which run_gamp(..., escape=True) leaves"]
    if not np.isfinite(fields).all():
        return ["the Hessian is singular, so that the weights without a sample are not determined"]
    return []


def _describe(reasons: list[str], estimate: _Estimate) -> str:
    """Return the outcome in words."""
    count, n = np.count_nonzero(estimate.refitted), len(estimate.errors)
    how = f"{count} of {n} samples were refitted" if count or not estimate.is_exact else "the formula is exact"
    return f"{'not to be trusted: ' + '; '.join(reasons) + '; ' if reasons else ''}{how}"
