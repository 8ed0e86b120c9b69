"""Losses of generalized linear models (Nelder and Wedderburn, 1972): squared, logistic, multinomial, phase retrieval.

The labels of a sample are one row p (P,). With several tokens per sample, all losses except the squared loss depend on
the sum of the fields of the tokens, Σ_l z_l. With one token they are the textbook losses.
"""

from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention.problem.losses.registration import register_loss


def _require_width(labels: np.ndarray, width: int, n_tokens: int, rank: int, loss: Any = None) -> None:
    """Raise ValueError unless rows of labels have a width, and the rank is 1 for a given loss of one column."""
    if labels.shape[1] != width:
        needs = f"shape ({len(labels)}, {width}) for this loss, {n_tokens} token(s) and rank {rank}"
        raise check.fail("labels", labels, needs)
    if loss is not None and rank != 1:
        raise check.fail("rank", rank, f"1 for {type(loss).__name__}")


@register_loss
class SquaredLoss(NamedTuple):
    """Squared loss ℓ(z) = ½ ‖z − p‖², with one label for each of the L r fields.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> float(ga.SquaredLoss().value(np.array([1.0, 2.0]), np.array([[1.0], [0.0]])))
    2.0
    """

    convex = quadratic = True  # type: ignore[misc]

    def value(self, p, z):
        """Return ℓ. Compiled code."""
        total = 0.0
        for l in range(z.shape[0]):
            for a in range(z.shape[1]):
                total += 0.5 * (z[l, a] - p[l * z.shape[1] + a]) ** 2
        return total

    def derivatives(self, p, z, grad, hess):
        """Return ℓ and fill its gradient and Hessian. Compiled code."""
        total, r = 0.0, z.shape[1]
        for i in range(z.size):
            for j in range(z.size):
                hess[i, j] = 1.0 if i == j else 0.0
            grad[i] = z[i // r, i % r] - p[i]
            total += 0.5 * grad[i] ** 2
        return total

    def of_fields(self, p: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ℓ, ℓ' and ℓ'' (n,) of samples with one field z (n,) and labels p (n,)."""
        difference = z - p
        return 0.5 * difference**2, difference, np.ones_like(z)

    def field_size(self, size: float) -> float:
        """Return the size of the labels, which fields have."""
        return size

    def require_labels(self, labels: np.ndarray, n_tokens: int, rank: int) -> None:
        """Raise ValueError unless there is one label for each field."""
        _require_width(labels, n_tokens * rank, n_tokens, rank)

    def torch(self, p: Any, z: Any) -> Any:
        """Return ℓ (n,) for tensors p (n, P) and z (n, L, r)."""
        return 0.5 * ((z.flatten(1) - p) ** 2).sum(1)


@register_loss
class LogisticLoss(NamedTuple):
    """Logistic loss ℓ(z) = log(1 + exp(−p Σ_l z_l)), with a label p = ±1 and r = 1.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> round(float(ga.LogisticLoss().value(np.ones(1), np.zeros((1, 1)))), 4)
    0.6931
    """

    convex = grows_slowly = True  # type: ignore[misc]

    def value(self, p, z):
        """Return ℓ. Compiled code."""
        total = p[0] * z.sum()
        return np.log1p(np.exp(-abs(total))) + max(-total, 0.0)

    def derivatives(self, p, z, grad, hess):
        """Return ℓ and fill its gradient and Hessian. Compiled code."""
        total = p[0] * z.sum()
        small = np.exp(-abs(total))
        wrong = small / (1 + small) if total > 0 else 1 / (1 + small)  # probability of the other label
        for i in range(z.size):
            grad[i] = -p[0] * wrong
            for j in range(z.size):
                hess[i, j] = p[0] ** 2 * wrong * (1 - wrong)
        return np.log1p(small) + max(-total, 0.0)

    def of_fields(self, p: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ℓ, ℓ' and ℓ'' (n,) of samples with one field z (n,) and labels p (n,)."""
        total = p * z
        small = np.exp(-np.abs(total))
        wrong = np.where(total > 0, small, 1.0) / (1 + small)  # probability of the other label
        return np.log1p(small) + np.maximum(-total, 0.0), -p * wrong, p**2 * wrong * (1 - wrong)

    def field_size(self, size: float) -> float:
        """Return 1, because fields are log-odds, whose size labels do not determine."""
        return 1.0

    def require_labels(self, labels: np.ndarray, n_tokens: int, rank: int) -> None:
        """Raise ValueError unless labels are -1 and 1, and fields have one column."""
        _require_width(labels, 1, n_tokens, rank, self)
        if not np.isin(labels, (-1, 1)).all():
            raise check.fail("labels", np.unique(labels)[:5].tolist(), "-1 and 1 for the logistic loss")

    def torch(self, p: Any, z: Any) -> Any:
        """Return ℓ (n,) for tensors p (n, P) and z (n, L, r)."""
        total = p[:, 0] * z[..., 0].sum(1)
        return (-total.abs()).exp().log1p() + (-total).clamp(min=0)


@register_loss
class MultinomialLoss(NamedTuple):
    """Multinomial loss ℓ(z) = log Σ_a exp(s_a) − s_p with s = Σ_l z_l and a class p in 0, ..., r − 1.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> round(float(ga.MultinomialLoss().value(np.zeros(1), np.zeros((1, 3)))), 4)
    1.0986
    """

    convex = grows_slowly = True  # type: ignore[misc]

    def value(self, p, z):
        """Return ℓ. Compiled code."""
        s = z.sum(axis=0)
        top = s.max()
        return top + np.log(np.exp(s - top).sum()) - s[int(p[0])]

    def derivatives(self, p, z, grad, hess):
        """Return ℓ and fill its gradient and Hessian. Compiled code."""
        s, r = z.sum(axis=0), z.shape[1]
        top = s.max()
        weight = np.exp(s - top)
        total = weight.sum()
        for i in range(z.size):
            probability = weight[i % r] / total
            grad[i] = probability - (1.0 if i % r == int(p[0]) else 0.0)
            for j in range(z.size):
                hess[i, j] = probability * ((1.0 if i % r == j % r else 0.0) - weight[j % r] / total)
        return top + np.log(total) - s[int(p[0])]

    def field_size(self, size: float) -> float:
        """Return 1, because fields are log-odds, whose size labels do not determine."""
        return 1.0

    def require_labels(self, labels: np.ndarray, n_tokens: int, rank: int) -> None:
        """Raise ValueError unless labels are classes in 0, ..., r − 1, of which there are at least two."""
        _require_width(labels, 1, n_tokens, rank)
        if rank == 1:
            needs = "at least 2 classes: the probability of a single class is 1 for all weights"
            raise check.fail("rank", rank, needs)
        if not np.isin(labels, np.arange(rank)).all():
            got = np.unique(labels)[:5].tolist()
            raise check.fail("labels", got, f"classes 0 to {rank - 1}, for rank {rank}")

    def torch(self, p: Any, z: Any) -> Any:
        """Return ℓ (n,) for tensors p (n, P) and z (n, L, r)."""
        s = z.sum(1)
        return s.logsumexp(1) - s.gather(1, p[:, :1].long())[:, 0]


@register_loss
class PhaseRetrievalLoss(NamedTuple):
    """Phase retrieval loss ℓ(z) = ¼ (s² − p)² with s = Σ_l z_l, an intensity p ≥ 0 and r = 1.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> float(ga.PhaseRetrievalLoss().value(np.ones(1), np.array([[2.0]])))
    2.25
    """

    even = True  # type: ignore[misc]

    def value(self, p, z):
        """Return ℓ. Compiled code."""
        total = z.sum()
        return 0.25 * (total * total - p[0]) ** 2

    def derivatives(self, p, z, grad, hess):
        """Return ℓ and fill its gradient and Hessian. Compiled code."""
        total = z.sum()
        for i in range(z.size):
            grad[i] = total * (total * total - p[0])
            for j in range(z.size):
                hess[i, j] = 3 * total * total - p[0]
        return 0.25 * (total * total - p[0]) ** 2

    def floor(self, p):
        """Return 0, the loss of a perfect fit, as a lower bound of ℓ. Compiled code."""
        return 0.0

    def curvature(self, p, n_fields, radius):
        """Return the lowest curvature of ℓ, which is at s = 0: the Hessian is −p 1 1ᵀ there. Compiled code."""
        return -n_fields * max(p[0], 0.0)

    def field_size(self, size: float) -> float:
        """Return the root of the size of the intensities, at most 1."""
        return min(1.0, float(np.sqrt(size)))

    def require_labels(self, labels: np.ndarray, n_tokens: int, rank: int) -> None:
        """Raise ValueError unless labels and fields have one column."""
        _require_width(labels, 1, n_tokens, rank, self)

    def torch(self, p: Any, z: Any) -> Any:
        """Return ℓ (n,) for tensors p (n, P) and z (n, L, r)."""
        return 0.25 * (z[..., 0].sum(1) ** 2 - p[:, 0]) ** 2
