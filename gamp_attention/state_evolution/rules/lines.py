"""Lines of fields that cross the jumps of the proximal map, in white coordinates of the channel."""

import numpy as np

from gamp_attention.denoisers.newton import make_metric
from gamp_attention.state_evolution.equations.channel import Channel
from gamp_attention.state_evolution.equations.folding import contrast_basis
from gamp_attention.state_evolution.equations.moments import Moments
from gamp_attention.state_evolution.rules.line_average import line_averages
from gamp_attention.state_evolution.rules.line_track import legendre_nodes

LineValues = tuple[np.ndarray, ...]  # in the order of the fields of Moments, one row a line
ARRAYS = ("g", "with_noise", "with_teacher", "gg", "response", "square")


def reach(tol: float) -> float:
    """Range, in standard deviations, beyond which a Gaussian average may be cut."""
    margin = 1.5  # beyond where the Gaussian density reaches the tolerance
    return float(np.sqrt(-2 * np.log(tol)) + margin)


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
        self._grid = np.linspace(-reach(tol), reach(tol), 3)  # ends of panels, before any is cut
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
