"""Datasets of generalised linear models: rows of tokens with labels."""

from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.overflow import quiet
from gamp_attention.data.dataset import RISKS, Dataset, checked_weights
from gamp_attention.data.fields import local_fields
from gamp_attention.data.stores import Tokens, TokenStore, as_tokens
from gamp_attention.losses.terms import RiskTerms
from gamp_attention.models.glm import GLMModel, check_labels, require_loss
from gamp_attention.models.sources import Sources
from gamp_attention.penalties.standard import require_penalty


class LabelledDataset(Dataset):
    """n samples of L tokens (sources) in R^d with labels. Both risks are R(Q) = Σ_μ ℓ(z^μ; p^μ) + r(Q).

    Parameters
    ----------
    tokens : (n, L, d), or (n, d) for L = 1; fields are z = (x + p) Q/√d.
    labels : (n, P), or (n,) for P = 1.
    loss : SquaredLoss(), LogisticLoss(), MultinomialLoss(), PhaseRetrievalLoss() or a registered one.
    lam : ridge λ > 0; not used where a penalty is given.
    rank : columns r of Q.
    positions : (L, d) added to the tokens; 0 if not given.
    spectra, penalty, sample_weight : as for `Dataset`.

    Attributes
    ----------
    labels : (n, P).

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    Logistic regression:

    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> x = np.random.default_rng(0).normal(size=(300, 100))
    >>> data = ga.LabelledDataset(x, np.sign(x[:, 0]), ga.LogisticLoss(), lam=0.1)
    >>> ga.run_gamp(data, "random").converged
    True
    """

    @quiet
    def __init__(
        self,
        tokens: Any,
        labels: Any,
        loss: Any,
        lam: float = 0.01,
        *,
        rank: int = 1,
        positions: Any = None,
        spectra: Any = None,
        penalty: Any = None,
        sample_weight: Any = None,
    ) -> None:
        check.require_dense("tokens", tokens)
        check.require_dense("labels", labels)
        if not isinstance(tokens, TokenStore) and check.ndim("tokens", tokens) == 2:
            tokens = np.asarray(check.plain(tokens))[:, None]
        self.tokens = as_tokens("tokens", tokens)
        n, L, d = self.tokens.shape
        positions = np.zeros((L, d)) if positions is None else check.array("positions", positions, (L, d))
        sources = Sources.plain(np.ascontiguousarray(positions), n)
        self._describe(require_penalty(penalty, lam), rank, spectra, require_loss(loss), sources)
        if check.ndim("labels", labels) == 1:
            labels = np.asarray(check.plain(labels))[:, None]
        self.labels = check_labels(loss, labels, n, L, self.rank)
        self.sample_weight = checked_weights(sample_weight, n)
        params = self.labels
        if self.sample_weight is not None:
            params = np.column_stack([self.labels, self.sample_weight])
        self._risks = dict.fromkeys(RISKS, RiskTerms(params, np.zeros(n)))
        self._outputs = self.targets = self.Q_star = self.model = None


def label_dataset(
    model: GLMModel,
    tokens: Tokens,
    positions: np.ndarray,
    Q_star: np.ndarray,
    spectra: np.ndarray,
    rng: np.random.Generator,
) -> LabelledDataset:
    """Samples labelled by a teacher."""
    fields = local_fields(tokens, np.zeros_like(positions), Q_star)
    labels = model.task.terms(fields, rng.standard_normal((len(tokens), model.task.n_noise))).params
    data = LabelledDataset(
        tokens, labels, model.student, rank=model.rank, positions=positions, spectra=spectra, penalty=model.penalty
    )
    data.Q_star, data.model = Q_star, model
    return data
