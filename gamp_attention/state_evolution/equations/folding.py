"""Points on one of the parts of a channel that its symmetries map onto each other.

Where fields may change sign, tokens change places or columns turn together, each of these maps fields to others at
which all that is averaged takes the same values, but for signs, order and axes. So points in one part are enough. There
they are as dense as many times more points on the whole.
"""

import numpy as np
from scipy.special import gammaincinv, ndtri

from gamp_attention.state_evolution.equations.symmetry import Symmetry


def folds(symmetry: Symmetry) -> bool:
    """Whether there is a symmetry to make use of: signs of the teacher's fields that do not matter."""
    return symmetry.m_zero or symmetry.theta_zero


def turned_away(n_tokens: int, rank: int) -> int:
    """Coordinates of L teacher fields of t columns that a common rotation of the columns makes zero."""
    return sum(rank - 1 - l for l in range(min(n_tokens, rank)))


def folded(cube: np.ndarray, symmetry: Symmetry, n_tokens: int, rank: int) -> np.ndarray:
    """White noise (N, n_white) in one part of the channel, from points of the unit cube (N, n_white or less).

    The first L t coordinates are those of the teacher's fields, which the symmetries act on. They are

    - turned, where columns may turn, so that the fields of all tokens are a triangular matrix: what remains of a token
      across those before it is a length;
    - ordered for one column: a first token has the largest size and is positive; where tokens may be put in any order,
      it is the first one and the rest are in order, where they may be reversed, it is the first of the two outer ones;
    - else only the first of them is positive.
    """
    if symmetry.isotropic:
        return _turned(cube, n_tokens, rank)
    white = ndtri(cube)
    outer = list(range(n_tokens)) if symmetry.exchange else [0, n_tokens - 1] if symmetry.reversal else [0]
    if rank > 1 or n_tokens == 1:
        outer = [0]
    share = cube[:, 0] ** (1 / len(outer))  # of the probability that a field has less than the largest size
    rest = -np.expm1(np.log(cube[:, 0]) / len(outer))
    white[:, 0] = -ndtri(0.5 * rest)
    place = np.ones(len(cube))
    for k, token in enumerate(outer[1:]):
        place = place * cube[:, token] ** (1 / (len(outer) - 1 - k))  # places in order, of uniform ones
        white[:, token] = ndtri(0.5 * rest + share * place)
    return white


def _turned(cube: np.ndarray, n_tokens: int, rank: int) -> np.ndarray:
    columns, used = [], 0
    for token in range(n_tokens):
        for column in range(rank):
            if column > token:
                columns.append(np.zeros(len(cube)))
                continue
            own, used = cube[:, used], used + 1
            length = np.sqrt(2 * gammaincinv(0.5 * (rank - token), own)) if column == token else ndtri(own)
            columns.append(length)
    return np.concatenate([np.stack(columns, axis=1), ndtri(cube[:, used:])], axis=1)
