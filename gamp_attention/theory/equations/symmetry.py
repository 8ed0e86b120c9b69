"""Symmetries of a solution of state evolution, which averages use and preserve exactly.

If fields may change sign, tokens may be permuted or columns may be rotated together, averages over the whole channel
equal averages over a fundamental domain, up to signs, order and axes. The same number of quadrature points is denser in
this domain, by the number of its images. `Symmetry.of` determines the symmetries, `fold_points` maps points of the unit
cube to the fundamental domain, and the functions `..._mean` average over the images of the result.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import block_diag
from scipy.special import gammaincinv, ndtri

from gamp_attention.results import Overlaps
from gamp_attention.theory.models.model import Model


@dataclass(frozen=True)
class Symmetry:
    """Transformations that leave the channel at given overlaps unchanged; all but one need an even loss and teacher."""

    m_zero: bool  # m = 0, so all fields may change sign together; then E[g] = 0
    theta_zero: bool  # θ = 0, so the teacher's fields may change sign separately; then E[g yᵀ] = 0
    # tokens may be reversed if all fields change sign: m_l = −m_{L+1−l}, the other overlaps are palindromes
    reversal: bool
    exchange: bool = False  # three or more tokens may be permuted: m = 0, the other overlaps are equal for all tokens
    # columns of student and teacher may be rotated together: m = 0, r = t > 1, the other overlaps are multiples of the
    # identity
    isotropic: bool = False
    # each column of student and teacher may change sign together: m = 0, r = t > 1, the other overlaps are diagonal
    diagonal: bool = False
    # columns of the student that may change sign alone at fixed targets and have no overlap with the teacher, with
    # positions or with other columns; they stay without, also if neither loss nor teacher is even
    absent: tuple[int, ...] = ()

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
            tuple(a for a in free_columns(model) if not column_overlaps(overlaps, a)),
        )

    @property
    def foldable(self) -> bool:
        """True if the teacher's fields may change sign, which `fold_points` requires."""
        return self.m_zero or self.theta_zero

    def impose(self, overlaps: Overlaps) -> Overlaps:
        """Return the overlaps averaged over these symmetries, so that they have them exactly."""
        if self.reversal:
            overlaps = replace(overlaps, m=0.5 * (overlaps.m - overlaps.m[::-1]))
        for present, mean in (
            (self.reversal, reversal_mean),
            (self.exchange, permutation_mean),
            (self.isotropic, rotation_mean),
            (self.diagonal, sign_mean),
        ):
            if present:
                means = {name: mean(overlaps.arrays()[name]) for name in ("q", "theta", "V")}
                overlaps = replace(overlaps, **means)
        if self.m_zero:
            overlaps = replace(overlaps, m=np.zeros_like(overlaps.m))
        if self.theta_zero:
            overlaps = replace(overlaps, theta=np.zeros_like(overlaps.theta))
        for column in self.absent:
            overlaps = without_column(overlaps, column)
        return overlaps


def free_columns(model: Model) -> list[int]:
    """Return the columns of the student that may change sign alone without a change of the loss at fixed targets."""
    signs = model.column_signs
    return [int(row.argmin()) for row in signs if (row < 0).sum() == 1]


def overlaps_of_column(name: str, shape: tuple[int, ...], column: int) -> np.ndarray:
    """Return a mask of the overlaps of a family that a column has with the teacher, positions or other columns."""
    mask = np.zeros(shape, dtype=bool)
    mask[:, column] = True
    if name in ("q", "V"):
        mask[:, :, column] = True
        mask[:, column, column] = False
    return mask


def column_overlaps(overlaps: Overlaps, column: int) -> bool:
    """Return whether a column of the student has any overlap with the teacher, with positions or with other columns."""
    arrays = overlaps.arrays().items()
    return any(values[overlaps_of_column(name, values.shape, column)].any() for name, values in arrays)


def without_column(overlaps: Overlaps, column: int) -> Overlaps:
    """Return overlaps in which a column has no overlap with the teacher, with positions or with other columns."""
    arrays = overlaps.arrays().items()
    return Overlaps(**{
        name: np.where(overlaps_of_column(name, values.shape, column), 0.0, values) for name, values in arrays
    })  # fmt: skip


def reversal_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean of values (L, …) and of the values in reversed order of the tokens."""
    return 0.5 * (values + values[::-1])


def permutation_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean of values (L, …) over tokens, repeated for each token."""
    return np.repeat(values.mean(axis=0, keepdims=True), len(values), axis=0)


