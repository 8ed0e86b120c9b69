"""`law_of`: the distribution of given tokens, with a known or fitted teacher, and departures from the assumptions.

`parts.py` estimates the distribution, and `departures.py` measures the departures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.numerics import guard_call
from gamp_attention.extensions.inference.law.departures import departures
from gamp_attention.extensions.inference.law.parts import LawParts, TeacherProblem, default_target
from gamp_attention.extensions.inference.law.tokens import (
    MAX_REPLICAS,
    ClassSearch,
    SeenTokens,
    fit_targets,
    score_noise,
    used_rows,
)
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.problem.losses.attention import DotProductAttention
from gamp_attention.theory.models.data_law import DataLaw


@guard_call
def law_of(
    data: Dataset,
    teacher: ArrayLike | None = None,
    *,
    target: Any = None,
    noise: float | None = None,
    correlated: bool = False,
    classes: int | str = 1,
    replicas: int = 0,
    seed: int = 0,
) -> DataLaw:
    """Estimate the distribution of tokens with a known or fitted teacher, and its departures from the assumptions.

    Eq. :eq:`resolvents`.

    Eigenvalues of the covariances, and the second moments of positions and teacher along them, are fitted to the
    resolvent of the sample covariance, whose bias by the finite number of tokens is known (Marchenko and Pastur, 1967).

    Parameters
    ----------
    data : the samples, at least 20.
    teacher : (d, t) weights, known or fitted, for example of a `GampResult`. If not given, the weights of the data's
        teacher; if it has none, independent random rows N(0, 1).
    target : the teacher's attention map T, or label model. If not given, the target of the model from which the data
        were sampled, or else the student's attention map, or the default label model of the loss.
    noise : s of targets (T + s N)x. If not given, it is estimated from the outputs: from the part that the teacher does
        not explain if its weights are known, else from the part outside the span of the tokens.
    correlated : whether the model includes the correlation between tokens, see `DataLaw.correlated`. State evolution
        then takes minutes. Requires a `DotProductAttention`, a ridge penalty, and one class for each token.
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
    ValueError : if there are fewer than 20 samples; the tokens at an index are equal in all samples, or in all samples
        of a class; `teacher` is not of shape (d, t); `noise` is negative; `correlated` is True but its requirements are
        not met; `classes` is not 1 for labels; targets depend on classes; or `replicas` is 1 or above 100.

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
    parts = check.integer("replicas", replicas, low=0, high=MAX_REPLICAS)
    seed = check.integer("seed", seed, low=0)
    if parts == 1:
        raise check.fail("replicas", parts, "0, or at least 2: a jackknife error needs two replicas")
    if not isinstance(require_dataset(data).tokens, np.ndarray) and not hasattr(data.tokens, "fill"):
        needs = "tokens in the memory of this process, not in a store that is spread over several"
        raise check.fail_words("data", type(data).__name__, needs, TypeError)
    rows = used_rows(data)
    tokens = np.asarray(data.tokens)[rows].astype(float, copy=False)
    weights = data.Q_star if teacher is None else check.array("teacher", teacher, (data.dim, "t"))
    if data.is_labelled and classes != 1:
        raise check.fail("classes", classes, "1 for data with labels: mixtures are implemented for attention only")
    if data.is_labelled and data.is_mixture:
        raise check.fail_words(
            "data", "targets that depend on classes", "samples without classes; their model is data.model"
        )
    seen = SeenTokens.of(tokens)
    _ = seen.scales  # raises for tokens that do not vary, before the search for classes
    assigned = ClassSearch().assign(tokens, classes, seed)
    seen = seen if assigned is None else SeenTokens.of(tokens, *assigned)
    correlated = _check_correlated(data, seen, correlated)
    problem = TeacherProblem(data, weights, default_target(data, target), 0.0)
    fitted = fit_targets(data, rows, tokens) if not data.is_labelled and data.dim > data.n_tokens else None
    if noise is not None:
        problem = problem._replace(noise=check.real("noise", noise, low=0))
    elif fitted is not None:
        predicted = None if weights is None else problem.target(tokens @ weights / np.sqrt(data.dim))
        problem = problem._replace(noise=score_noise(fitted, tokens, predicted))
    with check.rename(teacher="target", labels="target"):
        estimate = LawParts.of(seen, problem, correlated)
    jackknife_models = tuple(LawParts.of(seen.without(part, parts), problem, correlated).model for part in range(parts))
    law = estimate.coordinates
    return DataLaw(
        law.weight, law.gamma, law.tau, law.teacher_mean, law.teacher_cov,
        model=estimate.model, departures=departures(seen, estimate, correlated, weights),
        correlation=seen.correlation, correlated=correlated, noise=problem.noise,
        outside=fitted.outside if fitted else 0.0, n_samples=len(rows), replicas=jackknife_models,
    )  # fmt: skip


def _check_correlated(data: Dataset, seen: SeenTokens, correlated: Any) -> bool:
    """Return whether the model includes the correlation between tokens; raise ValueError if it cannot."""
    is_possible = isinstance(data.student, DotProductAttention) and seen.n_sources == data.n_tokens > 1
    if check.flag("correlated", correlated) and not (is_possible and data.penalty.quadratic):
        needs = "False, unless there are a DotProductAttention, a ridge and several tokens of one class each"
        raise check.fail("correlated", correlated, needs)
    return bool(correlated)
