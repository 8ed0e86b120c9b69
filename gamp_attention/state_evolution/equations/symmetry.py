"""Symmetries of a solution of state evolution, which averages use and preserve exactly."""

from dataclasses import dataclass, replace

import numpy as np

from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps


@dataclass(frozen=True)
class Symmetry:
    """Transformations that leave the channel at given overlaps unchanged; all require an even loss and an even teacher.

    Attributes
    ----------
    m_zero : m = 0, so all fields may change sign together; then E[g] = 0.
    theta_zero : θ = 0, so the teacher's fields may change sign separately; then E[g yᵀ] = 0.
    reversal : tokens may be reversed if all fields change sign: m_l = −m_{L+1−l}, the other overlaps are palindromes.
    exchange : three or more tokens may be permuted: m = 0, the other overlaps are equal for all tokens.
    isotropic : columns of student and teacher may be rotated together: m = 0, r = t > 1, the other overlaps are
        multiples of the identity.
    """

    m_zero: bool
    theta_zero: bool
    reversal: bool
    exchange: bool = False
    isotropic: bool = False

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
            m_zero and model.isotropic and all(np.array_equal(v, isotropic(v)) for v in others),
        )

    def impose(self, overlaps: Overlaps) -> Overlaps:
        """Return the overlaps averaged over these symmetries, so that they have them exactly."""
        if self.reversal:
            odd = 0.5 * (overlaps.m - overlaps.m[::-1])
            overlaps = Overlaps(palindrome(overlaps.q), odd, palindrome(overlaps.theta), palindrome(overlaps.V))
        if self.exchange:
            same = {name: exchanged(overlaps.arrays()[name]) for name in ("q", "theta", "V")}
            overlaps = replace(overlaps, **same)
        if self.isotropic:
            isotropic_parts = {name: isotropic(overlaps.arrays()[name]) for name in ("q", "theta", "V")}
            overlaps = replace(overlaps, **isotropic_parts)
        if self.m_zero:
            overlaps = replace(overlaps, m=np.zeros_like(overlaps.m))
        if self.theta_zero:
            overlaps = replace(overlaps, theta=np.zeros_like(overlaps.theta))
        return overlaps


def palindrome(values: np.ndarray) -> np.ndarray:
    """Return the mean of values (L, …) of the tokens and the values in reversed order."""
    return 0.5 * (values + values[::-1])


def exchanged(values: np.ndarray) -> np.ndarray:
    """Return the mean of values (L, …) over tokens, repeated for each token."""
    return np.repeat(values.mean(axis=0, keepdims=True), len(values), axis=0)


def isotropic(values: np.ndarray) -> np.ndarray:
    """Return the mean of matrices (L, r, r) over all rotations, a multiple of the identity; NaN if not square."""
    size = values.shape[1]
    if values.shape[2] != size:
        return np.full_like(values, np.nan)
    return (np.trace(values, axis1=1, axis2=2) / size)[:, None, None] * np.eye(size)


def isotropic_pairs(values: np.ndarray) -> np.ndarray:
    """Return the mean over all rotations of tensors (L, L, r², r²) of products M_ac M_bd, with rows (ab).

    It is a combination of the three isotropic tensors of rank four.
    """
    r = int(np.sqrt(values.shape[-1]))
    one, sums = np.eye(r), values.reshape(*values.shape[:2], r, r, r, r)
    forms = np.array([np.einsum(f"{p},{q}->abcd", one, one) for p, q in (("ab", "cd"), ("ac", "bd"), ("ad", "bc"))])
    products = np.einsum("iabcd,jabcd->ij", forms, forms)
    along = np.einsum("iabcd,lkabcd->lki", forms, sums) @ np.linalg.inv(products)
    return np.einsum("lki,iabcd->lkabcd", along, forms).reshape(values.shape)


def fix_gauge(model: Model, overlaps: Overlaps) -> Overlaps:
    """Rotate the columns of the weights so that Σ_l θ_l, or m_1 if θ = 0, points along the first axes.

    The overlap map does not depend on a common rotation (of queries and keys together), so randomized averages would
    drift along it.
    """
    r, t = overlaps.theta.shape[1:]
    parts = model.student.parts
    size = r // parts
    if size == 1 or not model.rotations:
        return overlaps
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
