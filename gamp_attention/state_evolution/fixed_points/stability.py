"""Stability of fixed points under damped iteration, and validity of the replica-symmetric prediction.

Damped iteration leaves a fixed point if an eigenvalue of the Jacobian J of the overlap map has a real part above 1. J
is block diagonal: a family that is zero by symmetry, m or θ, does not couple to the other overlaps to first order.
Replica symmetry is stable if the replicon eigenvalue is below 1 (de Almeida and Thouless, J. Phys. A 11, 983, 1978),
and exact only if the proximal map does not jump.
"""

from dataclasses import dataclass, replace

import numpy as np

from gamp_attention._core.display import Rows
from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps, Result
from gamp_attention.state_evolution.equations.channel import Hats
from gamp_attention.state_evolution.equations.symmetry import Symmetry
from gamp_attention.state_evolution.equations.units import Packing
from gamp_attention.state_evolution.equations.weights import response_pairs
from gamp_attention.state_evolution.fixed_points.newton import DIFFERENCE
from gamp_attention.state_evolution.fixed_points.overlap_map import NOISY_FRACTION, OverlapMap

SECTORS = ("symmetric", "m", "theta")


SECTOR_DIFFERENCE = 1e-2  # step of finite differences in units of the overlaps: small for them, large for the noise
NEGLIGIBLE_JUMPS = 1e-2  # jump mass relative to V̂, up to which the prediction is called consistent
GAP_PER_SHIFT = 1.35  # relative change of V at minima of finite d in units of `jump_shift`, measured by jump_gaps


@dataclass(frozen=True, eq=False)
class Stability(Result):
    """Eigenvalues of the Jacobian of the overlap map, by sector.

    Attributes
    ----------
    eigenvalues : for each sector, in order of decreasing modulus. A family of overlaps that is zero by symmetry is a
        sector, "m" or "theta"; all other overlaps are the sector "symmetric". A sector that does not exist has none.
    """

    eigenvalues: dict[str, np.ndarray]

    @property
    def radius(self) -> dict[str, float]:
        """Spectral radius of each sector, NaN without eigenvalues; above 1, undamped iteration leaves the point."""
        return {name: float(np.abs(v).max()) if len(v) else np.nan for name, v in self.eigenvalues.items()}

    @property
    def growth(self) -> dict[str, float]:
        """Largest real part in each sector, NaN without eigenvalues; above 1, damped iteration leaves the point."""
        return {name: float(v.real.max()) if len(v) else np.nan for name, v in self.eigenvalues.items()}

    @property
    def stable(self) -> bool:
        """True if sufficiently damped iteration stays at the point, in every sector."""
        return all(not value >= 1 for value in self.growth.values())

    def summary(self) -> str:
        """Return "stable" or "unstable", and the growth in each sector that exists."""
        growth = ", ".join(f"{name} {value:.3g}" for name, value in self.growth.items() if value == value)
        return f"{'stable' if self.stable else 'unstable'}; growth by sector: {growth}"

    def _rows(self) -> Rows:
        return [self.summary()]


def stability(F: OverlapMap, at: Overlaps) -> Stability:
    """Return the stability of a fixed point of the map, by differences or exact derivatives. Eq. :eq:`growth`."""
    packing = _symmetric_packing(F, at)
    x = packing.pack(at)
    F = F.with_choices_near(at, packing.unpack(x + SECTOR_DIFFERENCE * np.eye(len(x))[0]))
    spectra = {name: np.linalg.eigvals(sector_jacobian(F, at, name)) for name in SECTORS}
    return Stability({name: v[np.argsort(-np.abs(v))] for name, v in spectra.items()})


def sector_growth(F: OverlapMap, at: Overlaps, sector: str) -> float:
    """Return the largest real part of the eigenvalues of one sector; NaN if the sector does not exist."""
    values = np.linalg.eigvals(sector_jacobian(F, at, sector))
    return float(values.real.max()) if len(values) else np.nan


def family_growth(F: OverlapMap, at: Overlaps, family: str) -> float:
    """Return the largest real part of the eigenvalues of a family, m or θ, that is zero; above 1, the family grows.

    If reversing the tokens is a symmetry, only directions that keep it are included, which takes half the work of
    `sector_growth`.
    """
    packing = Packing(at, (family,), Symmetry.of(F.model, at).reversal)
    return float(np.linalg.eigvals(F.jacobian(packing, at, DIFFERENCE, odd=True)).real.max())


def odd_growth(F: OverlapMap, packing: Packing, at: Overlaps, odd: np.ndarray) -> float:
    """Return the largest real part of the eigenvalues of the Jacobian in the packed overlaps with indices `odd`.

    They are zero at the given overlaps and the map is an odd function of them, so that an evaluation for each is
    sufficient, with steps that are large compared with the noise of random rules.
    """
    pairs = packing.pairs_around(F.model, at, NOISY_FRACTION)
    ahead = [pairs[index][0] for index in odd]
    moves = np.stack([packing.pack(overlaps)[odd] for overlaps in ahead], axis=1)
    images = np.stack([packing.pack(F(overlaps))[odd] for overlaps in ahead], axis=1)
    return float(np.linalg.eigvals(images @ np.linalg.inv(moves)).real.max())


