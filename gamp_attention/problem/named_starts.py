"""Named starts.

`fill_start` writes the initial weights of a solver, both for data and in state evolution. In each weight matrix of the
student (Q, or queries and keys) the first columns are

- "semantic": the teacher's columns Q*;
- "positional": √d/4 times the orthonormal directions of the positions p_l, or p_l + μ_{l,k} in mixtures, leading
  direction first (Q = 1_d/4 in the paper's model);
- "random": none.

All other columns are uninformed, 0.1 N(0, 1) as in the paper's Appendix E.4.
"""

from collections.abc import Callable

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.choices import STARTS

POSITIONAL_SIZE = 0.25  # m at a positional start; in the paper's model close to the m that is learned
UNINFORMED_SIZE = 0.1  # standard deviation of the entries of uninformed columns


def fill_start(
    weights: np.ndarray, init: str, parts: int, teacher: np.ndarray | None, directions: Callable[[], np.ndarray]
) -> np.ndarray:
    """Write the columns of a named start into weights (·, r) in place; return which columns (r,) stay uninformed.

    The rows can be in any coordinates: the standard basis of R^d, or coefficients of positions and teacher. The
    student has `parts` weight matrices; `teacher` (·, t) has the columns of Q*; `directions` returns orthogonal columns
    (·, k) of norm √d that span the positions, leading direction first.
    """
    check.choice("init", init, STARTS)
    columns = np.empty((len(weights), 0))
    if init == "semantic":
        if teacher is None:
            raise ValueError("init: 'semantic' needs the teacher's weights, got data without a teacher")
        columns = teacher
    elif init == "positional":
        columns = POSITIONAL_SIZE * directions()
        if columns.shape[1] == 0:
            raise ValueError("init: 'positional' needs positions that are not all zero, got zeros; use 'random'")
    rank = weights.shape[1]
    uninformed, size = np.ones(rank, dtype=bool), rank // parts
    for first in range(0, rank, size):
        informed = slice(first, first + min(columns.shape[1], size))
        weights[:, informed], uninformed[informed] = columns[:, :size], False
    return uninformed
