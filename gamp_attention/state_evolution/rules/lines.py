"""Lines of fields that cross the jumps of the proximal map, in white coordinates of the channel."""

import numpy as np

from gamp_attention.denoisers.newton import make_metric
from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.channel import Moments, student_noise_law, teacher_fields, teacher_size
from gamp_attention.state_evolution.rules.line_average import line_averages
from gamp_attention.state_evolution.rules.line_track import legendre_nodes

PANELS = 4  # on a line, before any is cut
MARGIN = 1.5  # of the range of a line, beyond where the Gaussian density reaches the tolerance
LEAST_SIZE = 1e-10  # of fields in units of √V, or rounding looks like structure where all weights are zero

LineValues = tuple[np.ndarray, ...]  # in the order of the fields of Moments, one row a line
ARRAYS = ("g", "with_noise", "with_teacher", "gg", "response", "square")


def fields_of(model: Model) -> int:
    """White coordinates of the channel, L (r + t) and the noise of labels."""
    return model.n_tokens * model.rank + teacher_size(model)


def reach(tol: float) -> float:
    """Range, in standard deviations, beyond which a Gaussian average may be cut."""
    return float(np.sqrt(-2 * np.log(tol)) + MARGIN)


def contrast_basis(n_tokens: int, rank: int) -> np.ndarray:
    """Orthonormal basis (L·rank, L·rank) whose first column is the contrast between tokens, in the first column.

    Where tokens are alike attention is undecided: the proximal map jumps across this direction.
    """
    first = np.zeros((n_tokens, rank))
    first[:, 0] = np.linspace(1, -1, n_tokens) if n_tokens > 1 else 1
    size = n_tokens * rank
    basis, _ = np.linalg.qr(np.concatenate([first.reshape(size, 1), np.eye(size)], axis=1))
    return basis * np.sign(first.reshape(size) @ basis[:, 0])


class WorkExceeded(ArithmeticError):
    """Lines need more proximal problems than they may."""


class FieldLines:
    """Line averages at given overlaps, as functions of the other white coordinates.

    All together may solve at most so many proximal problems, then `WorkExceeded` is raised.
    """

    def __init__(self, model: Model, overlaps: Overlaps, tol: float, n_nodes: int, most: float = np.inf) -> None:
        L, r = overlaps.m.shape
        self._model, self._m, self._shape = model, overlaps.m, (L, r)
        self._metric = make_metric(overlaps.V)
        self._slope, self._root = student_noise_law(model, overlaps)
        student = contrast_basis(L, r)
        self._across = student[:, 1:]
        self._direction = np.einsum("lab,lb->la", self._root, student[:, 0].reshape(L, r))
        self._grid = np.linspace(-reach(tol), reach(tol), PANELS + 1)
        self._nodes = legendre_nodes(n_nodes)
        self._left = most
        size = np.sqrt(np.abs(overlaps.q).max()) + np.abs(overlaps.m).max()
        self._size = max(size, LEAST_SIZE * np.sqrt(overlaps.V.max()))  # of fields

    def averages(self, teacher: np.ndarray, student: np.ndarray, tol: np.ndarray) -> LineValues:
        """The moments of the channel on n lines, one row each.

        Arguments are white coordinates of the teacher (n, teacher_size) and of the student across the lines
        (n, L r − 1), and the tolerance (n,) relative to the size of fields.
        """
        model, (L, r) = self._model, self._shape
        n = len(teacher)
        y, terms = teacher_fields(model, teacher)
        across = (student @ self._across.T).reshape(n, L, r)
        noise = np.einsum("lrt,nlt->nlr", self._slope, y) + np.einsum("lab,nlb->nla", self._root, across)
        out = line_averages(
            model.loss, terms.params, noise + self._m, self._direction, self._metric, self._grid, self._nodes,
            self._size * tol,
        )  # fmt: skip
        self._left -= out.work[:, :2].sum()
        if self._left < 0:
            raise WorkExceeded
        return (
            out.g,
            out.g[..., :, None] * noise[..., None, :] + out.g_e[..., :, None] * self._direction[..., None, :],
            out.g[..., :, None] * y[..., None, :],
            out.gg,
            out.response,
            out.square,
            out.moreau + terms.constant,
            out.loss + terms.constant,
        )


def mean_moments(weights: np.ndarray, values: LineValues) -> Moments:
    """Weighted sum of line averages."""
    *arrays, moreau, loss = (np.tensordot(weights, v, 1) for v in values)
    return Moments(**dict(zip(ARRAYS, arrays, strict=True)), moreau=float(moreau), loss=float(loss))
