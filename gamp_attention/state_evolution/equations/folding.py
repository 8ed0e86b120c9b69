"""Quadrature points in a fundamental domain of the channel's symmetries.

If fields may change sign, tokens may be permuted or columns may be rotated together, averages over the whole channel
equal averages over a fundamental domain, up to signs, order and axes. The same number of points there is many times
denser.
"""

import numpy as np
from scipy.special import gammaincinv, ndtri

from gamp_attention.state_evolution.equations.symmetry import Symmetry


def folds(symmetry: Symmetry) -> bool:
    """Return whether there is a symmetry to use: a change of sign of the teacher's fields."""
    return symmetry.m_zero or symmetry.theta_zero


def turned_away(n_tokens: int, rank: int) -> int:
    """Return the number of coordinates of L fields of t columns that a common rotation of the columns sets to zero."""
    return sum(rank - 1 - l for l in range(min(n_tokens, rank)))


def contrast_basis(n_tokens: int, rank: int) -> np.ndarray:
    """Return an orthonormal basis (L·rank, L·rank) whose first vector is the contrast between tokens in column 1.

    At zero contrast attention does not distinguish the tokens, and the proximal map jumps across this direction.
    """
    first = np.zeros((n_tokens, rank))
    first[:, 0] = np.linspace(1, -1, n_tokens) if n_tokens > 1 else 1
    size = n_tokens * rank
    basis, _ = np.linalg.qr(np.concatenate([first.reshape(size, 1), np.eye(size)], axis=1))
    return basis * np.sign(first.reshape(size) @ basis[:, 0])


def folded(cube: np.ndarray, symmetry: Symmetry, rank: int, cosines: np.ndarray) -> np.ndarray:
    """Return white noise (N, n_white) in a fundamental domain, from points of the unit cube (N, n_white or fewer).

    If columns may be rotated, they are rotated so that the student's fields, as combinations of tokens of which the
    first is the contrast between them, form a triangular matrix; `cosines` (L,) are the correlations of student and
    teacher. Otherwise the first L t coordinates are the teacher's fields, and

    - with one column they are ordered: the field of the first token is positive and the largest in absolute value among
      interchangeable tokens. Interchangeable are all tokens under permutations (the rest are then ordered too), the two
      outer tokens under reversal, and only the first token otherwise;
    - with more columns only the first field is made positive.
    """
    if symmetry.isotropic:
        return _fold_rotations(cube, symmetry, rank, cosines)
    white, n_tokens = ndtri(cube), len(cosines)
    outer = list(range(n_tokens)) if symmetry.exchange else [0, n_tokens - 1] if symmetry.reversal else [0]
    if rank > 1 or n_tokens == 1:
        outer = [0]
    below = cube[:, 0] ** (1 / len(outer))  # probability that one field is smaller in absolute value than the largest
    above = -np.expm1(np.log(cube[:, 0]) / len(outer))
    white[:, 0] = -ndtri(0.5 * above)
    fraction = np.ones(len(cube))
    for k, token in enumerate(outer[1:]):
        fraction = fraction * cube[:, token] ** (1 / (len(outer) - 1 - k))  # decreasing order statistics of uniforms
        white[:, token] = ndtri(0.5 * above + below * fraction)
    return white


def _fold_rotations(cube: np.ndarray, symmetry: Symmetry, rank: int, cosines: np.ndarray) -> np.ndarray:
    """Return white noise with the student's fields first, rotated to a triangular matrix.

    With the teacher's fields first, V̂ in Stein's form would have three times as much noise.
    """
    n_tokens, used = len(cosines), 0
    rotated = np.zeros((len(cube), n_tokens, rank))
    for token in range(n_tokens):
        for column in range(min(token + 1, rank)):
            uniform, used = cube[:, used], used + 1
            if column == token:
                rotated[:, token, column] = _chi_quantile(uniform, rank - token)
            elif n_tokens == 2 and symmetry.reversal:  # reversal changes the sign of the sum, but not of the contrast
                rotated[:, token, column] = _chi_quantile(uniform, 1)
            else:
                rotated[:, token, column] = ndtri(uniform)
    fields = np.einsum("kl,nlr->nkr", contrast_basis(n_tokens, 1), rotated)
    size = n_tokens * rank
    independent = ndtri(cube[:, used : used + size]).reshape(fields.shape)
    cosine = np.clip(cosines, -1, 1)[:, None]
    sine = np.sqrt(1 - cosine**2)
    teacher, student = cosine * fields + sine * independent, sine * fields - cosine * independent
    noise = ndtri(cube[:, used + size :])
    return np.concatenate([teacher.reshape(-1, size), noise, student.reshape(-1, size)], axis=1)


def _chi_quantile(cube: np.ndarray, size: int) -> np.ndarray:
    """Return lengths of white Gaussian vectors with `size` entries, from uniform numbers."""
    if size == 1:
        return -ndtri(0.5 * (1 - cube))
    return np.sqrt(-2 * np.log1p(-cube) if size == 2 else 2 * gammaincinv(0.5 * size, cube))
