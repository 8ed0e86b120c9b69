"""Weights without the pull of the penalty, with standard deviations: what the input denoiser is sent."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.overflow import quiet
from gamp_attention._core.text import Rows, to_error
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import response, susceptibility
from gamp_attention.experiments.inference.leave_one_out import is_trusted, trained
from gamp_attention.models.sources import summed
from gamp_attention.results import Result


@dataclass(frozen=True, eq=False)
class DebiasedWeights(Result):
    """Weights with Gaussian errors, of `debias`.

    Attributes
    ----------
    weights : (d, r) A⁻¹b, κ times the teacher's weights plus noise. κ is one number (for r > 1 a matrix that acts on
        the columns): 1 for the squared loss of labels that are linear in the teacher's fields.
    std : (d, r) standard deviations of the noise.
    covariance : (d, r, r), or (1, r, r) where it is the same for all coordinates, of the noise of each coordinate.
    trusted : whether training ended in a minimum of a landscape that is not rough, as for `leave_one_out`.
    """

    weights: np.ndarray
    std: np.ndarray
    covariance: np.ndarray
    trusted: bool

    def interval(self, level: float = 0.9) -> np.ndarray:
        """Intervals (d, r, 2) that hold each weight with a probability of `level`, each by itself."""
        from scipy.special import ndtri

        level = check.real("level", level, low=0, high=1, strict=True)
        if level == 1:
            raise check.fail("level", level, "a probability below 1")
        reach = ndtri(0.5 + 0.5 * level) * self.std
        return np.stack([self.weights - reach, self.weights + reach], axis=-1)

    @property
    def p_values(self) -> np.ndarray:
        """(d, r) of weights that are zero in the teacher: how often noise alone is as large, two-sided."""
        from scipy.special import ndtr

        return 2 * ndtr(-np.abs(self.weights) / self.std)

    def _rows(self) -> Rows:
        """The most significant weights."""
        rows: Rows = [f"{type(self).__name__}: {self.weights.shape[0]} × {self.weights.shape[1]}", ["", "weight", "p"]]
        order = np.argsort(self.p_values, axis=None, kind="stable")[:10]
        for i, a in zip(*np.unravel_index(order, self.weights.shape), strict=True):
            shown = to_error(float(self.weights[i, a]), float(self.std[i, a]))
            rows.append([f"  {i}, {a}", shown, f"{self.p_values[i, a]:.1e}"])
        return rows


@quiet
def debias(data: Dataset, gamp: Any) -> DebiasedWeights:
    """Take the penalty's pull out of trained weights, which leaves Gaussian noise of known size.

    Eq. :eq:`debiased`, :eq:`debiased-noise`.

    Parameters
    ----------
    data : the samples; their spectra are those of the tokens, coordinate by coordinate.
    gamp : the result of `run_gamp` or `minimize_risk` on them, with the exact risk.

    Returns
    -------
    DebiasedWeights

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs; for weights of the asymptotic risk, and
        where the response of the fields is not positive definite.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.5), lam=0.5)
    >>> data = ga.sample(model, d=300, alpha=2.0, seed=0)
    >>> found = ga.debias(data, ga.run_gamp(data, "random"))
    >>> low, high = found.interval(0.9)[..., 0], found.interval(0.9)[..., 1]
    >>> inside = (low < data.Q_star) & (data.Q_star < high)
    >>> bool(0.85 < inside.mean() < 0.95)
    True
    """
    Q, at = trained(data, gamp)
    V = gamp.overlaps.V
    V = V if np.isfinite(V).all() else susceptibility(data, at, Q)
    V_hat = response(data, at.hessians, V)
    g = -at.loss_gradients
    spectra = data.spectra  # (S, 1) or (S, d)
    A = np.einsum("si,sab->iab", spectra, V_hat)
    A = 0.5 * (A + A.transpose(0, 2, 1))
    if not (np.isfinite(A).all() and np.linalg.eigvalsh(A).min() > 0):
        raise ValueError("gamp: needs weights at which the fields have a positive definite response, got others")
    forces = summed(data.groups, data.n_sources, g)  # (S, r)
    squares = summed(data.groups, data.n_sources, np.einsum("nla,nlb->nlab", g, g)) / data.dim  # (S, r, r)
    without_means = -at.smooth - data.source_means.T @ forces / np.sqrt(data.dim)
    inverse = np.linalg.inv(A)
    pull = np.einsum("iab,ib->ia", np.broadcast_to(inverse, (data.dim, *A.shape[1:])), without_means)
    N = np.einsum("si,sab->iab", spectra, squares)
    covariance = inverse @ N @ inverse
    deviation = np.sqrt(np.einsum("iaa->ia", covariance))
    return DebiasedWeights(
        weights=Q + pull, std=np.broadcast_to(deviation, Q.shape).copy(), covariance=covariance,
        trusted=is_trusted(data, gamp),
    )  # fmt: skip
