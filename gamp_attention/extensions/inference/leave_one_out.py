"""Approximate leave-one-out errors of a minimum, without training again for every sample.

1. Fields of each sample under weights trained without it. One Newton step on the risk without sample μ, from the
   minimum Q of the risk with all samples, gives z − (1 − A_μ D)⁻¹ A_μ g, with the leverage A_μ = X̃^μ H⁻¹ (X̃^μ)ᵀ,
   minus the gradient g and the Hessian D of the loss of the sample, and the Hessian H of the risk (`leave_out`). The
   step is exact if the risk is quadratic. See Rahnama Rad and Maleki (2020), and Wang et al. (2018) for penalties with
   kinks. For large problems the cavity fields of message passing replace the Newton step (`cavity_fields`).
2. Exact refits of some samples (`refit_samples`): the samples whose errors change the most, and a random part of the
   other samples. The shifts of all fields are scaled so that the random samples have the mean error of their refits.
   The spread of the remaining differences is the standard error of this correction.
3. The standard error includes the covariance of the errors of two samples (Bayle et al. (2020), see covariance.py).
   If the risk has many minima near the minimum, it also includes the choice among them (`LeaveOneOutMethod.selection`).
4. The estimate is trusted if the correction is certain enough, the risk does not have many minima near the minimum
   (see `HysteresisTest` and `LeaveOneOut.trusted`), and samples do not depend on their neighbors (doubts.py).
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import Rows, count_noun, format_to_error
from gamp_attention._tools.numerics import guard_call, one_thread
from gamp_attention._tools.statistics import interval_of_mean, mean_and_error
from gamp_attention.extensions.inference.covariance import leave_one_out_changes, sum_products
from gamp_attention.extensions.inference.doubts import CopySearch, HysteresisTest, OrderTest
from gamp_attention.extensions.inference.hessian import TokenRows, is_quadratic, token_rows
from gamp_attention.extensions.inference.left_out import LeftOut, cavity_fields, leave_out, responses, risks_without
from gamp_attention.extensions.inference.refits import Refitter, sample_errors
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.problem.risk import RiskAtPoint, is_convex, risk_at
from gamp_attention.problem.tolerances import small_unit
from gamp_attention.results import Result


@dataclass(frozen=True, eq=False)
class LeaveOneOut(Result):
    """Errors of samples under weights trained without them, of `leave_one_out`.

    Attributes
    ----------
    test_error, test_error_error : mean of `errors`, an estimate of ε_g, and its standard error, which includes the
        standard error of the correction by refits, the covariance of the errors of different samples, and `selection`.
    selection : if the risk has many minima, the typical amount by which the choice of one of them makes the estimate
        too low: 0.4 times the difference between `test_error` and `in_training`, eq. :eq:`selection`; otherwise 0.
    dependent : whether the errors of samples increase if their neighbors in the order of the arrays are left out too,
        as for time series or repeated measurements (only tested by the form "hessian"), or more than 5 % of the samples
        are copies of another sample (of its tokens and labels, if there are labels), or more than 20 % have near copies
        (not tested for labels).
    covariance : the part of the squared standard error that is due to the covariance of the errors of different
        samples, eq. :eq:`loo-variance`; 0 if the training did not end in a minimum.
    in_training : mean error of the samples under the weights trained on all of them.
    errors : (n,) ‖y − f(x)‖²/(dL) of each sample; of labels their loss.
    fields : (n, L, r) fields z of each sample under weights trained without it.
    form : "hessian" or "cavity" (see `leave_one_out`).
    trusted : whether the mean is expected to agree with the error on new data within 5 % or three standard errors;
        otherwise `message` states the reasons.
    doubtful : (n,) whether the formula is doubtful for a sample, because only this sample determines some weights or
        because its removal changes the curvature of the other samples; or there are no weights without it, because
        they grow without bound.
    remainder : (n,) length of the second Newton step without the sample relative to the first; NaN if the sample was
        not refitted, zero for penalties with kinks.
    refitted : (n,) whether the error is the error of an exact refit.
    with_choice : the mean error if the best start is chosen again without each sample; NaN if only one start has
        converged.
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
    selection: float
    dependent: bool
    covariance: float
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
        """Return a value that the error of a new sample does not exceed with a probability of about `level`.

        Eq. :eq:`error-bound`: the (1 + 1/n) `level` quantile of the errors, as in conformal prediction (Vovk et al.
        (2005), Barber et al. (2021)); infinite if n is too small. For the squared loss of a single field, labels are
        then within sqrt(2 bound) of z.

        Raises
        ------
        TypeError, ValueError : if `level` is not a number between 0 and 1.
        """
        level = check.real("level", level, low=0, high=1, strict=True)
        rank = int(np.ceil(level * (len(self.errors) + 1)))
        return float(np.sort(self.errors)[rank - 1]) if rank <= len(self.errors) else float("inf")

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return an interval that contains the error on new data with a probability of about `level`.

        It extends further above the estimate than below if a few samples have large errors, eq. :eq:`skewed-interval`,
        or if the risk has many minima, as their choice only makes the estimate too low.

        Raises
        ------
        TypeError, ValueError : if `level` is not a number between 0 and 1.
        """
        level = check.real("level", level, low=0, high=1, strict=True)
        return interval_with_selection(self.errors, self.test_error_error, self.selection, level)

    def average_in_units(
        self, errors: np.ndarray, weights: np.ndarray | None = None
    ) -> tuple[float, float, float, float]:
        """Return the mean of the errors in other units (n,), its standard error, and `covariance` and `selection`.

        The standard error of independent errors is increased by the same factor as in `test_error_error`.

        Parameters
        ----------
        errors : (n,) errors of the samples in other units, in which their ratios may differ.
        weights : (n,) weights of the samples; None if they are equal.
        """
        factors = np.ones(len(errors)) if weights is None else weights / weights.mean()
        mean, error = mean_and_error(factors * errors)
        independent = mean_and_error(factors * self.errors)[1]
        if not independent > 0:
            return mean, error, self.covariance, self.selection
        unit = error / independent
        return mean, unit * self.test_error_error, unit**2 * self.covariance, unit * self.selection

    def _rows(self) -> Rows:
        rows: Rows = [f"{type(self).__name__}: {count_noun(len(self.errors), 'sample')}, {self.form}"]
        numbers = [("ε_g", self.test_error, self.test_error_error), ("in training", self.in_training, np.nan)]
        rows += [[f"  {name}", format_to_error(value, error)] for name, value, error in numbers]
        rows.append(["  doubtful", str(np.count_nonzero(self.doubtful))])
        return [*rows, f"  {self.message}"]


def interval_with_selection(
    errors: np.ndarray, error: float, selection: float, level: float = 0.95
) -> tuple[float, float]:
    """Return an interval of the mean of errors (n,) with standard error `error`, of which `selection` is a part.

    The part only extends the interval upwards, because the choice among minima makes the mean too low.
    """
    below = float(np.sqrt(max(error**2 - selection**2, 0.0)))
    return interval_of_mean(errors, below, level)[0], interval_of_mean(errors, error, level)[1]


FORMS = ("hessian", "cavity")  # see `leave_one_out`

UNTRUSTED = "not to be trusted: "  # beginning of the message of an estimate that is not trusted
STILL_TRAINED = (
    "so that the weights are still trained on them if one sample is left out: the estimate is too low unless new data "
    "repeat tokens too; remove repeated samples, or use `regularization_path` with `groups`"
)
ABOUT_REPEATED = f"{{:.0%}} of the samples repeat another sample, {STILL_TRAINED}"
ABOUT_COPIES = f"{{:.0%}} of the samples are nearly equal to a few other samples, {STILL_TRAINED}"
ABOUT_ORDER = (
    "errors increase by {:.0%} if the neighbors of a sample in the order of the arrays are left out too, as in a time "
    "series or for repeated measurements of a subject, and the estimate is too low for new times or subjects: use "
    "`regularization_path` with `groups`, or shuffle the samples if their order has no meaning"
)


@guard_call
def leave_one_out(data: Dataset, gamp: Any, *, form: str | None = None, refits: int | None = None) -> LeaveOneOut:
    """Estimate the test error from the training data: the mean error of samples under weights trained without them.

    Eq. :eq:`leave-one-out`, corrected by refits, eq. :eq:`refit-correction`; standard error: eq. :eq:`loo-variance`.

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
    TypeError : if `data` is not a Dataset or `gamp` not a result of training.
    ValueError : if `gamp` is not a critical point of the exact risk of these data, if `form` is unknown, or if `refits`
        is negative or above the number of samples.

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
    method = LeaveOneOutMethod()
    loo = method.estimate(data, gamp, form, refits)[0]
    if data.n_samples >= method.few_samples:
        return loo
    few = f"{UNTRUSTED}standard errors need at least {method.few_samples} samples, got {data.n_samples}; "
    return replace(loo, trusted=False, message=few + loo.message.removeprefix(UNTRUSTED))


