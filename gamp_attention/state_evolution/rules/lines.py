"""Lines of fields that cross the jumps of the proximal map, in white coordinates of the channel."""

from functools import lru_cache

import numpy as np
from scipy.special import erf

from gamp_attention.denoisers.newton import make_metric
from gamp_attention.state_evolution.equations.channel import Channel
from gamp_attention.state_evolution.equations.folding import contrast_basis
from gamp_attention.state_evolution.equations.moments import Moments
from gamp_attention.state_evolution.rules.line_average import line_averages
from gamp_attention.state_evolution.rules.line_track import legendre_nodes

LineValues = tuple[np.ndarray, ...]  # in the order of the fields of Moments, one row a line
SECOND_MOMENT, ROUNDING = 1e-3, 1e-14  # error of the variance of e, in units of the tolerance, and by rounding
ARRAYS = ("g", "with_noise", "with_teacher", "gg", "response", "square")


def reach(tol: float) -> float:
    """Range, in standard deviations, beyond which a Gaussian average may be cut."""
    margin = 1.5  # beyond where the Gaussian density reaches the tolerance
    return float(np.sqrt(-2 * np.log(tol)) + margin)


@lru_cache
def first_panels(tol: float, n_nodes: int) -> np.ndarray:
    """Return the ends of the first panels of a line, before any is cut.

    The panels are so short that the nodes integrate e² times the Gaussian density to a thousandth of the tolerance.
    Where fields hardly change along a line, nothing else would make them shorter, and averages in which large terms
    cancel, as the training loss, amplify the error.
    """
    end, nodes = reach(tol), legendre_nodes(n_nodes)
    density = np.exp(-0.5 * end**2) * np.sqrt(2 / np.pi)
    exact = float(erf(end / np.sqrt(2))) - end * density
    n_panels = 2
    while True:
        ends = np.linspace(-end, end, n_panels + 1)
        half = 0.5 * np.diff(ends)[:, None]
        e = ends[:-1, None] + half * (1 + nodes.x)
        second = float((half * nodes.weight * e**2 * np.exp(-0.5 * e**2)).sum() / np.sqrt(2 * np.pi))
        if abs(second - exact) <= max(SECOND_MOMENT * tol, ROUNDING):
            return ends
        n_panels += 1


class WorkExceeded(ArithmeticError):
    """Lines need more proximal problems than they may."""


class FieldLines:
    """Line averages of a channel, as functions of the other white coordinates.

    All together may solve at most so many proximal problems, then `WorkExceeded` is raised.
    """

    def __init__(self, channel: Channel, tol: float, n_nodes: int, max_work: float = np.inf) -> None:
        (L, r, _), overlaps = channel.shape, channel.overlaps
        self._channel, self._left = channel, max_work
        self._metric = make_metric(overlaps.V)
        self.square_unit = min(self._metric.smallest, 1e150) ** 2  # of products of ∂g/∂ω: V⁻², if that is a number
        student = contrast_basis(L, r)
        self._across = student[:, 1:]
        self._direction = np.einsum("lab,lb->la", channel.root, student[:, 0].reshape(L, r))
        self._grid = first_panels(tol, n_nodes)
        self._nodes = legendre_nodes(n_nodes)
        size = np.sqrt(np.abs(overlaps.q).max()) + np.abs(overlaps.m).max()
        # of fields; not less, or rounding looks like structure where all weights are zero
        self._size = max(size, 1e-10 * np.sqrt(overlaps.V.max()))

    def averages(
        self, teacher: np.ndarray, student: np.ndarray, tol: np.ndarray, tol_square: np.ndarray
    ) -> tuple[LineValues, np.ndarray, np.ndarray]:
        """The moments of the channel on n lines, one row each; on each the number of jumps, and the least square.

        Arguments are white coordinates of the teacher (n, n_teacher) and of the student across the lines
        (n, L r − 1), and the tolerances (n,), relative to the size of fields, and of squares of V ∂g/∂ω.
        """
        channel = self._channel
        y, terms = channel.teacher(teacher)
        noise = channel.fields(y, (student @ self._across.T).reshape(len(teacher), *channel.shape[:2]))
        out = line_averages(
            channel.loss, terms.params, noise + channel.overlaps.m, self._direction, self._metric, self._grid,
            self._nodes, self._size * tol, tol_square,
        )  # fmt: skip
        self._left -= out.work[:, :2].sum()
        if self._left < 0:
            raise WorkExceeded
        values = (
            out.g,
            out.g[..., :, None] * noise[..., None, :] + out.g_e[..., :, None] * self._direction[..., None, :],
            out.g[..., :, None] * y[..., None, :],
            out.gg,
            out.response,
            out.square,
            out.moreau + terms.constant,
            out.loss + terms.constant,
        )
        return values, out.work[:, 2], out.jump


def mean_moments(weights: np.ndarray, values: LineValues) -> Moments:
    """Weighted sum of line averages."""
    *arrays, moreau, loss = (np.tensordot(weights, v, 1) for v in values)
    named = dict(zip(ARRAYS, arrays, strict=True))
    return Moments(**named, moreau=float(moreau), loss=float(loss), steepest=np.inf, doubled=1.0)
