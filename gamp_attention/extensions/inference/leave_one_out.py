"""Approximate leave-one-out errors of a minimum, without training again for every sample.

1. Fields of each sample under weights trained without it. One Newton step on the risk without sample μ, from the
   minimum Q of the risk with all samples, gives z − (1 − A_μ D)⁻¹ A_μ g, with the leverage A_μ = X̃^μ H⁻¹ (X̃^μ)ᵀ,
   minus the gradient g and the Hessian D of the loss of the sample, and the Hessian H of the risk (`leave_out`). The
   step is exact if the risk is quadratic. See Rahnama Rad and Maleki (2020), and Wang et al. (2018) for penalties with
   kinks. For large problems the cavity fields of message passing replace the Newton step (`cavity_fields`).
2. Exact refits (refits.py) of the samples whose errors change the most, and of random other samples. The shifts of all
   fields are scaled so that the random samples have the mean error of their refits.
3. The standard error includes the covariance of errors of two samples (`covariance_of_errors`), and the choice among
   minima if there are many (`SELECTION`).
4. The estimate is trusted if the correction is certain enough, the risk does not have many minima near the minimum, and
   samples do not depend on their neighbors (doubts.py).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from gamp_attention._tools import check
from gamp_attention._tools.display import Rows, count_noun, format_to_error
from gamp_attention._tools.numerics import guard_call, one_thread
from gamp_attention._tools.statistics import mean_and_error
from gamp_attention.extensions.inference import doubts
from gamp_attention.extensions.inference.hessian import FORMS, FactoredHessian, cavity_fields, leave_out
from gamp_attention.extensions.inference.refits import Refitter, covariance_of_errors, has_squared_loss, sample_errors
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.problem.losses.kinks import has_kinks
from gamp_attention.problem.risk import RiskAtPoint, is_convex, risk_at, small_unit
from gamp_attention.results import Result

FACTORED = 2000  # number of weights up to which the Hessian is factored by default
REFIT_ALL = 1e7  # work n² (L d r + 100 (L r)²) up to which every sample is refitted by default
TOP, RANDOM = 24, 40  # numbers of refitted samples: with the largest change of their error, and of the other samples
TOGETHER = 128  # number of samples that are refitted at the same time
TRUSTED_ERROR = 1 / 60  # error of the correction, relative to the estimate, up to which it is trusted
# number of samples below which no estimate is trusted, because the standard error is uncertain itself: errors of
# ridge regressions were more than 3 standard errors too low in 5 % of 150 data sets with 30 samples, 17 % with 6
FEW_SAMPLES = 30
# typical amount by which the choice among many minima makes the estimate too low, relative to its difference from the
# training error: the root mean square over 74 instances of noisy attention (validation/claims/leave_one_out.py)
SELECTION = 0.4
SCALES = 0.05, 20.0  # range of the factor that corrects the shifts of fields

MANY_MINIMA = (
    "the risk has many minima, one of which was selected for these samples: the estimate may be too low, and its "
    "standard error includes this"
)
FEW_LARGE = "few samples with large tokens have most of the error, and larger tokens may increase the error on new data"
STILL_TRAINED = (
    "so that the weights are still trained on them if one sample is left out: the estimate is too low unless new data "
    "repeat tokens too; remove repeated samples, or hold out all copies of a sample together"
)
UNBOUNDED = (
    "without sample {}, weights that have no penalty grow without bound, as an intercept does without the only member "
    "of a class: the error of this sample is infinite, and `errors` has the value of the formula"
)
ABOUT_ORDER = (
    "errors increase by {:.0%} if the neighbors of a sample in the order of the arrays are left out too, as in a time "
    "series or for repeated measurements of a subject, and the estimate is too low for new times or subjects: hold out "
    "whole times or subjects, or shuffle the samples if their order has no meaning"
)


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
        otherwise `message` states the reasons. It may be True for a wrong estimate of a loss that is not convex, mainly
        below about 150 samples.
    refitted : (n,) whether the error is the error of an exact refit.
    message : the outcome in words.
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
    refitted: np.ndarray
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
        below = float(np.sqrt(max(self.test_error_error**2 - self.selection**2, 0.0)))
        high = interval_of_mean(self.errors, self.test_error_error, level)[1]
        return interval_of_mean(self.errors, below, level)[0], high

    def _rows(self) -> Rows:
        rows: Rows = [f"{type(self).__name__}: {count_noun(len(self.errors), 'sample')}, {self.form}"]
        numbers = [("ε_g", self.test_error, self.test_error_error), ("in training", self.in_training, np.nan)]
        rows += [[f"  {name}", format_to_error(value, error)] for name, value, error in numbers]
        return [*rows, f"  {self.message}"]


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
        d r is at most 2000.
    refits : number of samples that are left out by exact refits, which correct the others and decide `trusted`: the
        samples whose errors change the most, and random samples. If not given, all samples of small problems and 64
        otherwise; none if the Newton step is exact, or if the loss has kinks.

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
    >>> loo.in_training < 0.7 * loo.test_error < loo.bound(0.9)
    True
    """
    Q, at = require_trained(data, gamp)
    n = data.n_samples
    refits = None if refits is None else check.integer("refits", refits, low=0, high=n)
    unchecked = refits is None and has_kinks(data.loss, data.terms("exact").params)  # descents at kinks are slow
    form = FORMS[data.dim * data.rank > FACTORED] if form is None else check.choice("form", form, FORMS)
    fields, H = leave_out(data, at, Q) if form == "hessian" else (cavity_fields(data, gamp, at, Q), None)
    faults = _training_faults(gamp, H, fields)
    many_minima = not faults and not is_convex(data) and doubts.has_many_minima(data, at, Q)
    reasons = [MANY_MINIMA] if many_minima else list(faults)
    reasons += ["the loss has kinks, so that no sample was refitted to check the formula"] * unchecked
    # if the risk is quadratic, a Newton step ends at the minimum
    is_exact, covariance = H is not None and has_squared_loss(data) and data.penalty.quadratic, 0.0
    estimate = _CorrectedErrors(data, at, fields)
    with one_thread():
        if not reasons and (refits is not None or not is_exact):
            k = data.n_tokens * data.rank
            is_small = float(n) ** 2 * (k * data.dim + 100 * k**2) <= REFIT_ALL
            estimate.refit(Q, H, (n if is_small else min(n, TOP + RANDOM)) if refits is None else refits)
            reasons += estimate.reasons()
        if not faults:
            covariance = covariance_of_errors(data, at, Q, estimate.fields, H)
        dependence = _dependence(data, at, None if faults else H)
    reasons += dependence + [FEW_LARGE] * doubts.has_few_large(data, estimate.errors)
    if n < FEW_SAMPLES:
        reasons.insert(0, f"standard errors need at least {FEW_SAMPLES} samples, got {n}")
    (mean, error), in_training = mean_and_error(estimate.errors), float(estimate.in_training.mean())
    selection = SELECTION * max(mean - in_training, 0.0) if many_minima else 0.0
    count = np.count_nonzero(estimate.refitted)
    how = "the formula is exact" if is_exact and not count else f"{count} of {n} samples were refitted"
    return LeaveOneOut(
        test_error=mean, test_error_error=float(np.sqrt(error**2 + covariance + estimate.correction**2 + selection**2)),
        selection=selection, dependent=bool(dependence), covariance=covariance, in_training=in_training,
        errors=estimate.errors, fields=estimate.fields, form=form, trusted=not reasons, refitted=estimate.refitted,
        message=f"{'not to be trusted: ' + '; '.join(reasons) + '; ' if reasons else ''}{how}",
    )  # fmt: skip


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


