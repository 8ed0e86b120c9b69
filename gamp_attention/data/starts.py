"""Where solvers start on data: weights by name, or given ones."""

from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.seeds import Stream, generator
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.spectral import posterior_start, spectral_starts
from gamp_attention.models.starts import SIZES, STARTS, fill_start

DATA_STARTS = (*STARTS, "spectral", "posterior")


def default_start(data: Dataset) -> str:
    """Return the name of the start that solvers use by default: "semantic" with a teacher, else "spectral"."""
    return "spectral" if data.Q_star is None else "semantic"


def initial_weights(data: Dataset, init: Any, seed: Any = 0, risk: str = "exact") -> np.ndarray:
    """Return weights (d, r) from an array, a name of `DATA_STARTS`, or None for the default start of the data."""
    return several_starts(data, init, 1, seed, risk)[0][1]


def several_starts(
    data: Dataset, init: Any, n_starts: int, seed: Any = 0, risk: str = "exact"
) -> list[tuple[str, np.ndarray]]:
    """Weights (d, r) to start from, with names: the start asked for, or the spectral ones, then random ones."""
    check.fits("rank", data.dim, data.rank)
    init = default_start(data) if init is None else init
    random, found = generator(seed, Stream.STARTS), list[tuple[str, np.ndarray]]()
    if not isinstance(init, str):
        found.append(("given", check.array("init", init, (data.dim, data.rank)).copy()))
    elif check.choice("init", init, DATA_STARTS) == "spectral":
        several = spectral_starts(data, risk, n_starts, random)
        found += [(f"spectral {k + 1}", Q) for k, Q in enumerate(several)]
    elif init == "posterior":
        found.append((init, posterior_start(data, risk, random)))
    elif init != "random":
        found.append((init, _named(data, init, random)))
    further = range(1, n_starts - len(found) + 1)
    return found + [(f"random {k}", _named(data, "random", random)) for k in further]


def _named(data: Dataset, init: str, random: np.random.Generator) -> np.ndarray:
    Q = SIZES.uninformed * random.standard_normal((data.dim, data.rank))
    fill_start(Q, init, data.student.parts, data.Q_star, lambda: position_directions(data.source_means))
    return Q


def position_directions(means: np.ndarray) -> np.ndarray:
    """Orthogonal directions (d, k) of norm √d that means (S, d) span, leading one first, signed along the first."""
    _, size, directions = np.linalg.svd(means, full_matrices=False)
    directions = directions[size > 1e-10 * max(size.max(), 1e-300)]
    signs = np.where(directions @ means[0] < 0, -1.0, 1.0)
    return np.sqrt(means.shape[1]) * (signs[:, None] * directions).T
