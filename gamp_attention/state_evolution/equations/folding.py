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
    """Coordinates of L fields of t columns that a common rotation of the columns makes zero."""
    return sum(rank - 1 - l for l in range(min(n_tokens, rank)))


def contrast_basis(n_tokens: int, rank: int) -> np.ndarray:
    """Orthonormal basis (L·rank, L·rank) whose first column is the contrast between tokens, in the first column.

    Where tokens are alike attention is undecided: the proximal map jumps across this direction.
    """
    first = np.zeros((n_tokens, rank))
    first[:, 0] = np.linspace(1, -1, n_tokens) if n_tokens > 1 else 1
    size = n_tokens * rank
    basis, _ = np.linalg.qr(np.concatenate([first.reshape(size, 1), np.eye(size)], axis=1))
    return basis * np.sign(first.reshape(size) @ basis[:, 0])


def folded(cube: np.ndarray, symmetry: Symmetry, rank: int, cosines: np.ndarray) -> np.ndarray:
    """White noise (N, n_white) in one part of the channel, from points of the unit cube (N, n_white or less).

    Where columns may turn, they are turned so that the student's fields, as combinations of tokens of which the first
    is the contrast between them, are a triangular matrix; `cosines` (L,) are the correlations of student and teacher.
    Else the first L t coordinates are those of the teacher's fields, which are

    - ordered for one column: a first token has the largest size and is positive; where tokens may be put in any order,
      it is the first one and the rest are in order, where they may be reversed, it is the first of the two outer ones;
    - else only the first of them is positive.
    """
    if symmetry.isotropic:
        return _turned(cube, symmetry, rank, cosines)
    white, n_tokens = ndtri(cube), len(cosines)
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


def _turned(cube: np.ndarray, symmetry: Symmetry, rank: int, cosines: np.ndarray) -> np.ndarray:
    """Student fields first: V̂ in Stein's form has a third of the noise that points with teacher fields first leave."""
    n_tokens, used = len(cosines), 0
    turned = np.zeros((len(cube), n_tokens, rank))
    for token in range(n_tokens):
        for column in range(min(token + 1, rank)):
            own, used = cube[:, used], used + 1
            if column == token:
                turned[:, token, column] = _length(own, rank - token)
            elif n_tokens == 2 and symmetry.reversal:  # the contrast turned round, and turned back with the sum
                turned[:, token, column] = _length(own, 1)
            else:
                turned[:, token, column] = ndtri(own)
    fields = np.einsum("kl,nlr->nkr", contrast_basis(n_tokens, 1), turned)
    size = n_tokens * rank
    rest = ndtri(cube[:, used : used + size]).reshape(fields.shape)
    cosine = np.clip(cosines, -1, 1)[:, None]
    sine = np.sqrt(1 - cosine**2)
    teacher, student = cosine * fields + sine * rest, sine * fields - cosine * rest
    noise = ndtri(cube[:, used + size :])
    return np.concatenate([teacher.reshape(-1, size), noise, student.reshape(-1, size)], axis=1)


def _length(cube: np.ndarray, size: int) -> np.ndarray:
    """Lengths of Gaussian vectors of so many entries, from uniform numbers."""
    if size == 1:
        return -ndtri(0.5 * (1 - cube))
    return np.sqrt(-2 * np.log1p(-cube) if size == 2 else 2 * gammaincinv(0.5 * size, cube))
