"""Where solvers start: named and given weights."""

from typing import TYPE_CHECKING, Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.seeds import Stream, generator

if TYPE_CHECKING:  # state evolution starts alike, and knows of no data
    from gamp_attention.data.dataset import Dataset

STARTS = ("semantic", "positional", "random")
POSITIONAL = 0.25  # size of the mean fields m at a positional start, near what is learnt in the paper's model
SMALL = 0.1  # standard deviation of uninformed weights, as in the paper's Appendix E.4


def initial_weights(data: "Dataset", init: Any, seed: Any = 0) -> np.ndarray:
    """Weights (d, r) from a name or an array.

    "semantic" is Q*; "positional" puts √d/4 times the leading directions of the positions in the first columns
    (Q = 1_d/4 in the paper's model), of p_l + μ_{l,k} in mixtures; "random" is 0.1 N(0, 1), and so are the columns
    that the other two leave free.

    Raises
    ------
    TypeError, ValueError : for an unknown name, a wrong shape, or "semantic" without a teacher.
    """
    check.fits("rank", data.dim, data.rank)
    random = generator(seed, Stream.STARTS)
    if not isinstance(init, str):
        return check.array("init", init, (data.dim, data.rank)).copy()
    check.choice("init", init, STARTS)
    Q = SMALL * random.standard_normal((data.dim, data.rank))
    if init == "semantic":
        if data.Q_star is None:
            raise ValueError("init: 'semantic' needs the teacher's weights, got data without a teacher")
        columns = data.Q_star
    elif init == "positional":
        columns = POSITIONAL * np.sqrt(data.dim) * position_directions(data.source_means)
        if columns.shape[1] == 0:
            raise ValueError("init: 'positional' needs positions that are not all zero, got zeros")
    else:
        return Q
    for first in range(0, data.rank, data.rank // data.student.parts):
        width = min(columns.shape[1], data.rank // data.student.parts)
        Q[:, first : first + width] = columns[:, :width]
    return Q


def position_directions(means: np.ndarray) -> np.ndarray:
    """Orthonormal directions (d, rank) that means (S, d) span, leading one first, signed along the first."""
    _, size, directions = np.linalg.svd(means, full_matrices=False)
    directions = directions[size > 1e-10 * max(size.max(), 1e-300)]
    signs = np.where(directions @ means[0] < 0, -1.0, 1.0)
    return (signs[:, None] * directions).T
