"""Linear layer y = W x fitted to data by ridge regression, and its test error at the dimension d of the data.

Given the teacher, the error on new samples is a smooth Gaussian average over the teacher's fields.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.overflow import quiet
from gamp_attention._core.seeds import generator
from gamp_attention.baselines.gaussian_average import AVERAGES, Integrand, gaussian_average
from gamp_attention.baselines.linear import WhitenedTeacher, checked_accuracy
from gamp_attention.data.dataset import Dataset, require_dataset
from gamp_attention.results import Ended, Status


@dataclass(frozen=True, eq=False)
class LinearFit(Ended):
    """Linear layer fitted to data of finite d.

    Attributes
    ----------
    weights : (L, L) minimiser W of the risk of eq. (18).
    train_loss : that risk divided by d; tends to α L ε_lin / 2.
    test_error, test_error_error : E‖y − W x‖_F²/(dL) over new samples of the same teacher at this d, and its numerical
        error, a half-width with a coverage of at least 95 %. There is no sampling error: given Q*, the expectation is
        an average over the teacher's fields. NaN for your arrays, whose distribution is unknown.
    status : CONVERGED, or INACCURATE if the requested accuracy of the test error was not reached within `max_points`.
    """

    weights: np.ndarray
    train_loss: float
    test_error: float
    test_error_error: float
    status: Status


@quiet
def fit_linear_baseline(
    data: Dataset, lam: float = 1e-4, *, rtol: float = 1e-6, max_points: int = 1 << 21, seed: Any = 0
) -> LinearFit:
    """Fit the linear layer of equations (17) and (18) to data by ridge regression.

    The layer is f_W(x) = W x and sees the tokens without their positions. W minimises

        R(W) = Σ_μ ‖y^μ − W x^μ‖_F²/(2d) + (λ/2)‖W‖_F².

    This risk is normalised as in eq. (3): the sum over samples is of order d, so the penalty, of order one, vanishes
    as 1/d. It is the loss of the authors' published program, which uses λ = 1e-4. A layer acting on x + p would differ
    by O(1/d), because ‖p‖ is of order one.

    Parameters
    ----------
    data : samples with outputs, drawn from a model or built from your arrays.
    lam : ridge λ > 0 of the linear layer, independent of the penalty of the attention layer.
    rtol, max_points, seed : accuracy of the test error, see `linear_baseline`.

    Returns
    -------
    LinearFit

    Raises
    ------
    TypeError : if `data` is not a Dataset or has labels instead of outputs, or an argument has the wrong type.
    ValueError : if `lam` is not positive, `rtol` is outside [1e-10, 0.1], `max_points` is below 8192, or `seed` is
        negative.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> fit = ga.fit_linear_baseline(ga.sample(ga.paper_model(), d=400, alpha=1.5, seed=0))
    >>> fit.weights.shape, 0.0017 < fit.test_error < 0.0023
    ((2, 2), True)
    """
    if require_dataset(data).labels is not None:
        raise check.fail("data", data, "samples with outputs, not labels", TypeError)
    lam = check.real("lam", lam, low=0, strict=True)
    rtol, max_points = checked_accuracy(rtol, max_points)
    rng = generator(seed)
    L, d, tokens, outputs = data.n_tokens, data.dim, np.asarray(data.tokens), data.outputs

    def chunks(size: int = 1000) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for k in range(0, len(tokens), size):
            yield tokens[k : k + size].astype(float), outputs[k : k + size]

    normal, cross = lam * np.eye(L), np.zeros((L, L))
    for x, y in chunks():
        x_t = x.transpose(0, 2, 1)
        normal += (x @ x_t).sum(axis=0) / d
        cross += (y @ x_t).sum(axis=0) / d
    # `solve` fails here: next to large collinear tokens λ is lost to rounding. The least-squares solution of minimum
    # norm is the limit λ → 0
    W = np.linalg.lstsq(normal, cross.T)[0].T
    square = sum(float(np.sum((y - W @ x) ** 2)) for x, y in chunks())
    train_loss = (square / (2 * d) + 0.5 * lam * float(np.sum(W**2))) / d
    if data.model is None or data.Q_star is None:
        return LinearFit(W, train_loss, np.nan, np.nan, Status.CONVERGED)
    integrand = _TestErrorIntegrand(data, W)
    values, errors, status = gaussian_average(integrand, rtol, max_points, rng)
    return LinearFit(W, train_loss, float(values[0]), float(errors[0]), status)


class _TestErrorIntegrand(Integrand):
    """Test error E‖y − W x‖²/(dL) of an instance; in mixtures averaged over the patterns of classes."""

    def __init__(self, data: Dataset, W: np.ndarray) -> None:
        assert data.model is not None
        self.parts = [(share, _PatternTestError(data, sources, W)) for share, sources, _ in data.model.components]
        self.dim = max(part.dim for _, part in self.parts)
        self.even = all(part.fields.even for _, part in self.parts)

    def __call__(self, white: np.ndarray) -> np.ndarray:
        return sum((share * part(white) for share, part in self.parts), np.zeros((len(white), 1)))

    def rounding(self, results: np.ndarray) -> np.ndarray:
        return np.max([part.rounding(results) for _, part in self.parts], axis=0)


class _PatternTestError:
    """Test error E‖y − W x‖²/(dL) for fixed sources of the tokens, as a function of the teacher's fields.

    Given the fields, the tokens are Gaussian. With u_l = Q*ᵀ(x_l − μ_l)/√d = Σ_a ξ_a s_a v_a, summed over the
    coordinates a of token l, E[x_l | ξ] = μ_l + Σ_a κ_a ξ_a with κ_a = Σ_l Q* v_a/(√d s_a). So
    G_jk = Σ_ab ξ_a ξ_b κ_a·κ_b/d + δ_jk (tr Σ_j/d − Σ_a ‖κ_a‖²/d) is the mean of x xᵀ/d, in which μ counts as a κ with
    ξ = 1.
    """

    def __init__(self, data: Dataset, sources: np.ndarray, W: np.ndarray) -> None:
        assert data.model is not None
        assert data.Q_star is not None
        teacher, Q_star, spectra = data.model.teacher, data.Q_star, data.spectra[sources]
        mu = data.source_means[sources] - data.positions
        d = len(Q_star)
        full = np.broadcast_to(spectra, (len(spectra), d))
        rho = np.einsum("ld,ds,dt->lst", full, Q_star, Q_star, optimize=True) / d
        self.fields = fields = WhitenedTeacher(teacher, rho, mu @ Q_star / np.sqrt(d))
        kappa = full[fields.token] * (fields.direction @ Q_star.T) / np.sqrt(d * fields.variance)[:, None]
        self.rest = full.mean(axis=1) - np.bincount(fields.token, np.sum(kappa**2, axis=1) / d, len(full))
        self.dim, self.W, self.token = fields.dim, W, fields.token
        if mu.any():
            kappa, self.token = np.concatenate([kappa, mu]), np.append(fields.token, np.arange(len(mu)))
        self.overlap = kappa @ kappa.T / d
        self._noise = data.model.score_noise**2 * float(full.mean(axis=1).sum() + np.sum(mu**2) / d)

    def __call__(self, white: np.ndarray) -> np.ndarray:
        difference = self.fields.targets(white) - self.W
        white = np.concatenate([white[:, : self.dim], np.ones((len(white), len(self.token) - self.dim))], axis=1)
        along = difference[:, :, self.token] * white[:, None, :]
        value = np.sum((along @ self.overlap) * along, axis=(1, 2)) + (difference**2 @ self.rest).sum(axis=1)
        return value[:, None] / len(self.W) + self._noise

    def rounding(self, results: np.ndarray) -> np.ndarray:
        scale = max(self.rest.max(), 0.0) * max(1.0, np.abs(self.W).max()) ** 2
        return AVERAGES.rounding * (results + np.sqrt(np.maximum(results, 0) * scale))