def sector_jacobian(F: OverlapMap, at: Overlaps, sector: str) -> np.ndarray:
    """Return the derivative of the map within a sector, (k, k); k = 0 if the sector does not exist."""
    if sector == "symmetric":
        return F.jacobian(_symmetric_packing(F, at), at, SECTOR_DIFFERENCE)
    if sector in Packing.of(F.model, at).names:
        return np.zeros((0, 0))
    family = Packing(at, (sector,))
    if not Symmetry.of(F.model, at).reversal:
        return F.jacobian(family, at, SECTOR_DIFFERENCE, odd=True)
    # by reversal, the columns of the last tokens equal the reversed columns of the first tokens
    shape = at.arrays()[sector].shape
    L, size = len(at.q), int(np.prod(shape[1:]))
    half = F.jacobian(family, at, SECTOR_DIFFERENCE, odd=True, columns=(L + 1) // 2 * size)
    first = half.reshape(*shape, (L + 1) // 2, size)
    return np.concatenate([first, first[::-1, ..., : L // 2, :][..., ::-1, :]], axis=-2).reshape(L * size, L * size)


def _symmetric_packing(F: OverlapMap, at: Overlaps) -> Packing:
    """Return the overlaps of the sector "symmetric", with directions that break symmetries between tokens or columns.

    With one class of coordinates all tokens have the same distribution of weights, so that no direction breaks them.
    """
    packing = replace(Packing.of(F.model, at), diagonal=False, absent=())
    if len(F.model.coordinates.weight) == 1:
        return packing
    return replace(packing, reversal=False, exchange=False, isotropic=False)


def replicon(model: Model, hats: Hats, response: str) -> float:
    """Return the replicon eigenvalue, the spectral radius of K; replica symmetry is stable if it is below 1.

    Eq. :eq:`replicon`.

    K_{l,l'} = ∫dν γ_l E[C ⊗ C] Σ_k γ_k α E[(∂g_k/∂ω_l') ⊗ (∂g_k/∂ω_l')], with the almost-everywhere
    derivative: if the proximal map jumps, the average that includes the jumps is infinite. NaN if K is not finite.
    """
    law = model.coordinates
    L, r = hats.m.shape
    CC = response_pairs(model, hats, hats.response(response))
    weights = np.einsum("k,kl,km,kab->lmab", law.weight, law.gamma, law.gamma, CC)
    K = np.einsum("lmab,mnbc->lanc", weights, hats.square).reshape(L * r * r, L * r * r)
    return float(np.abs(np.linalg.eigvals(K)).max()) if np.isfinite(K).all() else np.nan


def column_sums(values: np.ndarray) -> np.ndarray:
    """Return the diagonal entries (r,) of matrices (L, r, r), summed over tokens."""
    return np.array([values[:, a, a].sum() for a in range(values.shape[1])])


def largest_jump_fraction(jump_mass: np.ndarray, V_hat: np.ndarray) -> float:
    """Return the jump mass of a column of the weights relative to V̂, for the column with the largest fraction.

    The sum over all columns would hide the jumps of a column with small V̂.

    Parameters
    ----------
    jump_mass : (L, r, r) jump mass.
    V_hat : (r,) V̂ of each column, summed over tokens. A column that does not enter the loss has V̂ = 0 and fraction 0.
    """
    masses = column_sums(jump_mass)
    fractions = np.divide(masses, V_hat, out=np.zeros(len(masses)), where=(masses != 0) | (V_hat != 0))
    return float(fractions[np.argmax(np.abs(fractions))])


def validity(replicon: float, jump_fraction: float, shift: float = np.nan, response: str = "stein") -> tuple[bool, str]:
    """Return whether the replica-symmetric prediction is consistent, and the reason in words.

    Parameters
    ----------
    replicon : replicon eigenvalue.
    jump_fraction : jump mass relative to V̂, from `largest_jump_fraction`; negative except for numerical errors, because
        g jumps forward.
    shift : relative change of V̂ without jumps, from `jump_shift` at a fixed point of Stein's form. If given, the words
        include the expected change of V.
    response : form of V̂ of the solution; with jumps, "derivative" is not the replica-symmetric solution.
    """
    if not np.isfinite(replicon + jump_fraction):
        return False, "unknown: replicon and jump mass are not known"
    jumps = f"jump mass {float(f'{100 * jump_fraction:.2g}'):g} % of V̂"
    jumping = abs(jump_fraction) > NEGLIGIBLE_JUMPS
    gap = GAP_PER_SHIFT * shift
    expected = f"; expect V of minima about {-100 * gap:.2g} % lower" if jumping and -1 < gap < 0 else ""
    if jumping and response == "derivative":
        expected = "; this form of V̂ leaves the jumps out and is not the replica-symmetric solution"
    if not replicon < 1:
        return False, f"inconsistent: the replicon eigenvalue {replicon:.3g} is not below 1 ({jumps}){expected}"
    if jumping:
        words = f"({jumps}; replicon {replicon:.3g} without them){expected}"
        return False, f"approximate because the proximal map jumps {words}"
    return True, f"consistent (replicon {replicon:.3g}, {jumps})"