def _training_faults(gamp: Any, H: FactoredHessian | None, fields: np.ndarray) -> list[str]:
    """Return reasons not to trust an estimate that are known before samples are refitted."""
    if not gamp.converged:
        return ["the training did not converge"]
    if not gamp.is_minimum:
        return ["the weights are a saddle of the risk; training with `escape` continues to a minimum"]
    indefinite = H is not None and not H.is_minimum
    if indefinite or not np.isfinite(fields).all():
        kind = "not positive definite" if indefinite else "singular"
        return [f"the Hessian is {kind}, so that the weights without a sample are not determined"]
    return []


def _dependence(data: Dataset, at: RiskAtPoint, H: FactoredHessian | None) -> list[str]:
    """Return signs that samples depend on each other; the order is tested with the factored Hessian at a minimum."""
    signs = []
    if H is not None and (effect := doubts.OrderTest().order_effect(data, at, H)):
        signs.append(ABOUT_ORDER.format(effect))
    if repeated := doubts.repeated_fraction(data):
        signs.append(f"{repeated:.0%} of the samples repeat another sample, {STILL_TRAINED}")
    elif repeated := doubts.nearly_repeated(data):
        signs.append(f"{repeated:.0%} of the samples are nearly equal to a few other samples, {STILL_TRAINED}")
    return signs


