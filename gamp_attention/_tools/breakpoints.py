"""Points at which functions of one variable jump or have kinks, from values of the functions only.

Averages over a teacher's field converge fast only between such points of the labels, for example of |u| or sign(u).
`find_breakpoints` finds them in three steps:

1. Compute the third differences on an equidistant grid. A jump or a kink makes them locally large.
2. Zoom into each local maximum: divide the interval into 16 parts and keep the two around the largest second
   difference, which contain the jump or the kink.
3. From the fourth to the seventh division, second differences per width decrease by 8³ for a smooth function, stay the
   same at a kink and increase by 8³ at a jump. This decides whether the point is kept.
"""

from collections.abc import Callable

import numpy as np

REACH = 9.0  # half-width of the interval that is searched, in standard deviations
# number of cells of the grid, and its shift, so that points of symmetry, such as 0, are not among its points
N_CELLS, OFFSET = 128, 0.0137
CANDIDATE = 1e-6  # smallest third difference that is examined, in units of the range, which curvatures may cause
MAX_CANDIDATES = 8  # largest number of points that are examined for each function
N_PARTS, N_DIVISIONS = 16, 12  # number of parts into which an interval is divided, and number of divisions
EARLY, LATE = 3, 6  # divisions whose changes of slope are compared
PERSISTENT = 0.3  # smallest ratio of the changes of slope at a kink or a jump; 1/512 for smooth functions
RESOLVED = 1e-6  # smallest change of slope relative to the mean slope; rounding errors are smaller


def find_breakpoints(function: Callable[[np.ndarray, np.ndarray], np.ndarray], n: int) -> list[np.ndarray]:
    """Return the increasing points of jumps and kinks in [−reach, reach] of n functions.

    `function` takes the numbers (N,) of functions and arguments (N,) to values (N, P), whose P components are examined
    together. Kinks weaker than 1e-6 of the function's range, points beyond the first eight, and pairs of points that
    are closer than a cell of the grid may be missed.
    """
    grid = np.linspace(-REACH, REACH, N_CELLS + 1) + OFFSET
    values = function(np.repeat(np.arange(n), len(grid)), np.tile(grid, n)).reshape(n, len(grid), -1)
    size = np.ptp(values, axis=1).max(axis=1)
    third = np.abs(np.diff(values, 3, axis=1)).max(axis=2)
    owner, first = _local_maxima(np.where(third > CANDIDATE * size[:, None], third, 0.0))
    if len(owner) == 0:
        return [np.zeros(0)] * n
    low, high = grid[first], grid[first + 3]
    changes = []
    for _ in range(N_DIVISIONS):
        x = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, N_PARTS + 1)
        inside = function(np.repeat(owner, x.shape[1]), x.ravel()).reshape(*x.shape, -1)
        second = np.abs(np.diff(inside, 2, axis=1)).max(axis=2)
        part, row = second.argmax(axis=1), np.arange(len(owner))
        changes.append(second[row, part] * N_PARTS / (high - low))
        low, high = x[row, part], x[row, part + 2]
    late = changes[LATE]
    kept = late > PERSISTENT * changes[EARLY]
    kept &= late > RESOLVED * np.abs(values).max(axis=(1, 2))[owner] / REACH
    points = 0.5 * (low + high)
    return [np.unique(points[kept & (owner == k)]) for k in range(n)]


def _local_maxima(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return row and column of the largest positive entries (n, m) that no entry within three columns exceeds."""
    m = values.shape[1]
    padded = np.pad(values, ((0, 0), (3, 3)))
    is_maximum = values > 0
    for shift in (0, 1, 2):  # of equal entries, the last counts
        is_maximum &= (values >= padded[:, shift : shift + m]) & (values > padded[:, 4 + shift : 4 + shift + m])
    strongest = np.sort(np.where(is_maximum, values, 0.0), axis=1)[:, -min(MAX_CANDIDATES, m)]
    row, column = np.nonzero(is_maximum & (values >= strongest[:, None]))
    return row, column
