"""Label models: labels p (N, P) as functions of the teacher's fields u = xQ*/√d (N, L, t) and of white noise."""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, ndtr

from gamp_attention._tools import check
from gamp_attention.problem.losses.attention import softmax_rows


class LabelTeacher:
    """Interface of a label model: any object with these methods can be the teacher of a labeled model.

    Attributes
    ----------
    even : True if labels stay the same when all fields and the noise change sign.
    """

    even: bool = False

    def n_noise(self, n_tokens: int, rank: int) -> int:
        """Return the number of Gaussian random numbers per sample that the labels need in addition to the fields."""
        return 1

    def __call__(self, u: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return labels (N, P) for fields (N, L, t) and white noise (N, n_noise)."""
        raise NotImplementedError

    def outcomes(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return all labels (C, P) and their probabilities (N, C) for fields (N, L, t); None if there are many.

        Several threads may call it at the same time.
        """
        return None

    def split_noise(self) -> tuple["LabelTeacher", float]:
        """Return the labels without noise of the fields, and its standard deviation s.

        Labels of fields u with noise have the distribution of labels without noise of fields u + s N(0, 1).
        """
        return self, 0.0


@dataclass(frozen=True)
class LinearLabels(LabelTeacher):
    """Linear labels p = u + noise · N(0, 1), one for each of the L t fields; for the squared loss.

    Attributes
    ----------
    noise : standard deviation of the noise.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.1))
    >>> ga.sample(model, d=50, alpha=2.0).labels.shape
    (100, 1)
    """

    noise: float = 0.0

    def __post_init__(self) -> None:
        check.real("noise", self.noise, low=0)

    def n_noise(self, n_tokens: int, rank: int) -> int:
        """Return one number for each field, or 0 if there is no noise."""
        return n_tokens * rank if self.noise else 0

    def __call__(self, u: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return labels (N, L t)."""
        flat = u.reshape(len(u), -1)
        return flat + self.noise * noise if self.noise else flat

    def split_noise(self) -> tuple[LabelTeacher, float]:
        """Return linear labels without noise, and the standard deviation of the noise."""
        is_linear = type(self).__call__ is LinearLabels.__call__  # a derived class may have other labels
        return (replace(self, noise=0.0), self.noise) if is_linear else (self, 0.0)


@dataclass(frozen=True)
class LogisticLabels(LabelTeacher):
    """Binary labels p = ±1 with log odds Σ_l u_l / temperature, for t = 1 and the logistic loss.

    Attributes
    ----------
    temperature : at least 0; at 0 the label is the sign of Σ_l u_l.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(temperature=0.5))
    >>> sorted(set(ga.sample(model, d=50, alpha=2.0).labels[:, 0].tolist()))
    [-1.0, 1.0]
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check.real("temperature", self.temperature, low=0)

    def n_noise(self, n_tokens: int, rank: int) -> int:
        """Return 1, or 0 at temperature 0."""
        return 1 if self.temperature else 0

    def __call__(self, u: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return labels (N, 1), each ±1."""
        total = u[..., 0].sum(axis=1, keepdims=True)
        positive = ndtr(noise) < expit(total / self.temperature) if self.temperature else total > 0
        return np.where(positive, 1.0, -1.0)

    def outcomes(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return both labels (2, 1) and their probabilities (N, 2)."""
        total, signs = u[..., :1].sum(axis=1), np.array([-1.0, 1.0])
        probabilities = expit(total / self.temperature * signs) if self.temperature else (total > 0) == (signs > 0)
        return signs[:, None], probabilities.astype(float)


@dataclass(frozen=True)
class ClassLabels(LabelTeacher):
    """Class labels p in 0, ..., t − 1 with probabilities softmax(Σ_l u_l); for the multinomial loss.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.glm_model(ga.MultinomialLoss(), ga.ClassLabels(), rank=3)
    >>> sorted(set(ga.sample(model, d=50, alpha=2.0).labels[:, 0].tolist()))
    [0.0, 1.0, 2.0]
    """

    def __call__(self, u: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return labels (N, 1), in 0, ..., t − 1."""
        bounds = np.cumsum(softmax_rows(u.sum(axis=1)), axis=1)
        return (ndtr(noise) > bounds[:, :-1]).sum(axis=1, keepdims=True).astype(float)

    def outcomes(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the labels (t, 1) and their probabilities (N, t)."""
        return np.arange(u.shape[2], dtype=float)[:, None], softmax_rows(u.sum(axis=1))


@dataclass(frozen=True)
class IntensityLabels(LinearLabels):
    """Intensities p = (Σ_l u_l)² + noise · N(0, 1), for t = 1 and phase retrieval.

    Attributes
    ----------
    noise : standard deviation of the noise.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.glm_model(ga.PhaseRetrievalLoss(), ga.IntensityLabels())
    >>> bool(ga.sample(model, d=50, alpha=2.0).labels.min() >= 0)
    True
    """

    @property
    def even(self) -> bool:  # type: ignore[override]
        """True if there is no noise: noise breaks the symmetry of the intensity."""
        return self.noise == 0

    def n_noise(self, n_tokens: int, rank: int) -> int:
        """Return 1, or 0 if there is no noise."""
        return 1 if self.noise else 0

    def __call__(self, u: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return labels (N, 1)."""
        return super().__call__(u[..., 0].sum(axis=1, keepdims=True) ** 2, noise)
