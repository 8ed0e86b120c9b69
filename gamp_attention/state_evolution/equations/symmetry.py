"""Symmetries of a solution: averages make use of them, and keep them exactly."""

from dataclasses import dataclass, replace

import numpy as np

from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps


@dataclass(frozen=True)
class Symmetry:
    """What leaves the channel at given overlaps unchanged; all need an even loss and an even teacher.

    Attributes
    ----------
    m_zero : all fields may change sign together, as m = 0; then E[g] = 0.
    theta_zero : the teacher's fields may change sign by themselves, as θ = 0; then E[g yᵀ] = 0.
    reversal : tokens may be reversed, with all fields changing sign: m_l = −m_{L+1−l}, the others are palindromes.
    exchange : three tokens or more may be put in any order: m = 0, the others are the same for all.
    isotropic : columns of student and teacher may turn together: m = 0, r = t > 1, the others are multiples of 1.
    """

    m_zero: bool
    theta_zero: bool
    reversal: bool
    exchange: bool = False
    isotropic: bool = False

    @classmethod
    def of(cls, model: Model, overlaps: Overlaps) -> "Symmetry":
        """The symmetries of a model that given overlaps have exactly."""
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
        """Overlaps with these symmetries to the last bit."""
        if self.reversal:
            odd = 0.5 * (overlaps.m - overlaps.m[::-1])
            overlaps = Overlaps(palindrome(overlaps.q), odd, palindrome(overlaps.theta), palindrome(overlaps.V))
        if self.exchange:
            same = {name: exchanged(overlaps.arrays()[name]) for name in ("q", "theta", "V")}
            overlaps = replace(overlaps, **same)
        if self.isotropic:
            turned = {name: isotropic(overlaps.arrays()[name]) for name in ("q", "theta", "V")}
            overlaps = replace(overlaps, **turned)
        if self.m_zero:
            overlaps = replace(overlaps, m=np.zeros_like(overlaps.m))
        if self.theta_zero:
            overlaps = replace(overlaps, theta=np.zeros_like(overlaps.theta))
        return overlaps


def palindrome(values: np.ndarray) -> np.ndarray:
    """The mean of values (L, …) of tokens with those of the tokens reversed."""
    return 0.5 * (values + values[::-1])


def exchanged(values: np.ndarray) -> np.ndarray:
    """The mean of values (L, …) over tokens, for each of them."""
    return np.repeat(values.mean(axis=0, keepdims=True), len(values), axis=0)


def isotropic(values: np.ndarray) -> np.ndarray:
    """The mean of matrices (L, r, r) turned in all ways: multiples of the identity."""
    size = values.shape[1]
    if values.shape[2] != size:
        return np.full_like(values, np.nan)
    return (np.trace(values, axis1=1, axis2=2) / size)[:, None, None] * np.eye(size)


def isotropic_pairs(values: np.ndarray) -> np.ndarray:
    """The mean of tensors (L, L, r², r²) of products M_ac M_bd, where all indices turn together, rows (ab) first."""
    r = int(np.sqrt(values.shape[-1]))
    one, sums = np.eye(r), values.reshape(*values.shape[:2], r, r, r, r)
    forms = np.array([np.einsum(f"{p},{q}->abcd", one, one) for p, q in (("ab", "cd"), ("ac", "bd"), ("ad", "bc"))])
    products = np.einsum("iabcd,jabcd->ij", forms, forms)
    along = np.einsum("iabcd,lkabcd->lki", forms, sums) @ np.linalg.inv(products)
    return np.einsum("lki,iabcd->lkabcd", along, forms).reshape(values.shape)


def fix_gauge(model: Model, overlaps: Overlaps) -> Overlaps:
    """Rotate the columns of the weights so that Σ_l θ_l, or m_1 where θ = 0, points along the first axes.

    The map does not see a common rotation, of queries and keys alike: along it, randomised averages drift.
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
    # a little of the identity, for columns that nothing else fixes
    u, _, v = np.linalg.svd(towards + 1e-6 * scale * np.eye(size))
    O = np.kron(np.eye(parts), (u @ v).T)
    return Overlaps(O @ overlaps.q @ O.T, overlaps.m @ O.T, O @ overlaps.theta, O @ overlaps.V @ O.T)
