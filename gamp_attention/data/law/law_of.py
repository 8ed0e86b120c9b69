"""Estimation of the token distribution from data, for state evolution."""

from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.overflow import quiet
from gamp_attention.data.dataset import Dataset, require_dataset
from gamp_attention.data.law.classes import token_classes
from gamp_attention.data.law.departures import departures
from gamp_attention.data.law.noise import own_targets, score_noise
from gamp_attention.data.law.parts import LawParts
from gamp_attention.data.law.problem import Problem, own_target
from gamp_attention.data.law.tokens import SAMPLES, SeenTokens, used_rows
from gamp_attention.losses.dot_product import DotProductAttention
from gamp_attention.models.own_law import DataLaw


@quiet
def law_of(
    data: Dataset,
    teacher: Any = None,
    *,
    target: Any = None,
    noise: float | None = None,
    correlated: bool = False,
    classes: Any = 1,
    replicas: int = 0,
    seed: int = 0,
) -> DataLaw:
    """Estimate the distribution of tokens with a planted or fitted teacher, and its departures from the assumptions.

    Eq. :eq:`resolvents`.

    Eigenvalues of the covariances, and the second moments of positions and teacher along them, are fitted to the
    resolvent of the sample covariance, whose bias by the finite number of tokens is known (Marchenko and Pastur 1967).

    Parameters
    ----------
    data : the samples, at least 20.
    teacher : (d, t) weights, planted or fitted, for example of a `GampResult`. If not given, the weights of the data's
        teacher; if it has none, independent random rows N(0, 1).
    target : the teacher's attention map T, or label model. If not given, the target of the model from which the data
        were sampled, or else the student's attention map, or the default label model of the loss.
    noise : s of targets (T + s N)x. If not given, it is estimated from the outputs: from the part that the teacher does
        not explain if its weights are known, else from the part outside the span of the tokens.
    correlated : whether the model includes the correlation between tokens, see `DataLaw.turned`. State evolution then
        takes minutes. Requires a `DotProductAttention`, a ridge penalty, and one class for each token.
    classes : number of classes of each token, for a mixture, or "auto" for the number with the smallest BIC. Classes
        are found by scikit-learn's GaussianMixture in the leading directions.
    replicas : number of jackknife replicas, each estimated without one part of the samples, for errors of computed
        values (see `DataLaw.jackknife`); 0, or 2 to 100.
    seed : seed of the search for classes.

    Returns
    -------
    DataLaw

    Raises
    ------
    TypeError : if `data` is not a Dataset with its tokens in this process, an argument has the wrong type, or `target`
        is not given for a loss without a default label model.
    ValueError : if there are fewer than 20 samples; `teacher` is not of shape (d, t); `noise` is negative; `correlated`
        is True but its requirements are not met; `classes` is not 1 for labels; or `replicas` is 1 or above 100.

    Examples
    --------
    Predict a layer that learns from random weights, for given arrays:

    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((300, 2, 100)) * np.linspace(0.2, 1, 100)
    >>> positions = np.outer([1, -1], np.full(100, 0.1))
    >>> law = ga.law_of(ga.Dataset(x, x, positions), noise=0.0)
    >>> law.strong, law.trace.round(1).tolist()
    ((), [0.4, 0.4])
    >>> ga.solve_state_evolution(law, 3.0, rtol=1e-2).converged
    True
    """
    parts = check.integer("replicas", replicas, low=0, high=SAMPLES.most_replicas)
    seed = check.integer("seed", seed, low=0)
    if parts == 1:
        raise check.fail("replicas", parts, "0, or at least 2: a jackknife error needs two replicas")
    if not isinstance(require_dataset(data).tokens, np.ndarray) and not hasattr(data.tokens, "fill"):
        needs = "tokens in the memory of this process, not in a store that is spread over several"
        raise check.fail("data", type(data).__name__, needs, TypeError)
    rows = used_rows(data)
    tokens = np.asarray(data.tokens)[rows].astype(float, copy=False)
    weights = _teacher_weights(data, teacher)
    assigned = _assign_classes(data, tokens, classes, seed)
    seen = SeenTokens.of(tokens) if assigned is None else SeenTokens.of(tokens, *assigned)
    turned = _check_correlated(data, seen, correlated)
    problem = Problem(data, weights, own_target(data, target), 0.0)
    own = own_targets(data, rows, tokens) if data.labels is None and data.dim > data.n_tokens else None
    if noise is not None:
        problem = problem._replace(noise=check.real("noise", noise, low=0))
    elif own is not None:
        predicted = None
        if weights is not None:
            predicted = problem.target(tokens @ weights / np.sqrt(data.dim))
        problem = problem._replace(noise=score_noise(own, tokens, predicted))
    estimate = LawParts.of(seen, problem, turned)
    several = tuple(LawParts.of(seen.without(part, parts), problem, turned).model for part in range(parts))
    law = estimate.coordinates
    return DataLaw(
        law.weight, law.gamma, law.tau, law.teacher_mean, law.teacher_cov,
        model=estimate.model, departures=departures(seen, estimate, turned, weights),
        correlation=seen.correlation, turned=turned, noise=problem.noise, outside=own.outside if own else 0.0,
        n_samples=len(rows), replicas=several,
    )  # fmt: skip


def _teacher_weights(data: Dataset, teacher: Any) -> np.ndarray | None:
    if teacher is None:
        return data.Q_star
    return check.array("teacher", teacher, (data.dim, "t"))


def _assign_classes(data: Dataset, tokens: np.ndarray, classes: Any, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the patterns of sources and the pattern of each sample; None if each token has one class."""
    if data.labels is not None and classes != 1:
        raise check.fail("classes", classes, "1 for data with labels: mixtures are implemented for attention only")
    return token_classes(tokens, classes, seed)


def _check_correlated(data: Dataset, seen: SeenTokens, correlated: Any) -> bool:
    """Return whether the model includes the correlation between tokens; raise ValueError if it cannot."""
    able = isinstance(data.student, DotProductAttention) and seen.n_sources == data.n_tokens > 1
    if check.flag("correlated", correlated) and not (able and data.penalty.quadratic):
        needs = "False, unless there are a DotProductAttention, a ridge and several tokens of one class each"
        raise check.fail("correlated", correlated, needs)
    return bool(correlated)
