"""Where solvers start on data: weights by name, or given ones."""

from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.seeds import Stream, generator
from gamp_attention.data.dataset import Dataset
from gamp_attention.models.starts import SIZES, fill_start


def initial_weights(data: Dataset, init: Any, seed: Any = 0) -> np.ndarray:
    """Weights (d, r) from an array, or a name as told in `gamp_attention.models.starts`."""
    check.fits("rank", data.dim, data.rank)
    random = generator(seed, Stream.STARTS)
    if not isinstance(init, str):
        return check.array("init", init, (data.dim, data.rank)).copy()
    Q = SIZES.uninformed * random.standard_normal((data.dim, data.rank))
    fill_start(Q, init, data.student.parts, data.Q_star, lambda: position_directions(data.source_means))
    return Q


def position_directions(means: np.ndarray) -> np.ndarray:
    """Orthogonal directions (d, k) of norm √d that means (S, d) span, leading one first, signed along the first."""
    _, size, directions = np.linalg.svd(means, full_matrices=False)
    directions = directions[size > 1e-10 * max(size.max(), 1e-300)]
    signs = np.where(directions @ means[0] < 0, -1.0, 1.0)
    return np.sqrt(means.shape[1]) * (signs[:, None] * directions).T
