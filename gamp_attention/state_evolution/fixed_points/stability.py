"""How stable a fixed point of state evolution is, and whether replica symmetry holds there."""

from dataclasses import dataclass, replace

import numpy as np

from gamp_attention._core.display import Rows
from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps, Result
from gamp_attention.state_evolution.equations.channel import Hats
from gamp_attention.state_evolution.equations.symmetry import Symmetry
from gamp_attention.state_evolution.equations.units import Packing
from gamp_attention.state_evolution.equations.weights import response_pairs
from gamp_attention.state_evolution.fixed_points.newton import BROYDEN
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap

SECTORS = ("symmetric", "m", "theta")


@dataclass(frozen=True)
class StabilitySettings:
    """Settings of the eigenvalues, and of the verdict on replica symmetry."""

    difference: float = 1e-2  # of finite differences, in units of the overlaps: small for them, large for noise
    negligible_jumps: float = 1e-2  # jump mass, relative to V̂, up to which the prediction is called consistent
    gap_per_shift: float = 1.35  # of V at minima of finite d, in units of `jump_shift`: measured by jump_gaps


STABILITY = StabilitySettings()


@dataclass(frozen=True, eq=False)
class Stability(Result):
    """Eigenvalues of the Jacobian of the overlap map, by sector.

    A family of overlaps that is zero by symmetry is a sector of its own, "m" or "theta"; "symmetric" holds all others.
    A sector that does not exist has no eigenvalues.

    Attributes
    ----------
    eigenvalues : for each sector, largest modulus first.
    """

    eigenvalues: dict[str, np.ndarray]

    @property
    def radius(self) -> dict[str, float]:
        """Spectral radius of each sector, NaN where there is none; above 1, undamped iteration leaves the point."""
        return {name: float(np.abs(v).max()) if len(v) else np.nan for name, v in self.eigenvalues.items()}

    @property
    def growth(self) -> dict[str, float]:
        """Largest real part in each sector, NaN where there is none; above 1, any damped iteration leaves the point."""
        return {name: float(v.real.max()) if len(v) else np.nan for name, v in self.eigenvalues.items()}

    @property
    def stable(self) -> bool:
        """Whether sufficiently damped iteration stays at the point, in every sector."""
        return all(not value >= 1 for value in self.growth.values())

    def summary(self) -> str:
        """Whether it is stable, and the growth in each sector that there is."""
        growth = ", ".join(f"{name} {value:.3g}" for name, value in self.growth.items() if value == value)
        return f"{'stable' if self.stable else 'unstable'}; growth by sector: {growth}"

    def _rows(self) -> Rows:
        return [self.summary()]


def stability(F: OverlapMap, at: Overlaps) -> Stability:
    """Stability of a fixed point of the map, by finite differences. Eq. :eq:`growth`."""
    spectra = {name: np.linalg.eigvals(sector_jacobian(F, at, name)) for name in SECTORS}
    return Stability({name: v[np.argsort(-np.abs(v))] for name, v in spectra.items()})


def sector_growth(F: OverlapMap, at: Overlaps, sector: str) -> float:
    """Largest real part of the eigenvalues of one sector, NaN where there is none."""
    values = np.linalg.eigvals(sector_jacobian(F, at, sector))
    return float(values.real.max()) if len(values) else np.nan


def family_growth(F: OverlapMap, at: Overlaps, family: str) -> float:
    """Largest real part of the eigenvalues of a family, m or θ, that is zero; above 1, it grows.

    Takes half the work of `sector_growth` where reversing the tokens changes nothing: only directions that keep this
    count.
    """
    packing = Packing(at, (family,), Symmetry.of(F.model, at).reversal)
    return float(np.linalg.eigvals(F.jacobian(packing, at, BROYDEN.difference, odd=True)).real.max())


def sector_jacobian(F: OverlapMap, at: Overlaps, sector: str) -> np.ndarray:
    """Derivative of the map within a sector, (k, k); k = 0 where there is no such sector."""
    packing = Packing.of(F.model, at)
    if sector == "symmetric":
        if len(F.model.coordinates.weight) > 1:  # with one class, all tokens see one law of weights: nothing breaks it
            packing = replace(packing, reversal=False, exchange=False, isotropic=False)
        return F.jacobian(packing, at, STABILITY.difference, central=True)
    if sector in packing.names:
        return np.zeros((0, 0))
    family = Packing(at, (sector,))
    if not Symmetry.of(F.model, at).reversal:
        return F.jacobian(family, at, STABILITY.difference, odd=True)
    shape = at.arrays()[sector].shape  # tokens reversed: columns of the last tokens are those of the first ones
    L, size = len(at.q), int(np.prod(shape[1:]))
    half = F.jacobian(family, at, STABILITY.difference, odd=True, columns=(L + 1) // 2 * size)
    known = half.reshape(*shape, (L + 1) // 2, size)
    return np.concatenate([known, known[::-1, ..., : L // 2, :][..., ::-1, :]], axis=-2).reshape(L * size, L * size)


def replicon(model: Model, hats: Hats, response: str) -> float:
    """Spectral radius of K; replica symmetry is stable where it is below 1.

    Eq. :eq:`replicon`.

    K_{l,l'} = ∫dν γ_l E[C ⊗ C] Σ_k γ_k α E[(∂g_k/∂ω_l') ⊗ (∂g_k/∂ω_l')], with the derivative that exists almost
    everywhere: where the proximal map jumps, the true average is infinite.
    """
    law = model.coordinates
    L, r = hats.m.shape
    CC = response_pairs(model, hats, hats.response(response))
    weights = np.einsum("k,kl,km,kab->lmab", law.weight, law.gamma, law.gamma, CC)
    K = np.einsum("lmab,mnbc->lanc", weights, hats.square).reshape(L * r * r, L * r * r)
    return float(np.abs(np.linalg.eigvals(K)).max()) if np.isfinite(K).all() else np.nan


def validity(replicon: float, jump_share: float, shift: float = np.nan, response: str = "stein") -> tuple[bool, str]:
    """Return whether the replica-symmetric prediction is consistent, and why, in words.

    Parameters
    ----------
    replicon : of `replicon`.
    jump_share : jump mass relative to V̂, at most 0 but for numerical errors, as g jumps forward.
    shift : of `jump_shift` at a fixed point of Stein's form; what to expect of V is not said without it.
    response : form of V̂ that was solved with; with jumps, "derivative" is not the replica-symmetric solution.
    """
    if not np.isfinite(replicon + jump_share):
        return False, "unknown: replicon and jump mass are not known"
    jumps = f"jump mass {float(f'{100 * jump_share:.2g}'):g} % of V̂"
    jumping = abs(jump_share) > STABILITY.negligible_jumps
    gap = STABILITY.gap_per_shift * shift
    expected = f"; expect V of minima about {-100 * gap:.2g} % lower" if jumping and -1 < gap < 0 else ""
    if jumping and response == "derivative":
        expected = "; this form of V̂ leaves the jumps out and is not the replica-symmetric solution"
    if not replicon < 1:
        return False, f"inconsistent: the replicon eigenvalue {replicon:.3g} is not below 1 ({jumps}){expected}"
    if jumping:
        words = f"({jumps}; replicon {replicon:.3g} without them){expected}"
        return False, f"approximate because the proximal map jumps {words}"
    return True, f"consistent (replicon {replicon:.3g}, {jumps})"
