"""Standard units of arrays: tokens with mean zero and variance one in each coordinate."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.numerics import check_squarable, guard_call
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.layer import Units
from gamp_attention.problem.stores import Tokens, as_tokens


@guard_call
def standard_units(tokens: Any) -> Units:
    """Return the mean and standard deviation of each coordinate over all tokens; scale 1 if it is constant."""
    flat = check_squarable("tokens", tokens, ("n", "L", "d"))
    flat = flat.reshape(-1, flat.shape[2])
    center, scale = flat.mean(axis=0), flat.std(axis=0)
    constant = scale <= 1e-12 * np.abs(center)  # equal up to rounding
    return Units(center, np.where(constant, 1.0, scale), int(np.count_nonzero(constant)))


def build_dataset(
    tokens: ArrayLike, outputs: ArrayLike, positions: ArrayLike | None, standardize: bool, **options: Any
) -> tuple[Dataset, Units]:
    """Return a dataset of given arrays, in standard units if `standardize` is True, and its units.

    `options` are keyword arguments of `Dataset`.
    """
    x, y = as_tokens("tokens", tokens), as_tokens("outputs", outputs)
    require_same_shape(x, y)
    L, d = x.shape[1:]
    units = standard_units(x) if standardize else Units.raw(d)
    if positions is not None:
        positions = check.array("positions", positions, (L, d)) / units.scale
    return Dataset(units.standardize(x), units.standardize(y), positions, **options), units


def require_same_shape(tokens: Tokens, outputs: Tokens) -> None:
    """Raise ValueError if outputs do not have the shape of the tokens."""
    if outputs.shape != tokens.shape:
        raise ValueError(f"outputs: needs shape {tokens.shape}, got shape {outputs.shape}")
