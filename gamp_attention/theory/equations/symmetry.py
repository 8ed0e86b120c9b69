"""Symmetries of a solution of state evolution, which averages use and preserve exactly.

If fields may change sign, tokens may be permuted or columns may be rotated together, averages over the whole channel
equal averages over a fundamental domain, up to signs, order and axes. The same number of quadrature points is denser in
this domain, by the number of its images. `Symmetry.of` determines the symmetries, `fold_points` maps points of the unit
cube to the fundamental domain, and `Symmetry.mean` averages over the images of the result.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import gammaincinv, ndtri

from gamp_attention.results import Overlaps
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.models.teachers import is_invariant


@dataclass(frozen=True)
class Symmetry:
    """Transformations that leave the channel at given overlaps unchanged; all but `columns` need an even model."""

    m_zero: bool = False  # m = 0, so all fields may change sign together; then E[g] = 0
    theta_zero: bool = False  # θ = 0, so the teacher's fields may change sign separately; then E[g yᵀ] = 0
    # tokens may be reversed if all fields change sign: m_l = −m_{L+1−l}, the other overlaps are palindromes
    reversal: bool = False
    exchange: bool = False  # three or more tokens may be permuted: m = 0, the other overlaps are equal for all tokens
    # columns of student and teacher may be rotated together: m = 0, r = t > 1, the other overlaps are multiples of the
    # identity
    isotropic: bool = False
    # each column of student and teacher may change sign together: m = 0, r = t > 1, the other overlaps are diagonal
    diagonal: bool = False
    columns: bool = False  # columns of student and teacher may be permuted together

    @classmethod
    def of(cls, model: Model, overlaps: Overlaps) -> "Symmetry":
        """Return the symmetries of a model that given overlaps have exactly, to the last bit."""
        others = overlaps.q, overlaps.theta, overlaps.V
        palindromes = all(np.array_equal(v, v[::-1]) for v in others)
        m_zero = model.even and not overlaps.m.any()
        return cls(
            m_zero,
            model.even and not overlaps.theta.any(),
            model.reversible and palindromes and np.array_equal(overlaps.m, -overlaps.m[::-1]),
            m_zero and model.exchangeable and all((v == v[:1]).all() for v in others),
            m_zero and model.isotropic and all(np.array_equal(v, rotation_mean(v)) for v in others),
            m_zero and model.has_column_signs and all(np.array_equal(v, sign_mean(v)) for v in others),
            model.exchangeable_columns and all(is_invariant(v, *range(1, v.ndim)) for v in (*others, overlaps.m)),
        )

    @property
    def foldable(self) -> bool:
        """True if averages can be restricted to a fundamental domain: the teacher's fields may change sign."""
        return self.m_zero or self.theta_zero

    def mean(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return the mean over these symmetries of values that transform like the overlaps q, m, theta or V (name)."""
        if (name == "m" and self.m_zero) or (name == "theta" and self.theta_zero):
            return np.zeros_like(values)
        if self.reversal:
            values = 0.5 * (values + (-1 if name == "m" else 1) * values[::-1])
        if self.exchange:
            values = permutation_mean(values, 0)
        if self.isotropic:
            values = rotation_mean(values)
        if self.columns:
            values = permutation_mean(values, *range(1, values.ndim))
        return sign_mean(values) if self.diagonal else values

    def impose(self, overlaps: Overlaps) -> Overlaps:
        """Return the overlaps averaged over these symmetries, so that they have them exactly."""
        return Overlaps(**{name: self.mean(name, values) for name, values in overlaps.arrays().items()})


@lru_cache
def _orbits(size: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sets of n-tuples of `size` indices that permutations connect: numbers (N,) and members (G, N)."""
    index = np.indices((size,) * n).reshape(n, -1)
    same = (index[:, None] == index).reshape(n * n, -1)
    number = np.unique(same, axis=1, return_inverse=True)[1].ravel()
    return number, np.arange(number.max() + 1)[:, None] == number


def permutation_mean(values: np.ndarray, *axes: int) -> np.ndarray:
    """Return the mean over all permutations of the indices of given axes together, which have the same length."""
    number, members = _orbits(values.shape[axes[0]], len(axes))
    moved = np.moveaxis(values, axes, range(len(axes)))
    means = members @ moved.reshape(len(number), -1) / members.sum(axis=1, keepdims=True)
    return np.moveaxis(means[number].reshape(moved.shape), range(len(axes)), axes)


def rotation_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean of square matrices (L, r, r) over all rotations, a multiple of the identity."""
    size = values.shape[1]
    return (np.trace(values, axis1=1, axis2=2) / size)[:, None, None] * np.eye(size)


def sign_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean of square matrices (L, r, r) over all signs of the columns: their diagonals."""
    return values * np.eye(values.shape[1])


def rotation_mean_of_pairs(values: np.ndarray) -> np.ndarray:
    """Return the mean over all rotations of tensors (L, L, r², r²) of products M_ac M_bd, with rows (ab).

    It is a combination of the three isotropic tensors of rank four.
    """
    r = int(np.sqrt(values.shape[-1]))
    identity, pairs = np.eye(r), values.reshape(*values.shape[:2], r, r, r, r)
    forms = np.array(
        [np.einsum(f"{p},{q}->abcd", identity, identity) for p, q in (("ab", "cd"), ("ac", "bd"), ("ad", "bc"))]
    )
    products = np.einsum("iabcd,jabcd->ij", forms, forms)
    coefficients = np.einsum("iabcd,lkabcd->lki", forms, pairs) @ np.linalg.inv(products)
    return np.einsum("lki,iabcd->lkabcd", coefficients, forms).reshape(values.shape)


def fix_gauge(model: Model, overlaps: Overlaps) -> Overlaps:
    """Rotate the columns of the weights so that Σ_l θ_l, or m_1 if θ = 0, points along the first axes.

    The overlap map does not depend on a common rotation (of queries and keys together), so randomized averages would
    drift along it. If columns have different penalties, only columns with equal penalties are rotated; if the teacher
    may be rotated as well, its columns are rotated until Σ_l θ_l of the first weight matrix is symmetric.
    """
    r, t = overlaps.theta.shape[1:]
    size = r // model.student.parts
    can_rotate = model.student.rotations or any(columns.shape[1] > 1 for columns in model.column_classes)
    if size == 1 or not can_rotate or not model.penalty.quadratic:
        return overlaps
    theta = overlaps.theta.sum(axis=0)
    if not model.rotations and model.student.rotations and model.teacher_may_rotate and overlaps.theta.any():
        u, _, v = np.linalg.svd(theta[:size])
        return replace(overlaps, theta=overlaps.theta @ (u @ v).T) if size == t else overlaps
    O = np.eye(r)
    for columns in model.column_classes:
        n, rows = columns.shape[1], columns.ravel()
        on_axes = theta[rows] if overlaps.theta[:, rows].any() else overlaps.m[0][rows, None]
        towards, width = np.zeros((n, n)), min(n, on_axes.shape[1])
        towards[:, :width] = on_axes.reshape(*columns.shape, -1).sum(axis=0)[:, :width]
        # a small multiple of the identity determines the columns that nothing else determines
        u, _, v = np.linalg.svd(towards + 1e-6 * np.linalg.norm(towards) * np.eye(n))
        for part in columns if n > 1 else ():
            O[np.ix_(part, part)] = (u @ v).T
    return Overlaps(O @ overlaps.q @ O.T, overlaps.m @ O.T, O @ overlaps.theta, O @ overlaps.V @ O.T)


def gauge_dimension(n_tokens: int, rank: int) -> int:
    """Return the number of entries of L fields with t columns that a common rotation of the columns sets to zero."""
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


def fold_points(cube: np.ndarray, symmetry: Symmetry, rank: int, cosines: np.ndarray) -> np.ndarray:
    """Return white noise (N, n_white) in a fundamental domain of the symmetries, from points of the unit cube.

    The distribution of the noise is the standard Gaussian, conditioned on the fundamental domain. The domain is

    - if columns may be rotated: the student's fields form a triangular matrix, see `_fold_rotations`;
    - otherwise with one column: the first token has a positive teacher field, the largest in absolute value of all
      tokens that may be interchanged with it. These are all tokens under permutations (the other fields are then in
      decreasing order of absolute value), and the last token under reversal;
    - otherwise: the teacher's first field is positive.

    `cube` (N, n_white) has fewer columns if columns of the weights may be rotated. `rank` is the number of columns r,
    and `cosines` (L,) are the correlations of student and teacher fields, which only rotations use.
    """
    if symmetry.isotropic:
        return _fold_rotations(cube, symmetry, rank, cosines)
    white, n_tokens = ndtri(cube), len(cosines)
    tokens = list(range(n_tokens)) if symmetry.exchange else [0, n_tokens - 1] if symmetry.reversal else [0]
    if rank > 1 or n_tokens == 1:
        tokens = [0]
    # the largest of n absolute values has the distribution function P(|y| < x)ⁿ
    below = cube[:, 0] ** (1 / len(tokens))  # P(|y| < x) at its quantile x
    above = -np.expm1(np.log(cube[:, 0]) / len(tokens))  # 1 − below, without cancellation
    white[:, 0] = -ndtri(0.5 * above)
    fraction = np.ones(len(cube))
    for k, token in enumerate(tokens[1:]):
        fraction = fraction * cube[:, token] ** (1 / (len(tokens) - 1 - k))  # decreasing order statistics of uniforms
        white[:, token] = ndtri(0.5 * above + below * fraction)
    return white


def _fold_rotations(cube: np.ndarray, symmetry: Symmetry, rank: int, cosines: np.ndarray) -> np.ndarray:
    """Return white noise whose student fields, with columns rotated, form a triangular matrix.

    The rows of this matrix are combinations of tokens, the first being the contrast between the tokens. The diagonal
    entries have chi distributions, the entries to the left of it are Gaussian. Teacher fields and student noise are
    combinations of the student's fields and of independent Gaussians, by the correlations `cosines`. If the teacher's
    fields were made triangular instead, V̂ in Stein's form would have three times the noise.
    """
    n_tokens, used = len(cosines), 0
    rotated = np.zeros((len(cube), n_tokens, rank))
    for token in range(n_tokens):
        for column in range(min(token + 1, rank)):
            uniform, used = cube[:, used], used + 1
            if column == token:
                rotated[:, token, column] = _chi_quantile(uniform, rank - token)
            elif n_tokens == 2 and symmetry.reversal:  # reversal changes the sign of the sum, not of the contrast
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