def rotation_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean of matrices (L, r, r) over all rotations, a multiple of the identity; NaN if not square."""
    size = values.shape[1]
    if values.shape[2] != size:
        return np.full_like(values, np.nan)
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
    parts = model.student.parts
    size = r // parts
    can_rotate = model.student.rotations or any(columns.shape[1] > 1 for columns in model.column_classes)
    if size == 1 or not can_rotate or not model.penalty.quadratic:
        return overlaps
    if not model.rotations:
        return _fix_gauge_of_classes(model, overlaps)
    towards = np.zeros((size, size))
    if overlaps.theta.any():
        towards[:, : min(size, t)] = overlaps.theta.sum(axis=0).reshape(parts, size, t).sum(axis=0)[:, :size]
    else:
        towards[:, 0] = overlaps.m[0].reshape(parts, size).sum(axis=0)
    scale = np.linalg.norm(towards)
    # a small multiple of the identity determines the columns that nothing else determines
    u, _, v = np.linalg.svd(towards + 1e-6 * scale * np.eye(size))
    O = np.kron(np.eye(parts), (u @ v).T)
    return Overlaps(O @ overlaps.q @ O.T, overlaps.m @ O.T, O @ overlaps.theta, O @ overlaps.V @ O.T)


def _fix_gauge_of_classes(model: Model, overlaps: Overlaps) -> Overlaps:
    """Rotate columns with equal penalties in a head, and the columns of a teacher without preferred directions."""
    r, t = overlaps.theta.shape[1:]
    if model.student.rotations and model.teacher_may_rotate and overlaps.theta.any():
        size = r // model.student.parts
        u, _, v = np.linalg.svd(overlaps.theta.sum(axis=0)[:size])
        return replace(overlaps, theta=overlaps.theta @ (u @ v).T) if size == t else overlaps
    O = np.eye(r)
    for columns in model.column_classes:
        parts, n = columns.shape
        if n == 1:
            continue
        rows = columns.ravel()
        if overlaps.theta[:, rows].any():
            towards = overlaps.theta.sum(axis=0)[rows].reshape(parts, n, t).sum(axis=0)
        else:
            towards = overlaps.m[0][rows].reshape(parts, n).sum(axis=0)[:, None]
        square = np.zeros((n, n))
        width = min(n, towards.shape[1])
        square[:, :width] = towards[:, :width]
        u, _, v = np.linalg.svd(square + 1e-6 * np.linalg.norm(square) * np.eye(n))
        for part in columns:
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


def reflections_of(symmetry: Symmetry, shape: tuple[int, int, int], n_white: int) -> list[np.ndarray]:
    """Return commuting reflections (n_white, n_white) of white noise that leave a channel unchanged.

    White noise consists of the teacher's fields (L, t), the noise of the labels, and the student's noise (L, r).

    Parameters
    ----------
    symmetry : symmetries of the channel.
    shape : (L, r, t).
    n_white : number of white coordinates.
    """
    L, r, t = shape
    noise, reflections = np.ones(n_white - L * (r + t)), []

    def reflection(teacher: np.ndarray, student: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return block_diag(teacher, np.diag(noise), student)

    def of_tokens(order: np.ndarray, sign: float) -> np.ndarray:
        swap = sign * np.eye(L)[order]
        return reflection(np.kron(swap, np.eye(t)), np.kron(swap, np.eye(r)), sign * noise)

    if symmetry.m_zero:
        reflections.append(-np.eye(n_white))
    if symmetry.theta_zero:
        reflections.append(reflection(-np.eye(L * t), np.eye(L * r), -noise))
    if symmetry.diagonal:
        for signs in 1 - 2 * np.eye(r)[1:]:  # all columns together are the first reflection, up to the noise
            reflections.append(
                reflection(np.kron(np.eye(L), np.diag(signs)), np.kron(np.eye(L), np.diag(signs)), noise)
            )
    if symmetry.exchange:
        for first in range(0, L - 1, 2):
            order = np.arange(L)
            order[[first, first + 1]] = first + 1, first
            reflections.append(of_tokens(order, 1.0))
    elif symmetry.reversal:
        reflections.append(of_tokens(np.arange(L)[::-1], -1.0))
    return reflections


def fold_points(cube: np.ndarray, symmetry: Symmetry, rank: int, cosines: np.ndarray) -> np.ndarray:
    """Return white noise (N, n_white) in a fundamental domain of the symmetries, from points of the unit cube.

    The distribution of the noise is the standard Gaussian, conditioned on the fundamental domain. The domain is

    - if columns may be rotated: the student's fields form a triangular matrix, see `_fold_rotations`;
    - otherwise with one column: the first token has a positive teacher field, the largest in absolute value of all
      tokens that may be interchanged with it. These are all tokens under permutations (the other fields are then in
      decreasing order of absolute value), and the last token under reversal;
    - otherwise: the teacher's first field is positive.

    Parameters
    ----------
    cube : (N, n_white) uniform points, with fewer columns if columns of the weights may be rotated.
    symmetry : symmetries of the channel, with `foldable` True.
    rank : number of columns r.
    cosines : (L,) correlations of student and teacher fields, used for rotations only.
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
