"""Fixed points of Bayes-optimal state evolution at a given α, by iteration from little or complete information.

An iteration applies q̂ = αE[g gᵀ] and V = V(q̂), see `bayes.equations`. If averages are over random points, it begins
with few samples and ends with all. A run uses the same samples, and the same points of their posteriors as long as V
changes little, so that the map is smooth near the end, and independent runs give the errors. Extrapolated steps
(`Iteration`) reach the fixed point to an error far below the errors from the samples. V = 0 is approached
exponentially; it is reached if V decreases below e^(−`full`) ρ.

Near q = 0 of columns whose sign is free, an iteration multiplies q by a constant factor, and shows slowly whether the
columns vanish if the factor is near one. This is therefore decided by the factor, computed with all samples
(`Equations.growth`): below one, the columns are zero. It is computed for all columns before a run without information,
and after the iterations with few samples for columns whose overlap is below `small`, in units of the prior.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gamp_attention._tools.numerics import compose, psd_root
from gamp_attention._tools.roots import FlowSettings, FoundRoot, NonlinearSystem, RootSettings, find_root, follow_flow
from gamp_attention.extensions.bayes.equations import Equations, InputAverages, OutputAverages


@dataclass(frozen=True)
class IterationSettings:
    """Settings of iterations at a given α, with x = −log V in units of the prior."""

    rough: float = 3e-3  # error of x at which iterations with few samples end
    fine: float = 1e-7  # error of x at which iterations with all samples end
    max_rough: int = 150  # maximum number of iterations with few samples
    max_fine: int = 300  # maximum number of iterations with all samples
    max_stalled: int = 12  # number of iterations without a smaller error after which an accepted error is final
    accepted: float = 1e-3  # error of x up to which iterations count as converged
    uninformed: float = 0.02  # overlap of the start, in units of the prior
    small: float = 0.05  # overlap in units of the prior, below which the growth of a column is computed
    full: float = 23.0  # x at which nothing is unknown: V is 1e-10 of the prior
    nearly_full: float = 7.0  # x from which a steady change of x is extrapolated, and the informed start with noise
    steady: float = 0.2  # relative difference of two changes of x up to which the change is steady
    memory: int = 3  # number of earlier iterations from which the next x is extrapolated


FLOW = FlowSettings(at_start=0.0, long=1e3, longest=1.0)
STEPS = RootSettings()
OF_RANDOM_POINTS = IterationSettings()
OF_INTEGRALS = IterationSettings(fine=1e-12, full=36.0)


class Solution(NamedTuple):
    """A fixed point for one set of samples or one quadrature rule."""

    q: np.ndarray  # (t, t)
    V: np.ndarray  # (L, t, t)
    known: np.ndarray  # (L, t, t) ρ − V
    free_entropy: float
    residual: float = 0.0  # change of x in the last iteration
    error: float = 0.0  # estimated distance of x from the fixed point
    n_iter: int = 0
    full: bool = False  # whether nothing is unknown
    converged: bool = True  # whether the estimated error is small
    root: FoundRoot | None = None  # last steps


def solve_fixed_point(
    few: Equations, equations: Equations, alpha: float, init: str, near: FoundRoot | None = None
) -> Solution:
    """Return the fixed point that iterations from a start "uninformed" or "informed" reach.

    Parameters
    ----------
    few, equations : equations with few and with all samples; the same object if averages are integrals.
    alpha : sample complexity.
    init : start.
    near : steps to the fixed point of another quadrature rule.
    """
    rho, prior = equations.rho, equations.input(np.zeros_like(equations.rho))
    settings = OF_INTEGRALS if equations.exact else OF_RANDOM_POINTS
    zero = np.zeros(rho.shape[1], dtype=bool)
    if not prior.V.any():
        return _known_exactly(equations, 0.0)
    known = prior.known
    if equations.has_zero_fixed_point():
        known = settings.uninformed * rho
        if init == "uninformed" and alpha * equations.growth() < 1:
            return Solution(prior.q, prior.V, prior.known, alpha * equations.output(prior.V, prior.known).log_z)
    system, n_rough = InformationSystem(equations, alpha, zero, settings.full), 0
    if near is None:
        first = system if few is equations else InformationSystem(few, alpha, zero, settings.full)
        start = first.information(rho - known, known)
        if init == "informed":  # with noise, targets say little about fields that are known far better than the noise
            start = first.pack((settings.full + 1 if few.noiseless else settings.nearly_full) * np.eye(len(zero)) + 0 * rho)
        x = start
        while np.abs(change := first.residual(x)).max() > 0.5 * first.units(x)[0] and n_rough < 20:
            x, n_rough = x + change, n_rough + 1
        near = FoundRoot([x], change, -np.eye(len(x)), 0.0, True)
        if np.abs(change).max() > settings.fine:
            near = follow_flow(first, x, settings.rough, settings.max_rough, settings=FLOW)
        n_rough += len(near.path)
        if few is not equations and init == "uninformed":
            known = first.variances(near.x)[1]
            zero = _vanishing_columns(equations, alpha, known, settings.small)
            if zero.any():
                known, system = known * np.outer(~zero, ~zero), InformationSystem(equations, alpha, zero, settings.full)
                near = near._replace(path=[system.information(rho - known, known)], jacobian=None)
            elif system.spectrum(near.x)[0].max() < settings.small:
                near = near._replace(path=[start], jacobian=None)
    root = None
    if near.jacobian is not None:
        root = find_root(system, near.x, settings.fine / system.units(near.x)[0], STEPS, near.jacobian)
    if root is None or not root.arrived or np.linalg.eigvals(root.jacobian).real.max() > 0:
        root = follow_flow(system, near.x, settings.fine, settings.max_fine, True, FLOW)
    x, residual = root.x, float(np.abs(root.residual).max())
    error = residual
    if root.jacobian is not None:
        with suppress(np.linalg.LinAlgError):
            error = max(error, float(np.abs(np.linalg.solve(root.jacobian, root.residual)).max()))
    V, known = system.variances(x)
    output = system.images(x)[0]
    averages, values = system.images(x)[1], system.spectrum(x)[0]
    # where V decreases to zero, all V keep their ratios
    low = settings.full - settings.nearly_full
    if equations.noiseless and values.max() >= settings.full and values.min() >= low:
        diverges = alpha * float(np.abs(output.hats @ V).max()) > settings.accepted
        solution = _known_exactly(equations, np.inf if diverges else equations.free_entropy(alpha, V, output))
    else:
        kept = np.outer(~zero, ~zero)
        entropy = equations.free_entropy(alpha, V, output)
        if equations.exact:  # one more iteration, for V below e^(−`full`)
            V, known = averages.V, averages.known
        solution = Solution(averages.q * kept, V, known, entropy)
    return solution._replace(
        residual=residual, error=error, converged=error < settings.accepted, n_iter=n_rough + len(root.path), root=root
    )


def _known_exactly(equations: Equations, free_entropy: float) -> Solution:
    """Return the fixed point at which the weights are known exactly."""
    rho = equations.rho
    return Solution(equations.prior_second_moment, np.zeros_like(rho), rho, free_entropy, full=True)


def _vanishing_columns(equations: Equations, alpha: float, known: np.ndarray, limit: float) -> np.ndarray:
    """Return the columns (t,) whose overlap vanishes, for covariances `known` (L, t, t) of ω.

    Overlaps below `limit`, in units of the prior, are decided, unless all are below it.
    """
    fractions = np.diagonal(known, axis1=1, axis2=2) / np.diagonal(equations.rho, axis1=1, axis2=2)
    small = (fractions.max(axis=0) < limit) & equations.signless_columns()
    if not small.any() or small.all():
        return np.zeros_like(small)
    growth = equations.growth(known * np.outer(~small, ~small), np.nonzero(small)[0])
    return small & (alpha * growth < 1)


class InformationSystem(NonlinearSystem):
    """Equations F(x) − x = 0 of the information x = −log(ρ^(−½) V ρ^(−½)), packed as a vector."""

    difference = 1e-3

    def __init__(self, equations: Equations, alpha: float, zero: np.ndarray, full: float) -> None:
        self._equations, self._alpha, self._full = equations, alpha, full
        self._kept = np.outer(~zero, ~zero)  # pairs of columns that may have an overlap
        self._root = psd_root(equations.rho)
        self._inverse = np.linalg.inv(self._root)
        self._upper = np.triu_indices(len(zero))
        # tokens whose variances have the same ratios in all kinds of coordinates have the same x
        variances = np.array([kind.gamma for kind in equations.kinds])
        ratios = np.round(variances / variances.sum(axis=0), 12)
        self._first, self._group = np.unique(ratios, axis=1, return_index=True, return_inverse=True)[1:]
        self._group = self._group.ravel()
        self._memory: tuple[bytes, tuple[OutputAverages, InputAverages]] | None = None

    def pack(self, x: np.ndarray) -> np.ndarray:
        """Return the entries of matrices (L, t, t) on and above the diagonal as a vector."""
        return x[self._first][:, *self._upper].ravel()

    def unpack(self, x: np.ndarray) -> np.ndarray:
        """Return the matrices (n, t, t) of a vector."""
        upper = self._upper
        matrices = np.zeros((len(self._first), *self._kept.shape))
        matrices[:, *upper] = matrices[:, *upper[::-1]] = x.reshape(len(matrices), -1)
        return matrices

    def spectrum(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the eigenvalues (L, t) of a vector's matrices, in the range from 0 to `full`, and the eigenvectors."""
        values, vectors = np.linalg.eigh(self.unpack(x)[self._group])
        if values.min() < -values.max():
            raise FloatingPointError("negative information")
        return np.clip(values, 0.0, self._full), vectors

    def variances(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return V and ρ − V (L, t, t), each without cancellation."""
        values, vectors = self.spectrum(x)
        whitened = (compose(part, vectors) for part in (np.exp(-values), -np.expm1(-values)))
        V, known = (self._root @ part @ self._root for part in whitened)
        return V, known

    def information(self, V: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Return x, at most `full` + 1, for V and ρ − V (L, t, t)."""
        V, known = (self._inverse @ part @ self._inverse for part in (V, known))
        values, vectors = np.linalg.eigh(known)
        unknown = np.einsum("lab,lac,lcb->lb", vectors, V, vectors)
        small, large = np.minimum(values, 0.5), np.maximum(unknown, np.exp(-self._full - 1))
        return self.pack(compose(np.where(values < 0.5, -np.log1p(-small), -np.log(large)), vectors))

    def units(self, x: np.ndarray) -> np.ndarray:
        """Return 1, or a fraction of the largest eigenvalue if it is large, so that steps toward V = 0 are long."""
        return np.full(len(x), max(1.0, 0.5 * self.spectrum(x)[0].max()))

    def images(self, x: np.ndarray) -> tuple[OutputAverages, InputAverages]:
        """Return the averages over samples and coordinates, from memory for the last x."""
        if self._memory is None or self._memory[0] != x.tobytes():
            output = self._equations.output(*self.variances(x))
            self._memory = x.tobytes(), (output, self._equations.input(self._alpha * output.hats))
        return self._memory[1]

    def residual(self, x: np.ndarray) -> np.ndarray:
        """Return the change of x in an iteration."""
        averages = self.images(x)[1]
        kept = np.where(self._kept, averages.V, self._equations.rho), averages.known * self._kept
        return self.information(*kept) - x

    def jacobian(self, x: np.ndarray, here: np.ndarray) -> np.ndarray:
        """Return the Jacobian at x, by differences in eigenvalues; the change of F by rotations is neglected.

        After a rotation, the largest eigenvalue of a matrix x would be wrong by far.
        """
        vectors = np.linalg.eigh(self.unpack(x))[1]
        directions = np.einsum("gak,gbk->gkab", vectors, vectors)[:, :, *self._upper]  # (n, t, k/n)
        parts, twice = np.eye(len(vectors))[:, None, :, None] * directions[:, :, None], 2 - np.eye(len(self._kept))
        J, step = -np.eye(len(x)), self.difference * self.units(x)[0]
        for part in parts.reshape(-1, len(x)):
            slope = (self.residual(x + step * part) - here) / step + part
            J += np.outer(slope, part * np.tile(twice[self._upper], len(vectors)))
        return J
