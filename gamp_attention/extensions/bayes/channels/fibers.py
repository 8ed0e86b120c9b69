"""Points on the fibers of a teacher: all variables at which it returns a given target, with posterior weights.

The variables v (D,) of a sample are the teacher's fields and its noise, with the Gaussian prior N(ω, V). The target
y = h(v) restricts them to a surface, its fiber: for h(v) = v₁² + v₂² and y = 1 the unit circle. The moments of the
posterior, which is the prior restricted to the fiber, are computed by importance sampling. `fill_points` draws points:

1. A subset S of p variables is solved for; the others, the free variables a, are drawn from their prior N(ω_a, V_aa).
2. All solutions v of h(v) = y with these a are computed by Levenberg-Marquardt steps from many starts.
3. A change of signs F that leaves h unchanged maps points of the fiber to points of the fiber, its images. Only one of
   the m_S solutions of a draw that are images of each other is stored; m_S is the number of F that keep a.

With K draws for each subset S, the density of all points and images is Σ_F Σ_S (K/m_S) N((Fv)_a; ω_a, V_aa)
|∂h/∂v_S|, with |J| = √det(JᵀJ) for targets that contain the same information several times. `weigh_points` gives each
point the weight N(v; ω, V) divided by this density, whichever subset it was drawn with: a fold of the fiber, at which
|∂h/∂v_S| vanishes for one subset, has finite weights because of the others (Veach and Guibas, 1995).

A class is made for one traced function, as a `gamp_attention.extensions.sequence.sequence_loss.SequenceLoss` is: it
contains the function and its Jacobian as a `Program`, which numba receives as machine instructions (`compile_fiber`).
All other kernels are compiled once, and call them at the address in a `Fiber`.

The fiber of a sample does not change during message passing or state evolution, only the prior of the fields does.
`ReusedPoints` therefore weighs points again, at a hundredth of the cost of new points. It draws new points if V exceeds
the covariance of the draw in some direction, or if the effective number of points has become too small. The covariance
of a draw is somewhat larger than V, so that points remain useful if V fluctuates.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import typeof
from numba.core import types
from numba.extending import intrinsic
from scipy.linalg import block_diag

from gamp_attention._kernels.compiled import kernel, sample_kernel
from gamp_attention._kernels.pointers import emit_call
from gamp_attention._tools.numerics import hash_bytes, symmetrize
from gamp_attention.extensions.bayes.channels.channel import Halves, Posterior
from gamp_attention.extensions.sequence.expressions import Program, emit
from gamp_attention.problem.denoisers.newton import assign, cholesky, cholesky_solve, max_abs

N_GROUPS = 4  # number of independent groups of points
NEGLIGIBLE = -45.0  # logarithm of a weight over the largest weight below which it is zero
LOG_TWO_PI = float(np.log(2 * np.pi))
VECTOR = types.Array(types.float64, 1, "C")


class Fiber(NamedTuple):
    """A traced function h of D variables with P results, and its Jacobian, compiled in this process."""

    address: int  # of the compiled program
    n_targets: int
    n_variables: int


class FiberProgram(NamedTuple):
    """Base of one class for each traced function, through which numba receives its `Program`."""

    n_targets: int
    program = None  # type: ignore[misc]


@cache
def compile_fiber(program: Program, n_targets: int, n_variables: int) -> Fiber:
    """Return the compiled form of a program whose results are h (P,) and the Jacobian (P, D), row by row."""
    name = f"FiberProgram_{hash_bytes(repr((program, n_targets)).encode())}"
    cls: Any = type(name, (FiberProgram,), {"__module__": __name__, "__slots__": (), "program": program})
    setattr(sys.modules[__name__], name, cls)  # stored code refers to the class by its name
    address = _fill.address((types.CPointer(typeof(cls(n_targets))), VECTOR, VECTOR))[0]
    return Fiber(int(address), n_targets, n_variables)


class Fibers(NamedTuple):
    """Fibers of n samples."""

    fiber: Fiber  # the traced function h
    y: np.ndarray  # (n, P) targets
    error: np.ndarray  # (n, P) or more rows: allowed differences from the targets
    flips: np.ndarray  # (F, D) changes of sign that leave h unchanged


class Subsets(NamedTuple):
    """Subsets of variables that are solved for."""

    chosen: np.ndarray  # (s, p) the variables of each subset
    affine: np.ndarray  # (s,) whether h is affine in them
    kept: np.ndarray  # (s, F) whether a change of sign keeps the free variables


class FreePrior(NamedTuple):
    """Prior of the free variables of each subset; matrices are zero for the other variables."""

    center: np.ndarray  # (n, D) prior means ω of the variables
    roots: np.ndarray  # (s, D, D) matrices that map standard normal numbers to deviations
    precisions: np.ndarray  # (s, D, D) inverse covariances
    constants: np.ndarray  # (s,) logarithms of the normalization of the density times K/m_S


class FiberSearch(NamedTuple):
    """Search for all solutions with given free variables: random starts and settings.

    The values are the results of trials: a smaller number of starts or evaluations loses solutions of some targets.
    """

    starts: np.ndarray  # (k, D) random starts, all of which the first node of a subset uses
    n_starts: int = 3  # number of random starts of any other node, which also starts from the solutions before
    max_branches: int = 32  # maximum number of solutions, which limits the memory
    max_previous: int = 8  # maximum number of solutions from which the search with the next free variables starts
    max_evaluations: int = 40  # maximum number of evaluations of h from one start
    same: float = 1e-5  # relative distance below which two solutions are equal
    step_error: float = 1e-10  # size of a step at which a solution has converged
    max_step: float = 3.0  # largest change of a variable in one step, because h may overflow far away


class Work(NamedTuple):
    """Memory of the search for one solution."""

    v: np.ndarray  # (D,) variables
    out: np.ndarray  # (P + P D,) h and its Jacobian at v
    trial: np.ndarray  # (D,) variables after a step
    trial_out: np.ndarray  # (P + P D,)
    gram: np.ndarray  # (p, p)
    step: np.ndarray  # (p,)


class Points(NamedTuple):
    """Memory of M points, see `FiberPoints`."""

    fields: np.ndarray  # (M, k) fields of each point
    logs: np.ndarray  # (M,) logarithm of the density of its noise over the density of the point
    groups: np.ndarray  # (M,) group of its node, which is the node's index modulo `N_GROUPS`


def _emit_evaluation(typing_context: Any, fiber: Any, v: Any, out: Any) -> Any:
    """Fill out (P + P D,) with h and its Jacobian at v (D,), for a pointer to a program, whose type is all it needs."""
    program: Program = fiber.dtype.instance_class.program

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        read, write = (context.make_array(VECTOR)(context, builder, vector).data for vector in arguments[1:])

        def entry(data: Any, index: int) -> Any:
            return builder.gep(data, [context.get_constant(types.intp, index)])

        inputs = [builder.load(entry(read, i)) for i in range(program.n_inputs)]
        for number, result in enumerate(emit(context, builder, program, inputs)):
            builder.store(result, entry(write, number))
        return context.get_dummy_value()

    return types.void(fiber, v, out), generate


_fill_results: Any = intrinsic(_emit_evaluation)


@sample_kernel
def _fill(fiber, v, out):
    _fill_results(fiber, v, out)


def _emit_call(typing_context: Any, fiber: Any, v: Any, out: Any) -> Any:
    """Fill out (P + P D,) with h and its Jacobian at v (D,), for a `Fiber`."""
    if (v, out) != (VECTOR, VECTOR):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = builder.extract_value(arguments[0], 0)
        no_program = context.get_constant_null(types.voidptr)
        emit_call(context, builder, address, types.none, (types.voidptr, v, out), [no_program, *arguments[1:]])
        return context.get_dummy_value()

    return types.void(fiber, v, out), generate


_evaluate: Any = intrinsic(_emit_call)


@sample_kernel
def _gram(fiber, out, chosen, gram):
    """Fill gram (p, p) with J_SᵀJ_S."""
    P, D = fiber.n_targets, fiber.n_variables
    for i in range(len(chosen)):
        for j in range(i + 1):
            total = 0.0
            for k in range(P):
                total += out[P + k * D + chosen[i]] * out[P + k * D + chosen[j]]
            gram[i, j] = total
            gram[j, i] = total


@sample_kernel
def _cost(out, y):
    total = 0.0
    for k in range(len(y)):
        total += (out[k] - y[k]) ** 2
    return total


@sample_kernel
def _take_step(fiber, y, chosen, damp, out, gram, step):
    """Fill step (p,) with the Levenberg-Marquardt step; return whether its matrix is not singular."""
    P, D, p = fiber.n_targets, fiber.n_variables, len(chosen)
    _gram(fiber, out, chosen, gram)
    shift = 0.0
    for i in range(p):
        shift = max(shift, damp * gram[i, i])
        step[i] = 0.0
        for k in range(P):
            step[i] -= out[P + k * D + chosen[i]] * (out[k] - y[k])
    if not cholesky(gram, shift, gram):
        return False
    cholesky_solve(gram, step)
    return True


@sample_kernel
def _solve(fiber, y, error, chosen, search, work):
    """Solve h(v) = y for the variables `chosen` of v, starting from v; return whether a solution has been found.

    At the end, work.out has h and its Jacobian at v.
    """
    p, (v, out, trial, trial_out, gram, step) = len(chosen), work
    _evaluate(fiber, v, out)
    cost = _cost(out, y)
    damp = 0.0 if cost < 1e-4 else 1e-3  # a start that is a solution needs no step that decreases the cost
    for _ in range(search.max_evaluations):
        if not np.isfinite(cost):
            return False
        if p == 0:
            break
        if not _take_step(fiber, y, chosen, damp, out, gram, step):
            if damp > 1e3:
                return False
            damp = max(10 * damp, 1e-12)
            continue
        size = max_abs(step)
        if damp < 1e-6 and size < search.step_error:
            break
        scale = min(1.0, search.max_step / size) if size > 0 else 1.0
        assign(trial, v)
        for i in range(p):
            trial[chosen[i]] += scale * step[i]
        _evaluate(fiber, trial, trial_out)
        new = _cost(trial_out, y)
        if new < cost or (damp < 1e-6 and size < 1e-6):
            assign(v, trial)
            assign(out, trial_out)
            damp = 0.0 if cost < 1e-4 else 0.1 * damp
            cost = new
            if size < search.step_error or cost == 0.0:
                break
        else:
            damp = max(10 * damp, 1e-6)
            if damp > 1e6:
                return False
    solved = True
    for k in range(len(y)):
        solved = solved and abs(out[k] - y[k]) <= error[k]
    return solved


@sample_kernel
def _is_known(branches, n_branches, v, chosen, flips, kept, same):
    """Return whether v or an image of v under a change of sign that keeps the free variables is a known solution."""
    for f in range(len(flips)):
        if not kept[f]:
            continue
        for b in range(n_branches):
            equal = True
            for i in range(len(chosen)):
                difference = abs(branches[b, i] - flips[f, chosen[i]] * v[chosen[i]])
                equal = equal and difference <= same * (1 + abs(v[chosen[i]]))
            if equal:
                return True
    return False


@sample_kernel
def _log_density(fiber, flips, prior, center, chosen, work):
    """Return the logarithm of the density of points of a sample with prior mean `center` and their images at work.v."""
    p, D, v = chosen.shape[1], fiber.n_variables, work.v
    top, total = -np.inf, 0.0
    for s in range(len(chosen)):
        size = prior.constants[s]
        if p > 0:
            _gram(fiber, work.out, chosen[s], work.gram)
            if not cholesky(work.gram, 0.0, work.gram):
                continue
            for i in range(p):
                size += np.log(work.gram[i, i])
        for f in range(len(flips)):
            part = size
            for i in range(D):
                for j in range(D):
                    left, right = flips[f, i] * v[i] - center[i], flips[f, j] * v[j] - center[j]
                    part -= 0.5 * left * prior.precisions[s, i, j] * right
            if part > top:
                total = total * np.exp(top - part) + 1.0 if top > -np.inf else 1.0
                top = part
            elif part > -np.inf:
                total += np.exp(part - top)
    return top + np.log(total)


@kernel
def fill_points(fibers, prior, nodes, subsets, search, first, points, ends):
    """Fill points on the fibers of n samples, from sample `first` on; return the first sample without enough memory.

    Parameters
    ----------
    fibers : the fibers. Other arrays may have more rows than its targets, which are not used.
    prior : prior of the free variables.
    nodes : (n, K, D) standard normal numbers, of which each subset uses its free variables.
    subsets : the subsets of variables that are solved for.
    search : starts and settings of the search for solutions.
    first : index of the first sample.
    points, ends : memory of the points, to be filled, and (n,) the end of the points of each sample.
    """
    fiber, flips, p, n_fields = fibers.fiber, fibers.flips, subsets.chosen.shape[1], points.fields.shape[1]
    n, D, free, size = len(fibers.y), fiber.n_variables, np.empty(fiber.n_variables), max(p, 1)
    out, trial_out = np.empty(fiber.n_targets * (1 + D)), np.empty(fiber.n_targets * (1 + D))
    work = Work(np.empty(D), out, np.empty(D), trial_out, np.empty((size, size)), np.empty(size))
    branches, previous = np.empty((search.max_branches, size)), np.empty((search.max_branches, size))
    for mu in range(first, n):
        end = 0 if mu == 0 else ends[mu - 1]
        for s in range(len(subsets.chosen)):
            chosen, n_previous = subsets.chosen[s], 0
            for k in range(nodes.shape[1]):
                if end + search.max_branches > len(points.logs):
                    return mu
                for i in range(D):
                    free[i] = prior.center[mu, i]
                    for j in range(D):
                        free[i] += prior.roots[s, i, j] * nodes[mu, k, j]
                n_branches = 0
                n_random = search.n_starts if k > 0 else len(search.starts)
                for start in range(1 if p == 0 or subsets.affine[s] else n_previous + 1 + n_random):
                    assign(work.v, free)
                    row = (k * search.n_starts + start - n_previous - 1) % len(search.starts)
                    for i in range(p):  # a solution found before, then the prior mean, then random starts
                        if start < n_previous:
                            work.v[chosen[i]] = previous[start, i]
                        elif start == n_previous:
                            work.v[chosen[i]] = prior.center[mu, chosen[i]]
                        else:
                            work.v[chosen[i]] = search.starts[row, chosen[i]]
                    if not _solve(fiber, fibers.y[mu], fibers.error[mu], chosen, search, work):
                        continue
                    full = n_branches == search.max_branches
                    if full or _is_known(branches, n_branches, work.v, chosen, flips, subsets.kept[s], search.same):
                        continue
                    for i in range(p):
                        branches[n_branches, i] = work.v[chosen[i]]
                    n_branches += 1
                    log_density = _log_density(fiber, flips, prior, prior.center[mu], subsets.chosen, work)
                    if np.isfinite(log_density):
                        assign(points.fields[end], work.v)
                        points.logs[end] = -log_density
                        for i in range(n_fields, D):
                            points.logs[end] -= 0.5 * (work.v[i] * work.v[i] + LOG_TWO_PI)
                        points.groups[end] = k % N_GROUPS
                        end += 1
                if n_branches > 0:
                    n_previous = min(n_branches, search.max_previous)
                    for q in range(n_previous):
                        assign(previous[q], branches[q])
        ends[mu] = end
    return n


@kernel
def weigh_points(points, ends, flips, omega, inverse, mean, second, total, squares, top):
    """Fill sums over the weighted points of n samples, separately for the points of each of G groups.

    Parameters
    ----------
    points, ends : points, as filled by `fill_points`.
    flips : (F, k) changes of sign of the fields.
    omega, inverse : (n, k) and (k, k) prior means and inverse prior covariance of the fields.
    mean, second, total, squares : (n, G, k), (n, G, k, k), (n, G) and (n, G) sums of fields, their products, weights
        and squared weights, relative to the largest weight of the group, to be filled from zero.
    top : (n, G) logarithm of the largest weight, −∞ without points.
    """
    k, F, begin, image = points.fields.shape[1], len(flips), 0, np.empty(points.fields.shape[1])
    for mu in range(len(ends)):
        log_weight = np.empty((ends[mu] - begin, F))
        top[mu] = -np.inf
        for q in range(begin, ends[mu]):
            for f in range(F):
                value = points.logs[q]
                for i in range(k):
                    image[i] = flips[f, i] * points.fields[q, i] - omega[mu, i]
                    part = 0.5 * inverse[i, i] * image[i]
                    for j in range(i):
                        part += inverse[i, j] * image[j]
                    value -= part * image[i]
                log_weight[q - begin, f] = value
                top[mu, points.groups[q]] = max(top[mu, points.groups[q]], value)
        for q in range(begin, ends[mu]):
            g = points.groups[q]
            for f in range(F):
                exponent = log_weight[q - begin, f] - top[mu, g]
                if not exponent > NEGLIGIBLE:
                    continue
                w = np.exp(exponent)
                total[mu, g] += w
                squares[mu, g] += w * w
                for i in range(k):
                    image[i] = flips[f, i] * points.fields[q, i]
                    mean[mu, g, i] += w * image[i]
                    for j in range(i + 1):
                        second[mu, g, i, j] += w * image[i] * image[j]
        begin = ends[mu]


@dataclass(frozen=True, eq=False)
class FiberPoints:
    """Points of n samples, which `fill_points` has drawn."""

    points: Points
    ends: np.ndarray  # (n,) end of the points of each sample
    flips: np.ndarray  # (F, k) changes of sign of the fields that map points to points
    shift: np.ndarray  # (n,) number that is added to log Z

    @np.errstate(divide="ignore", invalid="ignore")  # for samples without points
    def weigh(self, omega: np.ndarray, V: np.ndarray) -> tuple[Posterior, np.ndarray]:
        """Return the posterior of the fields for the prior N(ω, V), and the effective numbers of points (n,).

        Moments are ratios of sums over K points, with a bias of order 1/K. Each half of the points consists of two
        groups, and the jackknife estimate of the moments in `halves`, twice the ratio of the half minus the mean ratio
        of its groups, has a bias of order 1/K². `mean` and `cov` are not corrected, so that a mean is always between
        points, as message passing needs. A sample without points is treated as if it had no target.
        """
        (n, L, t), cov, G = omega.shape, block_diag(*V), N_GROUPS
        center, k = np.ascontiguousarray(omega.reshape(n, -1)), L * t
        mean, second, (total, squares, top) = np.zeros((n, G, k)), np.zeros((n, G, k, k)), np.zeros((3, n, G))
        inverse = np.ascontiguousarray(np.linalg.inv(cov))
        weigh_points(self.points, self.ends, self.flips, center, inverse, mean, second, total, squares, top)
        second += np.tril(second, -1).swapaxes(2, 3)
        highest = top.max(axis=1, keepdims=True)
        total, squares = total * np.exp(top - highest), squares * np.exp(2 * (top - highest))
        sums = np.concatenate([mean, second.reshape(n, G, k * k)], axis=2) * np.exp(top - highest)[:, :, None]
        of_pair = (sums[:, ::2] + sums[:, 1::2]) / (total[:, ::2] + total[:, 1::2])[:, :, None]
        effective = total.sum(axis=1) ** 2 / squares.sum(axis=1)
        log_z = highest[:, 0] + np.log(total.sum(axis=1)) - 0.5 * np.linalg.slogdet(2 * np.pi * cov)[1]
        of_group = np.where(total[:, :, None] > 0, sums / total[:, :, None], of_pair.repeat(2, axis=1))
        lost = ~np.isfinite(of_group).all(axis=(1, 2))
        if lost.any():
            without = np.concatenate([center, (cov + center[:, :, None] * center[:, None]).reshape(n, -1)], axis=1)
            of_group[lost] = of_pair[lost] = without[lost, None]
            log_z[lost] = effective[lost] = 0.0
        corrected = (2 * of_pair - of_group.reshape(n, G // 2, 2, -1).mean(axis=2)).swapaxes(0, 1)
        halves = Halves(corrected[:, :, :k].reshape(2, n, L, t), corrected[:, :, k:].reshape(2, n, k, k))
        means, average = of_pair[:, :, :k].swapaxes(0, 1), of_pair.mean(axis=1)
        covariance = average[:, k:].reshape(n, k, k) - symmetric_product(means)
        return Posterior(average[:, :k].reshape(n, L, t), covariance, log_z + self.shift, halves), effective


def symmetric_product(halves: np.ndarray) -> np.ndarray:
    """Return the symmetric part of the outer products (n, k, k) of two independent means (2, n, k)."""
    crossed = halves[0][:, :, None] * halves[1][:, None, :]
    return np.asarray(symmetrize(crossed))


@dataclass
class ReusedPoints:
    """Posteriors of given samples, from points that are drawn again only if the prior has changed too much."""

    draw: Callable[[np.ndarray, np.ndarray], FiberPoints]  # draws points for means (n, L, t) and covariances (L, t, t)
    rho: np.ndarray  # (L, t, t) covariances of the fields without information
    widened: float = 1.5  # ratio of the covariance of a draw to V, for V much smaller than the prior ρ
    min_effective: float = 0.6  # fraction of the first effective number of points below which points are drawn again
    covered: float = 1.02  # largest ratio of V to the covariance of a draw, in any direction
    _points: FiberPoints | None = field(init=False, default=None)
    _effective: float = field(init=False, default=0.0)
    _V: np.ndarray = field(init=False)

    def posterior(self, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the posterior of the fields for prior means ω (n, L, t) and covariances V (L, t, t)."""
        # a draw is used as long as no direction has a larger variance than the covariance of the draw
        if self._points and np.real(np.linalg.eigvals(np.linalg.solve(self._V, V))).max() <= self.covered:
            posterior, effective = self._points.weigh(omega, V)
            if effective.mean() >= self.min_effective * self._effective:
                return posterior
        inverse = np.linalg.inv(self.rho)
        self._V = np.linalg.inv(inverse + (np.linalg.inv(V) - inverse) / self.widened)
        self._points = self.draw(omega, self._V)
        posterior, effective = self._points.weigh(omega, V)
        self._effective = float(effective.mean())
        return posterior
