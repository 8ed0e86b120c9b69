"""Initial weights of solvers on data: arrays and named starts."""

from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.choices import FURTHER_STARTS, STARTS
from gamp_attention._tools.numerics import Stream, generator
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.named_starts import UNINFORMED_SIZE, fill_start


def default_start(data: Dataset) -> str:
    """Return the name of the default start: "semantic" with a teacher, else "spectral", or "random" without it."""
    return "semantic" if data.Q_star is not None else "spectral" if "spectral" in FURTHER_STARTS else "random"


def initial_weights(data: Dataset, init: Any, seed: Any = 0, risk: str = "exact") -> np.ndarray:
    """Return initial weights (d, r) from an array, a name, or None for the default of the data."""
    return several_starts(data, init, 1, seed, risk)[0][1]


def several_starts(
    data: Dataset, init: Any, n_starts: int, seed: Any = 0, risk: str = "exact"
) -> list[tuple[str, np.ndarray]]:
    """Return names and weights (d, r): the requested start, or several starts of this name, then random starts."""
    check.require_memory("rank", data.dim, data.rank)
    init = default_start(data) if init is None else init
    random, starts = generator(seed, Stream.STARTS), list[tuple[str, np.ndarray]]()
    if not isinstance(init, str):
        starts.append(("given", check.array("init", init, (data.dim, data.rank)).copy()))
    elif check.choice("init", init, (*STARTS, *FURTHER_STARTS)) in FURTHER_STARTS:
        starts += FURTHER_STARTS[init](data, risk, n_starts, random)
    elif init != "random":
        starts.append((init, _draw_start(data, init, random)))
    further = range(1, n_starts - len(starts) + 1)
    return starts + [(f"random {k}", _draw_start(data, "random", random)) for k in further]


def _draw_start(data: Dataset, init: str, random: np.random.Generator) -> np.ndarray:
    """Return weights (d, r) of a named start, with random entries in the uninformed columns."""
    Q = UNINFORMED_SIZE * random.standard_normal((data.dim, data.rank))
    fill_start(Q, init, data.student.parts, data.Q_star, lambda: position_directions(data.source_means))
    return Q


def position_directions(means: np.ndarray) -> np.ndarray:
    """Return orthogonal directions (d, k) of norm √d that span the means (S, d), the leading direction first.

    Signs are such that products with the first mean are not negative.
    """
    _, size, directions = np.linalg.svd(means, full_matrices=False)
    directions = directions[size > 1e-10 * max(size.max(), 1e-300)]
    signs = np.where(directions @ means[0] < 0, -1.0, 1.0)
    return np.sqrt(means.shape[1]) * (signs[:, None] * directions).T
