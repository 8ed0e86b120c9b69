"""Sobol points of the unit cube, from scipy."""

import numpy as np


def sobol_points(n_points: int, dim: int, rng: np.random.Generator | None = None) -> np.ndarray:
    """Return Sobol points (n_points, dim) of the unit cube, scrambled (Matoušek, 1998) if `rng` is given.

    n_points need not be a power of two.
    """
    from scipy.stats import qmc  # imported here because it takes long to load

    engine = qmc.Sobol(dim, scramble=rng is not None, rng=rng)
    return np.asarray(engine.random(1 << max(n_points - 1, 0).bit_length())[:n_points])
