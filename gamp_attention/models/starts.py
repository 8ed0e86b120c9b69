"""Named starts: what the first weights of a solver are, on data and in state evolution alike.

In each weight matrix of the student (Q, or queries and keys) the first columns are

- "semantic": the teacher's, Q*;
- "positional": √d/4 times the orthonormal directions of the positions p_l, or p_l + μ_{l,k} in mixtures, leading
  one first (Q = 1_d/4 in the paper's model);
- "random": none.

All other columns are uninformed, 0.1 N(0, 1) as in the paper's Appendix E.4.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gamp_attention._core import check

STARTS = ("semantic", "positional", "random")


@dataclass(frozen=True)
class StartSizes:
    """Sizes of weights at the start."""

    positional: float = 0.25  # near what is learnt in the paper's model, where it is the size of the mean fields m
    uninformed: float = 0.1  # standard deviation


SIZES = StartSizes()


def fill_start(
    weights: np.ndarray, init: str, parts: int, teacher: np.ndarray | None, directions: Callable[[], np.ndarray]
) -> np.ndarray:
    """Put the columns of a named start into weights (·, r), and tell which columns (r,) it leaves uninformed.

    Any coordinates will do, as those of R^d, or coefficients on positions and teacher. The student has `parts` weight
    matrices; `teacher` (·, t) are the columns of Q*; `directions` gives orthogonal columns (·, k) of norm √d that span
    the positions, leading one first.
    """
    check.choice("init", init, STARTS)
    columns = np.empty((len(weights), 0))
    if init == "semantic":
        if teacher is None:
            raise ValueError("init: 'semantic' needs the teacher's weights, got data without a teacher")
        columns = teacher
    elif init == "positional":
        columns = SIZES.positional * directions()
        if columns.shape[1] == 0:
            raise ValueError("init: 'positional' needs positions that are not all zero, got zeros")
    rank = weights.shape[1]
    uninformed, size = np.ones(rank, dtype=bool), rank // parts
    for first in range(0, rank, size):
        known = slice(first, first + min(columns.shape[1], size))
        weights[:, known], uninformed[known] = columns[:, :size], False
    return uninformed