@dataclass(frozen=True)
class LeaveOneOutMethod:
    """Estimation of leave-one-out errors, and its settings."""

    factored: int = 2000  # number of weights or of fields up to which the Hessian is factored by default
    max_factored: int = 6000  # the same limit if cavity fields were tried and are not trusted
    refit_all: float = 1e7  # work n² (L d r + 100 (L r)²) up to which every sample is refitted by default
    top: int = 24  # number of refitted samples with the largest change of their error
    random: int = 40  # number of refitted samples among the other samples
    together: int = 128  # number of samples that are refitted at the same time
    trusted_error: float = 1 / 60  # error of the correction, relative to the estimate, up to which it is trusted
    # number of samples below which no estimate is trusted, because the standard error is uncertain itself: errors of
    # ridge regressions were more than 3 standard errors too low in 5 % of 150 data sets with 30 samples, 17 % with 6
    few_samples: int = 30
    # typical amount by which the choice among many minima makes the estimate too low, relative to its difference from
    # the training error: the root mean square over 74 instances of noisy attention (validation/claims/leave_one_out.py)
    selection: float = 0.4
    sole: float = 0.05  # eigenvalue of 1 − A D below which only this sample determines some weights
    doubtful: float = 0.08  # remainder (relative change of curvature) above which the formula is doubtful for a sample
    scales: tuple[float, float] = (0.05, 20.0)  # range of the factor that corrects the shifts of fields

    def estimate(
        self, data: Dataset, gamp: Any, form: str | None, refits: int | None = None
    ) -> tuple[LeaveOneOut, np.ndarray]:
        """Return the result of `leave_one_out`, and the scaled changes (m, m) of errors, see `leave_one_out_changes`.

        `trusted` does not depend on `few_samples`.
        """
        Q, at = require_trained(data, gamp)
        if refits is not None:
            refits = check.integer("refits", refits, low=0, high=data.n_samples)
        if form is not None:
            check.choice("form", form, FORMS)
        size = min(data.dim, data.n_samples * data.n_tokens) * data.rank
        chosen = form or FORMS[size > self.factored]
        estimate, reasons = self._estimate_by_form(data, gamp, at, Q, chosen, refits)
        if form is None and chosen == "cavity" and estimate.is_uncertain and size <= self.max_factored:
            chosen = "hessian"
            estimate, reasons = self._estimate_by_form(data, gamp, at, Q, chosen, refits)
        with_choice = _with_choice(data, gamp, at, estimate.formula, chosen)
        (mean, error), in_training = mean_and_error(estimate.errors), float(estimate.in_training.mean())
        covariance = max(sum_products(estimate.changes, estimate.changes), 0.0)
        selection = self.selection * max(mean - in_training, 0.0) if estimate.many_minima else 0.0
        spread = float(np.sqrt(error**2 + covariance + estimate.correction_error**2 + selection**2))
        count = np.count_nonzero(estimate.refitted)
        how = f"{count} of {data.n_samples} samples were refitted"
        how = "the formula is exact" if estimate.is_exact and not count else how
        loo = LeaveOneOut(
            test_error=mean, test_error_error=spread, selection=selection, dependent=estimate.dependent,
            covariance=covariance, in_training=in_training, errors=estimate.errors, fields=estimate.fields, form=chosen,
            trusted=not reasons, doubtful=estimate.doubtful, remainder=estimate.remainder, refitted=estimate.refitted,
            with_choice=with_choice, message=f"{UNTRUSTED + '; '.join(reasons) + '; ' if reasons else ''}{how}",
        )  # fmt: skip
        return loo, estimate.changes

    def _estimate_by_form(
        self, data: Dataset, gamp: Any, at: RiskAtPoint, Q: np.ndarray, form: str, refits: int | None
    ) -> tuple["_CorrectedErrors", list[str]]:
        """Return the estimate by a form, and the reasons not to trust it."""
        tokens = token_rows(data) if form == "hessian" else TokenRows(data)
        step = leave_out(data, at, Q, tokens) if form == "hessian" else None
        fields = cavity_fields(data, at, responses(data, gamp, at, Q)) if step is None else step.fields
        reasons = faults = _training_faults(gamp, step, fields)
        estimate = _CorrectedErrors(data, at, fields, step, self)
        if not reasons and not is_convex(data) and HysteresisTest().has_many_minima(data, at, Q):
            estimate.many_minima = True
            choice = "one of which was selected for these samples"
            consequence = "the estimate may be too low, and its standard error includes this"
            reasons = [f"the risk has many minima, {choice}: {consequence}"]
        H, dependence = None if step is None else step.hessian, list[str]()
        with one_thread():
            if not reasons and (refits is not None or not estimate.is_exact):
                estimate.refit(Q, tokens, H, self.refits_by_default(data) if refits is None else refits)
                reasons = estimate.reasons()
            if not faults:
                estimate.changes = leave_one_out_changes(data, at, Q, estimate.fields, tokens, H)
                if H is not None and (effect := OrderTest().order_effect(data, at, Q, tokens, H)):
                    dependence.append(ABOUT_ORDER.format(effect))
        if repeated := CopySearch().repeated_fraction(data):
            dependence.append(ABOUT_REPEATED.format(repeated))
        elif repeated := CopySearch().nearly_repeated(data):
            dependence.append(ABOUT_COPIES.format(repeated))
        estimate.dependent = bool(dependence)
        return estimate, [*reasons, *dependence]

    def refits_by_default(self, data: Dataset) -> int:
        """Return the number of samples that are refitted by default: all samples of small problems."""
        n = data.n_samples
        k = data.n_tokens * data.rank
        every = float(n) ** 2 * (k * data.dim + 100 * k**2) <= self.refit_all
        return n if every else min(n, self.top + self.random)

    def select_samples(self, changes: np.ndarray, n: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the samples with the largest changes, and random other samples: `count` samples in total.

        If all samples are refitted, all count as random samples.
        """
        top = -(-count * self.top // (self.top + self.random)) if count < n else 0
        order = np.argsort(-np.nan_to_num(changes, nan=np.inf), kind="stable")[:top]
        drawn = np.random.default_rng(0).permutation(n)  # a fixed seed: equal samples for all values of a path
        return order, drawn[~np.isin(drawn, order)][: count - top]


def require_trained(data: Dataset, gamp: Any, limit: float = 1e-3) -> tuple[np.ndarray, RiskAtPoint]:
    """Return the weights of a result and the exact risk at these weights; raise if they are no critical point.

    `limit` is the maximum norm of the gradient of the exact risk, in units of the weights if these are small.
    """
    require_dataset(data)
    names = "Q", "overlaps", "converged", "is_minimum", "gradient_norm"
    check.require_attributes("gamp", gamp, "a result of run_gamp or minimize_risk", *names)
    Q = check.array("gamp.Q", gamp.Q, (data.dim, data.rank))
    at = risk_at(data, Q, "exact")
    if not at.gradient_norm <= limit * small_unit(data) + 10 * gamp.gradient_norm:
        needs = f"weights trained on the exact risk of these data, where its gradient norm is {gamp.gradient_norm:.2g}"
        got = f"a gradient norm of {at.gradient_norm:.2g}; run_gamp(data, risk='exact') returns such weights"
        raise ValueError(f"gamp: needs {needs}, got {got}")
    return Q, at


class _CorrectedErrors:
    """Leave-one-out errors (n,) and fields (n, L, r), from the fields of a `formula`, corrected by exact refits.

    The uncertainties of the mean error are the standard error of the correction, the mean difference that it leaves
    (`bias`), and the contribution of samples whose refit did not reach a minimum (`unknown`; number `lost`).
    """

    def __init__(
        self, data: Dataset, at: RiskAtPoint, fields: np.ndarray, step: LeftOut | None, method: LeaveOneOutMethod
    ) -> None:
        self.data, self.at, self.step, self.method = data, at, step, method
        n = data.n_samples
        self.formula, self.fields, self.errors = fields, fields.copy(), sample_errors(data, fields)
        self.in_training = sample_errors(data, at.z)
        self.refitted, self.remainder = np.zeros(n, bool), np.full(n, np.nan)
        self.stiffness = np.ones(n) if step is None else step.stiffness
        self.changes = np.zeros((0, 0))  # see `leave_one_out_changes`
        self.unbounded = np.zeros(n, bool)  # True if weights grow without bound if the sample is left out
        self.many_minima = self.dependent = False
        self.correction_error, self.bias, self.unknown, self.lost = 0.0, 0.0, 0.0, 0

    @property
    def is_exact(self) -> bool:
        """True if the Newton step is exact, because the risk is quadratic."""
        return self.step is not None and is_quadratic(self.data)

    @property
    def doubtful(self) -> np.ndarray:
        """(n,) True for samples for which the formula is doubtful."""
        return (self.stiffness < self.method.sole) | (self.remainder > self.method.doubtful) | self.unbounded

    def refit(self, Q: np.ndarray, tokens: TokenRows, H: Any, count: int) -> None:
        """Refit `count` samples; their errors replace the errors by the formula, and all other fields are corrected."""
        n = self.data.n_samples
        top, random = self.method.select_samples(np.abs(self.errors - self.in_training), n, count)
        drawn, m = np.concatenate([random, top]), len(random)
        fields, reached, remainder = self.at.z[drawn], np.zeros(count, bool), np.zeros(count)
        for k in range(parts := -(-count // self.method.together)):
            part = Refitter().refit_samples(self.data, self.at, Q, drawn[k::parts], tokens, H)
            fields[k::parts], reached[k::parts], remainder[k::parts] = part.fields, part.reached, part.remainder
            self.unbounded[drawn[k::parts]] = part.unbounded
        self.remainder[drawn] = remainder
        if m:
            self._correct(random[reached[:m]], fields[:m][reached[:m]], n - len(top))
            self._use(random, fields[:m], reached[:m], (n - len(top)) / m)
        self._use(top, fields[m:], reached[m:], 1.0)

    def _use(self, samples: np.ndarray, fields: np.ndarray, reached: np.ndarray, weight: float) -> None:
        """Use the fields of refits that reached a minimum; the errors of the others, times `weight`, are unknown."""
        minima = samples[reached]
        self.lost += int(np.count_nonzero(~reached))
        self.unknown += weight * float(np.abs(self.errors[samples[~reached]]).sum()) / len(self.errors)
        self.fields[minima], self.refitted[minima] = fields[reached], True
        self.errors[minima] = sample_errors(self.data, fields[reached], minima)

    def _correct(self, samples: np.ndarray, fields: np.ndarray, population: int) -> None:
        """Scale the shifts of the fields so that random samples (m,) have the mean error of their refits.

        The samples were drawn from a population of this size. The variance of their mean has the usual correction for a
        finite population.
        """
        if not len(samples) or len(samples) == population:
            return
        from scipy.optimize import brentq

        exact = sample_errors(self.data, fields, samples)
        z, shifts = self.at.z[samples], self.fields[samples] - self.at.z[samples]

        def difference(factor: float) -> float:
            return float((sample_errors(self.data, z + factor * shifts, samples) - exact).mean())

        low, high = self.method.scales
        factors = np.unique(np.concatenate([np.geomspace(low, high, 25), [1.0]]))
        values = np.array([difference(factor) for factor in factors])
        changes = np.flatnonzero(values[:-1] * values[1:] <= 0)
        if len(changes):
            k = changes[np.argmin(np.abs(np.log(factors[changes])))]
            factor = float(brentq(difference, factors[k], factors[k + 1], xtol=1e-10))
        else:
            factor = float(factors[np.argmin(np.abs(values))])
        self.fields = self.at.z + factor * (self.fields - self.at.z)
        self.errors = sample_errors(self.data, self.fields)
        remaining = exact - self.errors[samples]
        fraction = population / self.data.n_samples
        spread = remaining.std(ddof=1) / np.sqrt(len(remaining)) if len(remaining) > 1 else np.inf
        self.correction_error = float(fraction * spread * np.sqrt(1 - len(remaining) / population))
        self.bias = float(fraction * abs(remaining.mean()))

    @property
    def is_uncertain(self) -> bool:
        """True if the uncertainty of the correction is above 5 % / 3 of the estimate and above its standard error."""
        mean, error = mean_and_error(self.errors)
        unknown = self.bias + self.unknown + self.correction_error
        return unknown > max(self.method.trusted_error * abs(mean), np.nan_to_num(error))

    def reasons(self) -> list[str]:
        """Return the reasons not to trust the estimate."""
        if self.unbounded.any():
            left_out = " or ".join(map(str, np.flatnonzero(self.unbounded)[:3].tolist()))
            return [
                f"without sample {left_out}, weights that have no penalty grow without bound, as an intercept does "
                "without the only member of a class: the error of this sample is infinite, and `errors` has the value "
                "of the formula"
            ]
        if not self.is_uncertain:
            return []
        size = self.correction_error + self.bias
        if self.unknown > size:
            return [f"refits of {count_noun(self.lost, 'sample')} did not reach a minimum"]
        return [f"exact refits differ from the estimates by {size:.2g} on average"]


def _with_choice(data: Dataset, gamp: Any, at: RiskAtPoint, fields: np.ndarray, form: str) -> float:
    """Return the mean error if, for each sample, the start with the lowest risk without this sample is selected."""
    ended = [start for start in getattr(gamp, "starts", ()) if not start.kept and start.status is not None]
    others = [start for start in ended if start.status.converged]
    if not others:
        return float("nan")
    risks, errors = [risks_without(data, at, fields)], [sample_errors(data, fields)]
    for start in others:
        at_start = risk_at(data, start.Q, "exact")
        if form == "hessian":
            left_out = leave_out(data, at_start, start.Q).fields
        else:
            left_out = cavity_fields(data, at_start, responses(data, start, at_start, start.Q))
        risks.append(risks_without(data, at_start, left_out))
        errors.append(sample_errors(data, left_out))
    best = np.argmin(risks, axis=0)
    return float(np.array(errors)[best, np.arange(len(best))].mean())


def _training_faults(gamp: Any, step: LeftOut | None, fields: np.ndarray) -> list[str]:
    """Return reasons not to trust an estimate that are known before samples are refitted."""
    if not gamp.converged:
        return ["the training did not converge"]
    if gamp.is_minimum and step is not None and not step.hessian.is_minimum:
        return ["the Hessian is not positive definite, so that the weights without a sample are not determined"]
    if not gamp.is_minimum:
        return ["the weights are a saddle of the risk; training with `escape` continues to a minimum"]
    if not np.isfinite(fields).all():
        return ["the Hessian is singular, so that the weights without a sample are not determined"]
    return []
