"""Fixed points of Bayes-optimal state evolution at a given α, from a start with little or complete information.

An iteration applies q̂ = αE[g gᵀ] and V = V(q̂), see `bayes.equations`. The unknown is the information x (`Information`),
which the flow dx/dt = F(x) − x follows from the start (`follow_flow`), with few samples if averages are over random
points. Newton steps lead from its end to the fixed point with all samples (`find_root`); if that is not found, or
repels, the flow continues with all samples. The same samples are used throughout, and the same points of their
posteriors as long as V changes little, so that F is smooth near the end; independent runs give the errors. V = 0 is
approached exponentially; it is reached if V decreases below e^(−`full`) ρ.

Near q = 0 of columns whose sign is free, an iteration multiplies q by a constant factor, and shows slowly whether the
columns vanish if the factor is near one. This is therefore decided by the factor, computed with all samples
(`Equations.growth`): below one, the columns are zero. It is computed for all columns before a run without information,
and after the flow with few samples for columns whose overlap is below `small`, in units of the prior.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gamp_attention._tools.numerics import compose, psd_root
from gamp_attention._tools.roots import FoundRoot, NonlinearSystem, RootSettings, find_root, follow_flow
from gamp_attention.extensions.bayes.equations import Equations, InputAverages, OutputAverages


@dataclass(frozen=True)
class IterationSettings:
    """Settings of fixed points at a given α, with x = −log V in units of the prior."""

    rough: float = 3e-3  # change of x in an iteration at which the first flow ends
    fine: float = 1e-7  # change of x in an iteration at which Newton steps end
    max_steps: int = 100  # maximum number of steps of a flow
    far: float = 0.25  # change of x in its unit, above which a start is replaced by its iteration
    accepted: float = 1e-3  # error of x up to which a fixed point counts as converged
    uninformed: float = 0.02  # overlap of the start, in units of the prior
    small: float = 0.05  # overlap in units of the prior, below which the growth of a column is computed
    full: float = 23.0  # x at which nothing is unknown: V is 1e-10 of the prior
    nearly_full: float = 7.0  # x of the informed start with noise


OF_RANDOM_POINTS = IterationSettings()
OF_INTEGRALS = IterationSettings(fine=1e-12, full=36.0)
STEPS = RootSettings(last=OF_RANDOM_POINTS.accepted)


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
    root: FoundRoot | None = None  # steps to the fixed point; None if it is known without steps


def solve_fixed_point(
    few: Equations, equations: Equations, alpha: float, init: str, near: FoundRoot | None = None
) -> Solution:
    """Return the fixed point that iterations from a start "uninformed" or "informed" reach.

    Parameters
    ----------
    few, equations : equations with few and with all samples; the same object if averages are integrals.
    alpha : sample complexity.
    init : start.
    near : steps to the fixed point of another quadrature rule, which replace the search.
    """
    rho, prior = equations.rho, equations.input(np.zeros_like(equations.rho))
    settings = OF_INTEGRALS if equations.exact else OF_RANDOM_POINTS
    if not prior.V.any():
        return _known_exactly(equations, 0.0)
    known = prior.known
    if equations.has_zero_fixed_point():
        known = settings.uninformed * rho
        if init == "uninformed" and alpha * equations.growth() < 1:
            return Solution(prior.q, prior.V, prior.known, alpha * equations.output(prior.V, prior.known).log_z)
    F, n_iter = Information(equations, alpha, settings.full), 0
    if near is None:
        x = start = F.of(rho - known, known)
        if init == "informed":  # with noise, targets say little about fields that are known far better than the noise
            x = F.pack((settings.full if equations.noiseless else settings.nearly_full) * np.eye(len(F.kept)) + 0 * rho)
        near = _search(F if few is equations else Information(few, alpha, settings.full), x, settings)
        n_iter = len(near.path)
        if few is not equations:
            near = _with_all_samples(F, near, start, init, settings)
    root = _solve(F, near, settings)
    output, averages = F.averages(root.x)
    (V, known), values = F.variances(root.x), F.spectrum(root.x)[0]
    # where V decreases to zero, all V keep their ratios
    low, is_clipped = settings.full - settings.nearly_full, values.max() > settings.full - settings.accepted
    if equations.noiseless and is_clipped and values.min() >= low:
        diverges = alpha * float(np.abs(output.hats @ V).max()) > settings.accepted
        solution = _known_exactly(equations, np.inf if diverges else equations.free_entropy(alpha, V, output))
    else:
        entropy = equations.free_entropy(alpha, V, output)
        if equations.exact:  # one more iteration, for V below e^(−`full`)
            V, known = averages.V, averages.known
        solution = Solution(averages.q * F.kept, V, known, entropy)
    error = max(_error(root), float(is_clipped and not equations.noiseless))  # with noise, V at `full` is a bound
    return solution._replace(
        residual=float(np.abs(root.residual).max()), error=error, converged=error < settings.accepted,
        n_iter=n_iter + len(root.path), root=root,
    )  # fmt: skip


def _known_exactly(equations: Equations, free_entropy: float) -> Solution:
    """Return the fixed point at which the weights are known exactly."""
    rho = equations.rho
    return Solution(equations.prior_second_moment, np.zeros_like(rho), rho, free_entropy, full=True)


def _search(F: "Information", x: np.ndarray, settings: IterationSettings) -> FoundRoot:
    """Return the steps from x to the neighborhood of the fixed point to which the flow leads.

    F is increasing, so that iterations do not skip a fixed point: a start that an iteration changes much is replaced.
    """
    for _ in range(settings.max_steps):
        change = F.residual(x)
        if np.abs(change).max() <= settings.far * F.units(x)[0]:
            break
        x = x + change
    return follow_flow(F, x, settings.rough, settings.max_steps, continued=True)


def _with_all_samples(
    F: "Information", near: FoundRoot, start: np.ndarray, init: str, settings: IterationSettings
) -> FoundRoot:
    """Return steps with few samples from whose end steps with all samples can begin, without columns that vanish."""
    equations, known = F.equations, F.variances(near.x)[1]
    fractions = np.diagonal(known, axis1=1, axis2=2) / np.diagonal(equations.rho, axis1=1, axis2=2)
    small = (fractions.max(axis=0) < settings.small) & equations.signless_columns()
    if init == "uninformed" and small.any() and not small.all():
        others = np.outer(~small, ~small)
        if F.alpha * equations.growth(known * others, np.nonzero(small)[0]) < 1:
            F.kept = others
            return near._replace(path=[F.of(equations.rho - known * others, known * others)], jacobian=None)
    is_small = F.spectrum(near.x)[0].max() < settings.small
    if is_small and equations.has_zero_fixed_point():  # with few samples, q = 0 may attract
        return near._replace(path=[start], jacobian=None)
    return near


def _solve(F: "Information", near: FoundRoot, settings: IterationSettings) -> FoundRoot:
    """Return the steps to the fixed point from the end of other steps: the flow, if Newton steps end elsewhere."""
    with suppress(ArithmeticError, np.linalg.LinAlgError):  # the Jacobian of a steady change of x is zero
        root = find_root(F, near.x, settings.fine / F.units(near.x)[0], STEPS, near.jacobian)
        attracts = root.jacobian is not None and np.linalg.eigvals(root.jacobian).real.max() <= 0
        if attracts and _error(root) < settings.accepted:
            return root
    return follow_flow(F, near.x, settings.fine, settings.max_steps, continued=True)


def _error(root: FoundRoot) -> float:
    """Return the estimated distance of x from the fixed point: the change in an iteration, or the next Newton step."""
    if root.failure is not None:  # the residual or its Jacobian may not be finite
        return np.inf
    step = 0.0 if root.jacobian is None else np.linalg.lstsq(root.jacobian, root.residual)[0]
    return float(max(np.abs(root.residual).max(), np.abs(step).max()))


class Information(NonlinearSystem):
    """Equations F(x) − x = 0 of the information x = −log(ρ^(−½) V ρ^(−½)), for an iteration F.

    A change of x is a relative change of V if V is small, and a change of ρ − V in units of ρ if that is small. Tokens
    whose variances have the same ratio in all kinds of coordinates have the same matrix (t, t); the upper triangles of
    the n different matrices are the vector x (k,).

    Attributes
    ----------
    equations, alpha : averages of an iteration, and sample complexity.
    kept : (t, t) pairs of columns that may have an overlap, by default all.
    """

    difference = 1e-3

    def __init__(self, equations: Equations, alpha: float, full: float) -> None:
        self.equations, self.alpha, self._full = equations, alpha, full
        t = equations.rho.shape[1]
        self.kept, self._upper = np.ones((t, t), dtype=bool), np.triu_indices(t)
        self._root = psd_root(equations.rho)
        self._inverse = np.linalg.inv(self._root)
        gammas = np.array([kind.gamma for kind in equations.kinds])
        profiles = np.round(gammas / gammas.sum(axis=0), 12)
        _, self._tokens, group = np.unique(profiles, axis=1, return_index=True, return_inverse=True)
        self._group = group.ravel()  # index of the matrix of each token
        self._last: tuple[bytes, OutputAverages, InputAverages] | None = None

    def pack(self, x: np.ndarray) -> np.ndarray:
        """Return the vector of matrices (L, t, t)."""
        return x[self._tokens][:, *self._upper].ravel()

    def unpack(self, x: np.ndarray) -> np.ndarray:
        """Return the matrices (n, t, t) of a vector."""
        matrices = np.zeros((len(self._tokens), *self.kept.shape))
        matrices[:, *self._upper] = matrices[:, *self._upper[::-1]] = x.reshape(len(matrices), -1)
        return matrices

    def spectrum(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the eigenvalues (n, t), in the range from 0 to `full`, and the eigenvectors of a vector's matrices."""
        values, vectors = np.linalg.eigh(self.unpack(x))
        if values.min() < -values.max() - 1e-12:  # if 0 were the result, q = 0 would attract from below
            raise FloatingPointError("the information is negative in a step")
        return np.clip(values, 0.0, self._full), vectors

    def variances(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return V and ρ − V (L, t, t), each without cancellation."""
        values, vectors = self.spectrum(x)
        whitened = (compose(part, vectors)[self._group] for part in (np.exp(-values), -np.expm1(-values)))
        V, known = (self._root @ part @ self._root for part in whitened)
        return V, known

    def of(self, V: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Return x, at most `full`, for V and ρ − V (L, t, t)."""
        V, known = (self._inverse @ part @ self._inverse for part in (V, known))
        values, vectors = np.linalg.eigh(known)
        unknown = np.einsum("lab,lac,lcb->lb", vectors, V, vectors)
        small, large = np.clip(values, 0.0, 0.5), np.maximum(unknown, np.exp(-self._full))
        return self.pack(compose(np.where(values < 0.5, -np.log1p(-small), -np.log(large)), vectors))

    def averages(self, x: np.ndarray) -> tuple[OutputAverages, InputAverages]:
        """Return the averages over samples and over coordinates in an iteration, from memory for the last x."""
        if self._last is None or self._last[0] != x.tobytes():
            output = self.equations.output(*self.variances(x))
            self._last = x.tobytes(), output, self.equations.input(self.alpha * output.hats)
        return self._last[1:]

    def residual(self, x: np.ndarray) -> np.ndarray:
        """Return the change of x in an iteration; FloatingPointError if x is negative."""
        averages = self.averages(x)[1]
        return self.of(np.where(self.kept, averages.V, self.equations.rho), averages.known * self.kept) - x

    def units(self, x: np.ndarray) -> np.ndarray:
        """Return a unit in proportion to x if V is small, so that few steps lead to V = 0."""
        return np.full(len(x), max(2.0, self.spectrum(x)[0].max()))

    def jacobian(self, x: np.ndarray, here: np.ndarray) -> np.ndarray:
        """Return the Jacobian at x, by differences in eigenvalues; the change of F by rotations is neglected.

        A small rotation of a matrix x changes V by orders of magnitude if the eigenvalues differ much.
        """
        values, vectors = np.linalg.eigh(self.unpack(x))
        twice = (2 - np.eye(len(self.kept)))[self._upper]  # how often an entry of a triangle is in its matrix
        J, step = -np.eye(len(x)), self.difference * self.units(x)[0]
        for group, k in np.ndindex(values.shape):
            projector = np.zeros_like(vectors)
            projector[group] = np.outer(vectors[group][:, k], vectors[group][:, k])
            part = projector[:, *self._upper]
            signed = step if values[group, k] + step < self._full else -step  # F is not smooth at `full`
            change = self.residual(x + signed * part.ravel()) - here
            J += np.outer(change / signed + part.ravel(), part * twice)
        return J
