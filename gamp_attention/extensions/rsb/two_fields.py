"""Output channel with k steps of replica symmetry breaking for attention with two tokens (L = 2, r = t = 1).

Given the teacher's fields u, the outer field is Gaussian with mean m + θu/ρ and covariance q_0 − θ²/ρ, equal for both
tokens, and with the Moreau envelope M of the sample's loss

    φ_0(ω) = (1/y) log E_v exp(y φ_1(ω + √(q_1 − q_0) v)),   φ_1 = −M_V,   v ~ N(0, 1) in two dimensions.

Discretization. φ_1 is computed at the nodes of a square lattice in the plane of fields. The integral over v is a
trapezoidal sum over the lattice, and so are the averages over the outer field. For smooth functions their errors
decrease exponentially with the inverse spacing (Trefethen and Weideman, 2014). φ_1 has kinks on lines where the
proximal map jumps. If the slope of such a line relative to the lattice were rational, the error would be of second
order in the spacing. It is far smaller if the distances of the nodes from the line are equidistributed (Kuipers and
Niederreiter, 1974). Jumps of attention lie near lines of equal fields and near the axes; the slope of the lattice
relative to both is a quadratic irrational number. In addition the lattice is shifted from one label to the next.

The recursion over the levels is in `lattice`. The proximal problems are solved at few values of V.

Averages over labels are a product rule for the teacher's fields: Gauss-Hermite in their sum, and a trapezoidal sum in
their difference, on which the labels depend strongly. It is restricted to a fundamental domain of the symmetries:
reversal of the tokens together with a change of sign of all fields, and, if m = 0 or θ = 0, the change of sign of the
teacher's fields.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gamp_attention._tools.quadrature import gauss_hermite
from gamp_attention.extensions.rsb.lattice import Lattice, Table, average_table, even_ceil, tabulate
from gamp_attention.extensions.rsb.solve import BrokenProblem, BrokenSearch
from gamp_attention.extensions.rsb.weights import LevelHats, Levels, average_labels
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.theory.models.model import Model

# breaking is weak on the positional branch; at smaller differences few nodes of the lattice pass a jump
WEAK_BREAKING = BrokenSearch(strengths=(0.02, 0.05, 0.2), difference=1e-2)


@dataclass(frozen=True)
class LatticeSettings:
    """Settings of the lattices of fields and of the rule for labels; pairs are values at resolution 0, and added."""

    spacing: float = 0.9  # spacing of the lattice in units of √Δ at resolution 0
    finer: float = 0.95  # factor of the spacing for each resolution
    old: float = 0.3  # change of the logarithm of a variance of the fields after which another lattice is chosen
    coarser: float = 1.5  # largest spacing of a fixed lattice in units of the wanted spacing
    symmetric_spacing: float = 0.12  # spacing in units of √q_0 without breaking, where the sums smooth nothing
    difference_nodes: tuple[int, int] = (20, 6)  # nodes of the positive difference of teacher fields
    sum_nodes: tuple[int, int] = (6, 2)  # nodes of their sum (Gauss-Hermite), on which the averages depend weakly
    difference_end: float = 5.5  # largest difference of teacher fields, in standard deviations
    # standard deviations of the fields on each side of their most likely values that are in the lattice
    reach: tuple[float, float] = (4.6, 0.2)
    probes: int = 7  # nodes in each direction of the grid that determines the largest |φ_1'|
    max_stored: float = 4e7  # largest number of nodes of all labels whose tables are stored, 28 bytes each
    radius: float = 2e-3  # largest change of V, relative to V, for which stored tables are used
    max_nodes: int = 4000  # largest number of lattice nodes in each direction

    def spacings(self, variances: np.ndarray, resolution: int) -> np.ndarray:
        """Return the spacings (k,) of the lattices of levels 1 to k.

        φ_{j−1} varies on the scale √Δ_j, and is integrated with a Gaussian of variance Δ_{j−1}.
        """
        sds = np.sqrt(variances[1:])
        return self.spacing * self.finer**resolution * np.minimum(sds, np.append(np.inf, sds[:-1]))


LATTICE = LatticeSettings()


@dataclass(eq=False)
class FixedGrids:
    """Lattice and its centers (n, 2) for n labels, and their tables at a V if they fit into memory.

    The lattice was chosen for given variances of the outer field and of the inner fields (k + 1,). Averages from tables
    at another V within `radius` have relative errors of up to 6e-6 (q̂) and 2e-9 (F). Grids belong to one search, and
    the numbers of its result are computed without them, so that no result depends on earlier calls.
    """

    lattice: Lattice
    centers: np.ndarray
    variances: np.ndarray
    tables: list[Table]


@dataclass(frozen=True, eq=False)
class TwoFields(BrokenProblem):
    """Problem of k-step replica symmetry breaking for attention with two tokens and one column."""

    model: Model  # an attention model with L = 2, r = t = 1 that is even and reversible
    alpha: float  # sample complexity
    # fixed grids; by default they follow the overlaps. On fixed grids the averages are smooth functions of all numbers
    # except V, at which the jumps pass nodes of the lattice.
    grids: FixedGrids | None = None
    settings: LatticeSettings = LATTICE
    signs, search = np.array([1.0, -1.0]), WEAK_BREAKING

    def teacher(self, even: bool, resolution: int) -> tuple[np.ndarray, np.ndarray]:
        """Return teacher fields (n, 2) in the fundamental domain, and probabilities (n,).

        Reversal maps the sum of both fields to its negative. If `even`, a change of sign of all teacher fields has no
        effect either, so that their difference may be restricted to positive values, too.
        """
        settings = self.settings
        x, w = gauss_hermite(settings.sum_nodes[0] + settings.sum_nodes[1] * resolution)  # an even number of nodes
        total, total_weight = x[x > 0], w[x > 0]
        n = settings.difference_nodes[0] + settings.difference_nodes[1] * resolution
        x = (np.arange(n) + 0.5) * settings.difference_end / n
        w = np.exp(-0.5 * x**2)
        if not even:
            x, w = np.concatenate([-x[::-1], x]), np.concatenate([w[::-1], w])
        e, f = (v.ravel() for v in np.meshgrid(total, x, indexing="ij"))
        probability = np.outer(total_weight, w).ravel()
        return np.sqrt(self.rho) * np.stack([e + f, e - f], axis=1) / np.sqrt(2), probability / probability.sum()

    def with_fixed_grids(self, levels: Levels, parisi: np.ndarray, resolution: int) -> "TwoFields":
        """Return the problem with the grids for these overlaps, or itself if its grids are fixed already."""
        if self.grids is not None:
            return self
        params, _, centers, _ = self.labels(levels, resolution)
        variances = self.variances(levels)
        lattice = self._lattice(params, centers, variances, float(levels.V[0]), parisi, resolution)
        return replace(self, grids=FixedGrids(lattice, centers, variances, []))

    def fits(self, levels: Levels) -> bool:
        """Return whether fixed grids may be used for these overlaps."""
        assert self.grids is not None
        return bool(np.abs(np.log(self.variances(levels) / self.grids.variances)).max() <= self.settings.old)

    def labels(self, levels: Levels, resolution: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[Any, Any]]:
        """Return parameters and constants of the losses, means of the outer fields, and (teacher fields, weights)."""
        theta, m = float(levels.theta[0]), float(levels.m[0])
        u, probability = self.teacher(theta == 0 or m == 0, resolution)
        terms = self.model.task.terms(u[:, :, None], np.zeros((len(u), self.model.task.n_noise)))
        return terms.params, terms.constant, m * self.signs + theta / self.rho * u, (u, probability)

    def hats(self, levels: Levels, parisi: np.ndarray, resolution: int, replicons: bool = True) -> LevelHats:
        """Return the averages of the output channel, multiplied by α, for k = len(parisi)."""
        settings = self.settings
        params, constants, centers, (u, probability) = self.labels(levels, resolution)
        variances, V = self.variances(levels), float(levels.V[0])
        grids = self.with_fixed_grids(levels, parisi, resolution).grids
        assert grids is not None
        if len(parisi) and grids.lattice.spacing > settings.coarser * settings.spacings(variances, resolution).min():
            raise FloatingPointError("the lattice is too coarse for the gaps between overlaps")
        stored = grids is self.grids and len(u) * (2 * grids.lattice.n + 1) ** 2 <= settings.max_stored
        tables: Any = grids.tables
        if not (stored and tables and abs(tables[0].V - V) <= settings.radius * V):
            radius = settings.radius if stored else 0.0
            labels = enumerate(zip(params, constants, grids.centers, strict=True))
            tables = (tabulate(self.model.loss, *label, V, grids.lattice, number, radius) for number, label in labels)
            if stored:
                grids.tables = tables = list(tables)
        averages = [
            average_table(table.at(V), center - origin, variances, parisi, grids.lattice, replicons)
            for table, center, origin in zip(tables, centers, grids.centers, strict=True)
        ]
        return average_labels(averages, self.alpha * probability, u, self.signs, levels, parisi, self.rho)

    def _lattice(
        self, params: np.ndarray, centers: np.ndarray, variances: np.ndarray, V: float, parisi: np.ndarray,
        resolution: int,
    ) -> Lattice:  # fmt: skip
        """Return the lattice for given variances of the outer field and of the inner fields.

        The field of level j with weight exp(y_j φ_j) is most likely at a distance of up to y_j Δ_j max|φ_k'| from the
        field of level j − 1.
        """
        settings = self.settings
        sds, fine = np.sqrt(variances), settings.finer**resolution
        width = settings.reach[0] + settings.reach[1] * resolution
        reach = width * sds[0]
        if len(parisi) == 0:
            h = settings.symmetric_spacing * fine * sds[0]
            return Lattice(h, even_ceil(reach / h), ())
        grid = np.stack(np.meshgrid(*[np.linspace(-reach, reach, settings.probes)] * 2), axis=-1).reshape(-1, 2)
        fields = (centers[:, None] + grid).reshape(-1, 2, 1)
        out = denoise(self.model.loss, np.repeat(params, len(grid), axis=0), fields, np.full((2, 1, 1), V))
        drifts = parisi * variances[1:] * float(np.sqrt((out.g**2).sum(axis=(1, 2)).max()))
        wanted = settings.spacings(variances, resolution)
        h = spacing = float(wanted.min())
        strides = []
        for largest in wanted[::-1]:  # from the innermost level outward
            strides.append(max(int(largest / spacing), 1))
            spacing *= strides[-1]
        n = even_ceil((reach + drifts.sum() + width * np.sqrt(variances[1:].sum())) / h, int(np.prod(strides)))
        if 2 * n + 1 > settings.max_nodes:
            raise FloatingPointError(f"the lattice would need {2 * n + 1} nodes in each direction")
        return Lattice(h, n, tuple(strides[::-1]))
