"""Random trajectories of survey propagation at finite d, with the fields of exactly n = αd samples.

State evolution replaces the sums over the samples of a data set by averages. At finite d the sums fluctuate: not only
the forces on the teacher and on the positions (`survey_paths.sample_cosines`), but also V̂ and Δ, and with them V and U,
the second moments of ḡ, and the factors by which overlaps grow, by a fraction of order (αd)^(−1/2). All these
fluctuations occur if the fields of exactly n samples are drawn.

The iteration depends on the tokens only through products of a matrix Z of independent standard normal numbers: with
n L rows, one for each token of each sample, and d columns,

    X̃_l x = √(γ_l/d) Z_l x + m_l,   Σ_l X̃_lᵀ ḡ_l = Σ_l √(γ_l/d) Z_lᵀ ḡ_l + Σ_l τ_l Σ_μ ḡ_μl / d

`NormalMatrix` draws such products one after the other, each given all earlier products (Bolthausen, 2014). For
orthonormal vectors e_i and f_j with known a_i = Z e_i and b_j = Zᵀ f_j, and a unit vector e orthogonal to all e_i,

    Z e = g + Σ_j f_j (b_j·e − f_j·g)   with standard normal g, and the same for Zᵀ f with both sides exchanged.

After T iterations only 2T + 2 such products are known, so that no matrix of n d numbers is needed, and the distribution
of the iterates is the distribution for tokens drawn in advance.
"""

from typing import Any

import numpy as np

from gamp_attention._tools.numerics import symmetrize
from gamp_attention.extensions.dynamics.survey_paths import SurveySample, axes_of
from gamp_attention.extensions.train.survey_averages import average_fields, update_cluster
from gamp_attention.gamp.damping import Damping
from gamp_attention.theory.equations.channel import fields_and_terms, teacher_size
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.start_law import start_law


class _Products:
    """Orthonormal vectors, and the products of a matrix with them."""

    def __init__(self, size: int, product_size: int) -> None:
        self.vectors, self.products = np.zeros((0, size)), np.zeros((0, product_size))

    def split(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the product with the part of a vector in the span of the known vectors, and the rest."""
        coefficients, rest = np.zeros(len(self.vectors)), vector
        for _ in range(2):  # the second time removes rounding errors of the first
            part = self.vectors @ rest
            coefficients, rest = coefficients + part, rest - part @ self.vectors
        return coefficients @ self.products, rest

    def append(self, vector: np.ndarray, product: np.ndarray) -> None:
        """Append a unit vector that is orthogonal to all known vectors."""
        self.vectors, self.products = np.vstack([self.vectors, vector]), np.vstack([self.products, product])


class NormalMatrix:
    """Matrix Z (n, d) of independent standard normal numbers, whose products are drawn when they are needed.

    Parameters
    ----------
    n, d : numbers of rows and of columns.
    rng : generator of the products.
    same : norm of the new part of a vector, relative to the vector, below which its product is already known.
    """

    def __init__(self, n: int, d: int, rng: np.random.Generator, same: float = 1e-10) -> None:
        self._right, self._left, self._rng, self._same = _Products(d, n), _Products(n, d), rng, same

    def times(self, x: np.ndarray) -> np.ndarray:
        """Return Z x (n,)."""
        return self._multiply(x, self._right, self._left)

    def transpose_times(self, y: np.ndarray) -> np.ndarray:
        """Return Zᵀ y (d,)."""
        return self._multiply(y, self._left, self._right)

    def _multiply(self, vector: np.ndarray, side: _Products, other: _Products) -> np.ndarray:
        product, rest = side.split(vector)
        norm = float(np.linalg.norm(rest))
        if norm <= self._same * np.linalg.norm(vector):
            return product
        unit, fresh = rest / norm, self._rng.standard_normal(side.products.shape[1])
        fresh += (other.products @ unit - other.vectors @ fresh) @ other.vectors
        side.append(unit, fresh)
        return np.asarray(product + norm * fresh)


def sample_survey(
    model: Model, alpha: float, d: int, damping: Any, parisi: float, n_iter: int, rng: np.random.Generator,
    V: np.ndarray, jumps: bool = False,
) -> SurveySample:  # fmt: skip
    """Return one random trajectory of survey propagation from random weights, for a data set of n = αd samples.

    Its distribution is the distribution of `survey_step` with the asymptotic risk, at every d.

    Parameters
    ----------
    model, alpha, d, damping, parisi, n_iter, rng, V, jumps : as for `sample_cosines`.

    Raises
    ------
    ValueError : if the model is not of this kind.
    """
    axes, law, L, n = axes_of(model), model.coordinates, model.n_tokens, round(alpha * d)
    axes.require_positions(model)
    step, gamma = Damping(damping), axes.gamma
    tau = np.repeat(law.tau[0][:, None], d, axis=1)
    teacher = law.teacher_mean[0, 0] + np.sqrt(law.teacher_cov[0, 0, 0]) * rng.standard_normal(d)
    Q = np.sqrt(start_law(model, "random").moments[0, 0, 0]) * rng.standard_normal((d, 1))
    Z, roots = NormalMatrix(n * L, d, rng), np.sqrt(gamma / d)
    y = roots * Z.times(teacher).reshape(n, L)
    noise = rng.standard_normal((n, teacher_size(model) - L))
    _, terms = fields_and_terms(model, np.concatenate([y / np.sqrt(law.rho[:, 0, 0]), noise], axis=1))
    directions = np.stack([teacher, axes.main @ tau])
    directions /= np.linalg.norm(directions, axis=1)[:, None]
    spectra, U, D, z = gamma[:, None], law.trace[:, None, None] * np.eye(1), np.zeros((n, L, 1)), None
    cosines, sizes = [directions @ Q[:, 0] / np.linalg.norm(Q)], [(np.mean(Q**2) * gamma, V[:, 0, 0], U[:, 0, 0])]
    for t in range(n_iter):
        beta, fields = step(t), roots * Z.times(Q[:, 0]).reshape(n, L) + tau @ Q[:, 0] / d
        averages, z = average_fields(model.loss, terms.params, fields[:, :, None] - D, V, U, parisi, z, jumps)
        g = averages.g[..., 0]
        force = Z.transpose_times((roots * g).ravel()) + g.sum(axis=0) @ tau / d
        V_hat, spread = (symmetrize(values.sum(axis=0)) / d for values in (averages.response, averages.spread))
        new = update_cluster(model.penalty, spectra, V_hat, spread, force[:, None], Q, V, U, parisi, beta)
        D = (1 - beta) * D + beta * np.einsum("lab,nlb->nla", new.W + parisi * new.W_inner, averages.g)
        Q, V, U = new.Q, new.V, new.U
        cosines.append(directions @ Q[:, 0] / np.linalg.norm(Q))
        sizes.append((np.mean(Q**2) * gamma, V[:, 0, 0], U[:, 0, 0]))
    return SurveySample(*np.transpose(cosines), *(np.array(values) for values in zip(*sizes, strict=True)))
