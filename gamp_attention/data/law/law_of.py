"""The law of one's own data, for state evolution."""

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
    """The law of one's own tokens, with a planted or fitted teacher, and how far they are from what it assumes.

    Eq. :eq:`resolvents`.

    Eigenvalues of the covariances, and the weight of positions and teacher along them, are fitted to the resolvent of
    the sample covariance, which is biased by the finite number of tokens in a known way.

    Parameters
    ----------
    data : the samples; at least 20.
    teacher : (d, t) weights, planted or fitted, such as those of a `GampResult`; those of the data's own teacher if not
        given; where there is none, rows N(0, 1) that are independent of all else.
    target : the teacher's attention map T, or labels; if not given, those of the model that the data were sampled from,
        or else the student's own map, or the labels that a loss is made for.
    noise : s of targets (T + s N)x. If not given, it is taken from the outputs: from what the teacher does not explain
        where its weights are known, else from the part of the outputs outside of the span of their tokens.
    correlated : whether the model holds the correlation between tokens, see `DataLaw.turned`. State evolution then
        takes minutes. Only with a `DotProductAttention`, a ridge, and one class for each token.
    classes : classes of each token, for a mixture: a number, or "auto" for the one of least BIC. They are found by
        scikit-learn's GaussianMixture in the leading directions.
    replicas : laws without one part of the samples each, for errors, see `DataLaw.jackknife`; 0 or at least 2.
    seed : of the search for classes.

    Returns
    -------
    DataLaw

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    State evolution for given arrays, of a layer that learns from weights drawn at random:

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
        raise check.fail("replicas", parts, "0 or at least 2")
    if not isinstance(require_dataset(data).tokens, np.ndarray) and not hasattr(data.tokens, "fill"):
        raise check.fail("data", type(data).__name__, "tokens that are in this process", TypeError)
    rows = used_rows(data)
    tokens = np.asarray(data.tokens)[rows].astype(float, copy=False)
    weights = _teacher(data, teacher)
    known = _classes(data, tokens, classes, seed)
    seen = SeenTokens.of(tokens) if known is None else SeenTokens.of(tokens, *known)
    turned = _turned(data, seen, correlated)
    problem = Problem(data, weights, own_target(data, target), 0.0)
    own = own_targets(data, rows, tokens) if data.labels is None and data.dim > data.n_tokens else None
    if noise is not None:
        problem = problem._replace(noise=check.real("noise", noise, low=0))
    elif own is not None:
        predicted = None
        if weights is not None:
            predicted = problem.target(tokens @ weights / np.sqrt(data.dim))
        problem = problem._replace(noise=score_noise(own, tokens, predicted))
    found = LawParts.of(seen, problem, turned)
    several = tuple(LawParts.of(seen.without(part, parts), problem, turned).model for part in range(parts))
    law = found.coordinates
    return DataLaw(
        law.weight, law.gamma, law.tau, law.teacher_mean, law.teacher_cov,
        model=found.model, departures=departures(seen, found, turned, weights),
        correlation=seen.correlation, turned=turned, noise=problem.noise, outside=own.outside if own else 0.0,
        n_samples=len(rows), replicas=several,
    )  # fmt: skip


def _teacher(data: Dataset, teacher: Any) -> np.ndarray | None:
    if teacher is None:
        return data.Q_star
    return check.array("teacher", teacher, (data.dim, "t"))


def _classes(data: Dataset, tokens: np.ndarray, classes: Any, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Patterns of sources and that of each sample; None for one class a token."""
    if data.labels is not None and classes != 1:
        raise check.fail("classes", classes, "1 for labels: mixtures are made for attention")
    return token_classes(tokens, classes, seed)


def _turned(data: Dataset, seen: SeenTokens, correlated: Any) -> bool:
    """Whether the model is to hold the correlation between tokens."""
    able = isinstance(data.student, DotProductAttention) and seen.n_sources == data.n_tokens > 1
    if check.flag("correlated", correlated) and not (able and data.penalty.quadratic):
        needs = "False without a DotProductAttention, a ridge and one class for each of several tokens"
        raise check.fail("correlated", correlated, needs)
    return bool(correlated)
