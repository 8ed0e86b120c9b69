"""Points of posteriors that are drawn once and used for many prior means and covariances of the fields.

The fibre of a sample, the surface of variables with its target, does not change during message passing or state
evolution. Only the prior N(ω, V) of the fields does. Points of the fibre (`gamp_attention.models.channels.fibres`) that
were drawn for one prior therefore give the posterior for any similar prior, by other weights, at a hundredth of the
cost of new points. `ReusedPoints` draws new points if the prior has changed too much:

- the posterior needs variables that the points do not cover: V exceeds the covariance of the draw in some direction;
- the effective number of points, in the mean over the samples, is less than a fraction `MIN_EFFECTIVE` of the number
  immediately after the draw.

Points are drawn with a covariance somewhat larger than V, so that they remain useful if V fluctuates.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gamp_attention.models.channels.channel import Halves, Posterior
from gamp_attention.models.channels.fibres import weigh_points

WIDENED = 1.5  # ratio of the covariance of a draw to V, for V much smaller than the prior ρ
MIN_EFFECTIVE = 0.6  # fraction of the first effective number of points below which points are drawn again
COVERED = 1.02  # largest ratio of V to the covariance of a draw, in any direction


@dataclass(frozen=True, eq=False)
class FibrePoints:
    """Points of n samples, which `fill_points` has drawn."""

    fields: np.ndarray  # (M, k) fields of each point
    logs: np.ndarray  # (M,) logarithm of its weight without the prior of the fields
    groups: np.ndarray  # (M,) its group, from 0 to 3
    ends: np.ndarray  # (n,) end of the points of each sample
    flips: np.ndarray  # (F, k) changes of sign of the fields that map points to points
    shift: np.ndarray  # (n,) number that is added to log Z

    def weigh(self, omega: np.ndarray, V: np.ndarray) -> tuple[Posterior, np.ndarray]:
        """Return the posterior of the fields for the prior N(ω, V), and the effective numbers of points (n,).

        Moments are ratios of sums over K points, with a bias of order 1/K. Each half of the points consists of two
        groups, and the jackknife estimate of the moments in `halves`, twice the ratio of the half minus the mean ratio
        of its groups, has a bias of order 1/K². `mean` and `cov` are not corrected, so that a mean is always between
        points, as message passing needs. A sample without points is treated as if it had no target.
        """
        n, L, t = omega.shape
        blocks = np.zeros((L, t, L, t))
        blocks[np.arange(L), :, np.arange(L)] = V
        cov = blocks.reshape(L * t, L * t)
        centre, normalisation = omega.reshape(n, -1), -0.5 * np.linalg.slogdet(2 * np.pi * cov)[1]
        mean, second = np.empty((6, n, L * t)), np.empty((6, n, L * t, L * t))
        log_z, effective = np.empty(n), np.empty(n)
        weigh_points(
            self.fields, self.logs, self.groups, self.ends, self.flips, np.ascontiguousarray(centre),
            np.ascontiguousarray(np.linalg.inv(cov)), normalisation, mean, second, log_z, effective,
        )  # fmt: skip
        lost = ~np.isfinite(mean).all(axis=(0, 2))
        if lost.any():
            mean[:, lost], log_z[lost] = centre[lost], 0.0
            second[:, lost] = cov + centre[lost, :, None] * centre[lost, None, :]
        corrected = (2 * m[4:] - m[:4].reshape(2, 2, *m.shape[1:]).mean(axis=1) for m in (mean, second))
        halves = Halves(*(m.reshape(2, n, L, t) if m.ndim == 3 else m for m in corrected))
        average = mean[4:].mean(axis=0).reshape(n, L, t)
        covariance = second[4:].mean(axis=0) - symmetric_product(mean[4:])
        return Posterior(average, covariance, log_z + self.shift, None, halves), effective


def symmetric_product(halves: np.ndarray) -> np.ndarray:
    """Return the symmetric part of the outer products (n, k, k) of two independent means (2, n, k)."""
    crossed = halves[0][:, :, None] * halves[1][:, None, :]
    return np.asarray(0.5 * (crossed + crossed.transpose(0, 2, 1)))


class ReusedPoints:
    """Posteriors of given samples, from points that are drawn again only if the prior has changed too much.

    Parameters
    ----------
    draw : function that draws points for prior means (n, L, t) and covariances (L, t, t).
    rho : (L, t, t) covariances of the fields without information.
    """

    def __init__(self, draw: Callable[[np.ndarray, np.ndarray], FibrePoints], rho: np.ndarray) -> None:
        self._draw, self._rho = draw, rho
        self._points: FibrePoints | None = None
        self._V, self._effective = rho, 0.0

    def posterior(self, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the posterior of the fields for prior means ω (n, L, t) and covariances V (L, t, t)."""
        if self._points is not None and self._covers(V):
            posterior, effective = self._points.weigh(omega, V)
            if effective.mean() >= MIN_EFFECTIVE * self._effective:
                return posterior
        inverse = np.linalg.inv(self._rho)
        self._V = np.linalg.inv(inverse + (np.linalg.inv(V) - inverse) / WIDENED)
        self._points = self._draw(omega, self._V)
        posterior, effective = self._points.weigh(omega, V)
        self._effective = float(effective.mean())
        return posterior

    def _covers(self, V: np.ndarray) -> bool:
        """Return whether no direction has a larger variance than the covariance of the draw."""
        ratios = np.linalg.eigvals(np.linalg.solve(self._V, V))
        return bool(np.real(ratios).max() <= COVERED)
