"""The leave-one-out error of a minimum, without training again."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.overflow import quiet
from gamp_attention._core.spread import mean_and_error
from gamp_attention.data.dataset import Dataset, require_dataset
from gamp_attention.data.risk import RiskAtPoint, risk_at, susceptibility
from gamp_attention.experiments.inference.refits import refit
from gamp_attention.experiments.inference.removal import Removed, cavity_fields, removed, risks_without
from gamp_attention.experiments.inference.result import LeaveOneOut
from gamp_attention.experiments.inference.roughness import Responses, is_rough, responses_at
from gamp_attention.losses.derivatives import sample_derivatives

FORMS = ("hessian", "cavity")  # up to `small` weights, and beyond


@dataclass(frozen=True)
class BeliefSettings:
    """What is computed by itself, and when it is trusted."""

    small: int = 256  # weights up to which the Hessian is factored without being asked for: in hundredths of a second
    examined: float = 2e11  # products of numbers up to which samples are examined
    gradient: float = 1e-3  # norm of the exact risk at weights of a minimum of it


BELIEF = BeliefSettings()


@quiet
def leave_one_out(
    data: Dataset, gamp: Any, *, form: str | None = None, examine: bool | None = None, refits: int = 0
) -> LeaveOneOut:
    """Estimate the test error from the training data alone, as the error of each sample under weights without it.

    Eq. :eq:`leave-one-out`.

    Parameters
    ----------
    data : the samples.
    gamp : the result of `run_gamp` or `minimize_risk` on them, with the exact risk.
    form : "cavity", the cavity field of message passing, which costs a pass over the tokens and is right up to
        O(1/√d) in each sample; "hessian", a Newton step without each sample, from one Cholesky factor, which may take
        as long as the training. If not given, "hessian" up to 256 weights, and where variances are not known.
    examine : whether the Newton step of each sample is examined, which says where refits would end elsewhere; with the
        Hessian alone. If not given, where that takes seconds at most.
    refits : so many of the doubtful samples, the most doubtful first, are left out by a descent from these weights.

    Returns
    -------
    LeaveOneOut

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs; for weights of the asymptotic risk.

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
    refits = check.integer("refits", refits, low=0)
    known = _responses(data, gamp, at, Q)
    if form is None:
        form = FORMS[Q.size > BELIEF.small and bool(np.isfinite(known.V).all())]
    check.choice("form", form, FORMS)
    if examine is not None and check.flag("examine", examine) and form != "hessian":
        raise check.fail("examine", examine, "form='hessian'")
    if examine is None:
        work = float(data.n_samples**2 * data.n_tokens * data.rank) * Q.size
        examine = form == "hessian" and work <= BELIEF.examined and isinstance(data.tokens, np.ndarray)
    n, refitted = data.n_samples, np.zeros(data.n_samples, bool)
    doubtful, remainder, found = refitted, np.full(n, np.nan), None
    if form == "hessian":
        found = removed(data, at, Q, np.arange(n if examine else 0))
        fields, doubtful, remainder = found.fields, found.doubtful, found.remainder
    else:
        fields = cavity_fields(data, at, known.C)
    with_choice = _with_choice(data, gamp, at, fields, form)
    order = np.argsort(-np.where(doubtful, np.nan_to_num(remainder, nan=np.inf), -1.0), kind="stable")
    for sample in order[: min(refits, np.count_nonzero(doubtful))]:
        weights, refitted[sample] = refit(data, Q, int(sample))
        if refitted[sample]:
            fields[sample] = data_fields(data, weights, int(sample))
    errors = sample_errors(data, fields)
    against = _against(data, gamp, at, known, found is None or found.minimum)
    mean, error = mean_and_error(errors)
    return LeaveOneOut(
        test_error=mean, test_error_error=error, in_training=float(sample_errors(data, at.z).mean()),
        errors=errors, fields=fields, form=form, trusted=not against, doubtful=doubtful, remainder=remainder,
        refitted=refitted, with_choice=with_choice, message=_told(against, found, examine),
    )  # fmt: skip


def trained(data: Dataset, gamp: Any) -> tuple[np.ndarray, RiskAtPoint]:
    """Weights of a result and the exact risk there; raises unless they are of these data and of that risk."""
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
    """Whether nothing speaks against a result."""
    Q, at = trained(data, gamp)
    return not _against(data, gamp, at, _responses(data, gamp, at, Q))


def _responses(data: Dataset, gamp: Any, at: RiskAtPoint, Q: np.ndarray) -> Responses:
    """Those at a minimum, with the variances of its overlaps where these are known."""
    V = gamp.overlaps.V if np.isfinite(gamp.overlaps.V).all() else susceptibility(data, at, Q)
    return responses_at(data, at, Q, V)


def sample_errors(data: Dataset, fields: np.ndarray) -> np.ndarray:
    """‖y − f(x)‖²/(dL) (n,) of samples that have these fields (n, L, r); of labels their loss."""
    terms = data.terms("exact")
    losses = sample_derivatives(data.loss, terms.params, fields)[0] + terms.constant
    return losses if data.labels is not None else 2 * losses / data.n_tokens


def data_fields(data: Dataset, Q: np.ndarray, sample: int) -> np.ndarray:
    """Fields (L, r) of one sample."""
    rows = slice(sample, sample + 1)
    x = data.tokens[rows] if isinstance(data.tokens, np.ndarray) else data.tokens.read(rows)
    return (x[0] + data.positions) @ Q / np.sqrt(data.dim)


def _with_choice(data: Dataset, gamp: Any, at: RiskAtPoint, fields: np.ndarray, form: str) -> float:
    """The mean error where each sample has the start of lowest risk without it, among those followed to a minimum."""
    ended = [one for one in getattr(gamp, "starts", ()) if not one.kept and one.status is not None]
    others = [one for one in ended if one.status.converged]
    if not others:
        return float("nan")
    risks, errors = [risks_without(data, at, fields)], [sample_errors(data, fields)]
    for one in others:
        there = risk_at(data, one.Q, "exact")
        if form == "hessian":
            left = removed(data, there, one.Q, np.arange(0)).fields
        else:
            left = cavity_fields(data, there, _responses(data, one, there, one.Q).C)
        risks.append(risks_without(data, there, left))
        errors.append(sample_errors(data, left))
    best = np.argmin(risks, axis=0)
    return float(np.array(errors)[best, np.arange(len(best))].mean())


def _against(data: Dataset, gamp: Any, at: RiskAtPoint, known: Responses, minimum: bool = True) -> list[str]:
    """What speaks against the estimate."""
    reasons = []
    if not gamp.converged:
        reasons.append("the training did not converge")
    elif not gamp.is_minimum or not minimum:
        reasons.append("the weights are a saddle of the risk, which run_gamp(..., escape=True) leaves")
    elif not np.isfinite(known.V).all():
        reasons.append("no variances of the fields go with the Hessians, so that cavity fields are unknown")
    elif is_rough(data, at, known):
        reasons.append("the landscape is rough, so that samples chose among minima and the estimate may be too low")
    return reasons


def _told(reasons: list[str], found: Removed | None, examine: Any) -> str:
    if found is None:
        looked = "samples were not examined one by one"
    elif examine:
        looked = f"{np.count_nonzero(found.doubtful)} of {len(found.fields)} samples are doubtful"
    else:
        looked = f"{np.count_nonzero(found.doubtful)} of {len(found.fields)} samples hold the weights alone"
    return f"{'not to be trusted: ' + '; '.join(reasons) + '; ' if reasons else ''}{looked}"