class _CorrectedErrors:
    """Leave-one-out errors (n,) and fields (n, L, r), from the `fields` of a formula, corrected by exact refits.

    The uncertainties of the mean error are the standard error of the correction, the mean difference that it leaves
    (`bias`), and the contribution of samples whose refit did not reach a minimum (`unknown`; number `lost`).
    """

    def __init__(self, data: Dataset, at: RiskAtPoint, fields: np.ndarray) -> None:
        self.data, self.at = data, at
        self.fields, self.errors, self.in_training = fields, sample_errors(data, fields), sample_errors(data, at.z)
        self.refitted, self.unbounded = np.zeros(data.n_samples, bool), np.zeros(data.n_samples, bool)
        self.correction, self.bias, self.unknown, self.lost = 0.0, 0.0, 0.0, 0

    def refit(self, Q: np.ndarray, H: FactoredHessian | None, count: int) -> None:
        """Refit `count` samples; their errors replace the errors by the formula, and all other fields are corrected.

        They have the largest changes of their errors, or are random; if all are refitted, all count as random samples.
        """
        n = self.data.n_samples
        n_top = -(-count * TOP // (TOP + RANDOM)) if count < n else 0
        changes = np.nan_to_num(np.abs(self.errors - self.in_training), nan=np.inf)
        top = np.argsort(-changes, kind="stable")[:n_top]
        random = np.random.default_rng(0).permutation(n)  # a fixed seed: equal samples for all values of a path
        random = random[~np.isin(random, top)][: count - n_top]
        drawn, m = np.concatenate([random, top]), len(random)
        fields, reached = self.at.z[drawn], np.zeros(count, bool)
        for k in range(parts := -(-count // TOGETHER)):
            part = slice(k, None, parts)
            fields[part], reached[part], self.unbounded[drawn[part]] = Refitter().refit_samples(
                self.data, self.at, Q, drawn[part], H
            )
        self._correct(random[reached[:m]], fields[:m][reached[:m]], n - n_top)
        weights = np.where(np.arange(count) < m, (n - n_top) / max(m, 1), 1.0)  # samples that each of them represents
        self.lost = int(np.count_nonzero(~reached))
        self.unknown = float(weights[~reached] @ np.abs(self.errors[drawn[~reached]])) / n
        minima = drawn[reached]
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

        factors = np.unique(np.concatenate([np.geomspace(*SCALES, 25), [1.0]]))
        values = np.array([difference(factor) for factor in factors])
        changes = np.flatnonzero(values[:-1] * values[1:] <= 0)
        factor = float(factors[np.argmin(np.abs(values))])
        if len(changes):
            k = changes[np.argmin(np.abs(np.log(factors[changes])))]
            factor = float(brentq(difference, factors[k], factors[k + 1], xtol=1e-10))
        self.fields = self.at.z + factor * (self.fields - self.at.z)
        self.errors = sample_errors(self.data, self.fields)
        remaining = exact - self.errors[samples]
        fraction = population / self.data.n_samples
        spread = remaining.std(ddof=1) / np.sqrt(len(remaining)) if len(remaining) > 1 else np.inf
        self.correction = float(fraction * spread * np.sqrt(1 - len(remaining) / population))
        self.bias = float(fraction * abs(remaining.mean()))

    def reasons(self) -> list[str]:
        """Return the reasons not to trust the estimate.

        The uncertainty of the correction may be 5 % / 3 of the estimate, or its standard error.
        """
        if self.unbounded.any():
            return [UNBOUNDED.format(" or ".join(map(str, np.flatnonzero(self.unbounded)[:3].tolist())))]
        (mean, error), size = mean_and_error(self.errors), self.correction + self.bias
        if self.unknown + size <= max(TRUSTED_ERROR * abs(mean), np.nan_to_num(error)):
            return []
        if self.unknown > size:
            return [f"refits of {count_noun(self.lost, 'sample')} did not reach a minimum"]
        return [f"exact refits differ from the estimates by {size:.2g} on average"]


def interval_of_mean(values: np.ndarray, error: float, level: float = 0.95) -> tuple[float, float]:
    """Return a confidence interval of the expected value of samples (n,) with standard error `error` of their mean.

    The quantiles are from Student's t distribution with n − 1 degrees of freedom. Rare large samples make the
    distribution of (mean − expected value)/error skewed. The end of the interval on the side of the long tail is
    shifted to first order in the skewness (Johnson (1978), Hall (1992)); the other end is not, because the skewness is
    estimated from the same samples. If no sample is negative, neither is the interval.
    """
    n, spread = len(values), values.std()
    mean, t, shift = float(values.mean()), float(stdtrit(n - 1, 0.5 + level / 2)), 0.0
    if spread > 0 and error > 0:
        skewness = float(np.mean(((values - mean) / spread) ** 3)) * (spread / error) ** 3 / n**2  # of the mean
        shift = skewness / 6 * (1 + 2 * t**2)
    low = mean + (min(shift, 0.0) - t) * error
    return max(low, 0.0) if values.min() >= 0 else low, mean + (max(shift, 0.0) + t) * error
