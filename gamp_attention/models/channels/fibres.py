"""Points on the fibres of a teacher: all variables at which it returns a given target, with posterior weights.

The variables v (D,) of a sample are the teacher's fields and its noise, with the Gaussian prior N(ω, V). The target
y = h(v) restricts them to a fibre. If h depends on p combinations of the variables, the posterior is a measure on a
surface of dimension D − p. `fill_moments` computes its moments by importance sampling:

1. A subset S of p variables is solved for, the others, a, are drawn from their prior N(ω_a, V_aa).
2. All solutions v of h(v) = y with these a are computed by Levenberg-Marquardt steps from many starts.
3. The density of such points on the fibre is Σ_S K_S N(a; ω_a, V_aa) |∂h/∂v_S|, for K_S draws with each subset S. The
   posterior has the density N(v; ω, V). Their ratio is the weight of a point, whichever subset it was drawn with.

The determinants of rectangular Jacobians, of targets that contain the same information several times, are
|J| = √det(JᵀJ). A fold of the fibre, at which |∂h/∂v_S| vanishes for one subset, has finite weights because of the
other subsets (balance heuristic of Veach and Guibas, 1995).

A `FibreProgram` is made for one traced function, as a `gamp_attention.losses.sequence.SequenceLoss` is: its class
contains the function and its Jacobian as a `Program`, which numba receives as machine instructions.
"""

import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from gamp_attention._core.compiled import kernel, sample_kernel
from gamp_attention._core.emission import emit
from gamp_attention._core.expressions import Program
from gamp_attention._core.hashes import hash_bytes

MAX_BRANCHES = 32  # maximum number of solutions for given free variables
MAX_PREVIOUS = 8  # maximum number of solutions from which the search with the next free variables starts
MAX_EVALUATIONS = 40  # maximum number of evaluations of h from one start
SAME = 1e-5  # relative distance below which two solutions are equal
STEP_ERROR = 1e-10  # size of a step at which a solution has converged
STUCK_COST, STUCK_DECREASE, STUCK_STEP = 1e-6, 1e-2, 0.1  # squared distance, relative decrease and step at a minimum
MAX_STEP = 3.0  # largest change of a variable in one step


class FibreProgram(NamedTuple):
    """A traced function h of D variables with P results, and its Jacobian; base of one class for each function."""

    n_targets: int = 0
    n_variables: int = 0
    program = None  # type: ignore[misc]

    def __reduce__(self) -> Any:
        return (fibre_program, (self.program, *self)) if self.program is not None else (FibreProgram, tuple(self))


@cache
def fibre_program(program: Program, n_targets: int, n_variables: int) -> FibreProgram:
    """Return the compiled form of a program whose results are h (P,) and the Jacobian (P, D), row by row."""
    name = f"FibreProgram_{hash_bytes(repr((program, n_targets)).encode())}"
    cls = type(name, (FibreProgram,), {"__module__": __name__, "__slots__": (), "program": program})
    setattr(sys.modules[__name__], name, cls)  # stored code refers to the class by its name
    return cls(n_targets, n_variables)


def _emit_evaluation(typing_context: Any, fibre: Any, v: Any, out: Any) -> Any:
    """Fill out (P + P D,) with h and its Jacobian at v (D,)."""
    program: Program = fibre.instance_class.program

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args[1:3]
        views = [context.make_array(k)(context, builder, a) for k, a in zip(kinds, arguments[1:3], strict=True)]

        def place(which: int, index: int) -> Any:
            at = [context.get_constant(types.intp, index)]
            return cgutils.get_item_pointer(
                context, builder, kinds[which], views[which], at, wraparound=False, boundscheck=False
            )

        inputs = [builder.load(place(0, i)) for i in range(program.n_inputs)]
        for number, result in enumerate(emit(context, builder, program, inputs)):
            builder.store(result, place(1, number))
        return context.get_dummy_value()

    return types.void(fibre, v, out), generate


_evaluate: Any = intrinsic(_emit_evaluation)


@sample_kernel
def _gram(out, P, D, chosen, p, gram):
    """Fill gram (p, p) with J_SᵀJ_S."""
    for i in range(p):
        for j in range(i + 1):
            total = 0.0
            for k in range(P):
                total += out[P + k * D + chosen[i]] * out[P + k * D + chosen[j]]
            gram[i, j] = total
            gram[j, i] = total


@sample_kernel
def _log_root_det(gram, p):
    """Return ½ log det of a positive matrix (p, p), which is overwritten; −inf if it is singular."""
    total = 0.0
    for j in range(p):
        size = gram[j, j]
        for k in range(j):
            gram[j, j] -= gram[j, k] * gram[j, k]
        if not gram[j, j] > 1e-14 * size or not gram[j, j] > 0.0:
            return -np.inf
        gram[j, j] = np.sqrt(gram[j, j])
        total += np.log(gram[j, j])
        for i in range(j + 1, p):
            for k in range(j):
                gram[i, j] -= gram[i, k] * gram[j, k]
            gram[i, j] /= gram[j, j]
    return total


@sample_kernel
def _copy(source, target):
    for i in range(len(source)):
        target[i] = source[i]


@sample_kernel
def _cost(out, y, P):
    total = 0.0
    for k in range(P):
        total += (out[k] - y[k]) ** 2
    return total


@sample_kernel
def _take_step(out, y, P, D, chosen, p, damp, gram, step):
    """Fill step (p,) with the Levenberg-Marquardt step; return whether its matrix is not singular."""
    _gram(out, P, D, chosen, p, gram)
    largest = 0.0
    for i in range(p):
        largest = max(largest, gram[i, i])
    for i in range(p):
        gram[i, i] += damp * largest
        total = 0.0
        for k in range(P):
            total -= out[P + k * D + chosen[i]] * (out[k] - y[k])
        step[i] = total
    if not _log_root_det(gram, p) > -np.inf:
        return False
    for i in range(p):
        for k in range(i):
            step[i] -= gram[i, k] * step[k]
        step[i] /= gram[i, i]
    for i in range(p - 1, -1, -1):
        for k in range(i + 1, p):
            step[i] -= gram[k, i] * step[k]
        step[i] /= gram[i, i]
    return True


@sample_kernel
def _solve(fibre, y, error, chosen, p, v, out, trial, trial_out, gram, step):
    """Solve h(v) = y for the variables `chosen` of v, starting from v; return whether it succeeded.

    At the end, out has h and its Jacobian at v.
    """
    P, D = fibre.n_targets, fibre.n_variables
    _evaluate(fibre, v, out)
    cost, damp = _cost(out, y, P), 1e-3
    for _ in range(MAX_EVALUATIONS):
        if not np.isfinite(cost):
            return False
        if p == 0:
            break
        if not _take_step(out, y, P, D, chosen, p, damp, gram, step):
            if damp > 1e3:
                return False
            damp = max(10 * damp, 1e-12)
            continue
        size = 0.0
        for i in range(p):
            size = max(size, abs(step[i]))
        if damp < 1e-6 and size < STEP_ERROR:
            break
        scale = min(1.0, MAX_STEP / size) if size > 0 else 1.0
        _copy(v, trial)
        for i in range(p):
            trial[chosen[i]] += scale * step[i]
        _evaluate(fibre, trial, trial_out)
        new = _cost(trial_out, y, P)
        if new < cost or (damp < 1e-6 and size < 1e-6):
            _copy(trial, v)
            _copy(trial_out, out)
            stuck = cost > STUCK_COST and cost - new < STUCK_DECREASE * cost and size < STUCK_STEP
            damp = 0.0 if cost < 1e-4 else 0.1 * damp
            cost = new
            if stuck:
                return False
            if size < STEP_ERROR or cost == 0.0:
                break
        else:
            damp = max(10 * damp, 1e-6)
            if damp > 1e6:
                return False
    solved = True
    for k in range(P):
        solved = solved and abs(out[k] - y[k]) <= error[k]
    return solved


@sample_kernel
def _is_known(branches, n_branches, v, chosen, p):
    for b in range(n_branches):
        same = True
        for i in range(p):
            if abs(branches[b, i] - v[chosen[i]]) > SAME * (1 + abs(v[chosen[i]])):
                same = False
        if same:
            return True
    return False


@sample_kernel
def _log_weight(fibre, out, v, centre, inverse, precisions, constants, subsets, p, gram):
    """Return the logarithm of the posterior's density at v over the density of the points."""
    P, D = fibre.n_targets, fibre.n_variables
    full = 0.0
    for i in range(D):
        for j in range(D):
            full -= 0.5 * (v[i] - centre[i]) * inverse[i, j] * (v[j] - centre[j])
    top, total = -np.inf, 0.0
    for s in range(len(subsets)):
        part = constants[s] - full
        for i in range(D):
            for j in range(D):
                part -= 0.5 * (v[i] - centre[i]) * precisions[s, i, j] * (v[j] - centre[j])
        if p > 0:
            _gram(out, P, D, subsets[s], p, gram)
            part += _log_root_det(gram, p)
        if part > top:
            total = total * np.exp(top - part) + 1.0 if top > -np.inf else 1.0
            top = part
        elif part > -np.inf:
            total += np.exp(part - top)
    return -(top + np.log(total))


@kernel
def count_found(fibre, y, error, truth, chosen, affine, starts, scale, found):
    """Fill found (n,) with True if the search from random starts finds the true variables (n, D) of a sample.

    The free variables have their true values. Other parameters are as for `fill_moments`.
    """
    P, D, p = fibre.n_targets, fibre.n_variables, len(chosen)
    size = P + P * D
    out, trial_out, v, trial = np.empty(size), np.empty(size), np.empty(D), np.empty(D)
    gram, step = np.empty((max(p, 1), max(p, 1))), np.empty(max(p, 1))
    solution = np.empty((1, max(p, 1)))
    for mu in range(len(y)):
        found[mu] = False
        for start in range(-1, 0 if affine else len(starts)):
            v[:] = truth[mu]
            for i in range(p):
                v[chosen[i]] = 0.0 if start < 0 else scale[chosen[i]] * starts[start, chosen[i]]
            if _solve(fibre, y[mu], error[mu], chosen, p, v, out, trial, trial_out, gram, step):
                for i in range(p):
                    solution[0, i] = v[chosen[i]]
                if _is_known(solution, 1, truth[mu], chosen, p):
                    found[mu] = True
                    break


@kernel
def fill_moments(
    fibre, y, error, centre, nodes, roots, inverse, precisions, constants, subsets, affine, starts, n_starts, scale,
    mean, second, log_z, effective, n_points,
):  # fmt: skip
    """Fill moments of the posteriors of n samples, separately for even and odd nodes.

    Parameters
    ----------
    fibre : the traced function.
    y, error : (n, P) targets, and allowed differences from them.
    centre : (n, D) prior means ω of the variables.
    nodes : (n, K, D) standard normal numbers, of which each subset uses its free variables.
    roots : (s, D, D) matrices that map them to deviations of the free variables, zero for the others.
    inverse : (D, D) inverse of the prior covariance.
    precisions, constants : (s, D, D) and (s,) inverse covariances of the free variables, and the logarithms of the
        normalisation of their density times K, relative to the normalisation of the full prior.
    subsets, affine : (s, p) variables that are solved for, and (s,) whether h is affine in them.
    starts, scale : (k, D) and (D,) standard normal numbers and their factors, for random starts; the first node of a
        subset uses all of them.
    n_starts : number of random starts of any other node, which also starts from the solutions of the node before.
    mean, second : (2, n, D) and (2, n, D, D) posterior moments, to be filled.
    log_z, effective, n_points : (n,) log Z, effective number of points and number of points, to be filled.
    """
    n, P, D, p, K = len(y), fibre.n_targets, fibre.n_variables, subsets.shape[1], nodes.shape[1]
    size = P + P * D
    out, trial_out, v, trial, free = np.empty(size), np.empty(size), np.empty(D), np.empty(D), np.empty(D)
    gram, step = np.empty((max(p, 1), max(p, 1))), np.empty(max(p, 1))
    branches, previous = np.empty((MAX_BRANCHES, max(p, 1))), np.empty((MAX_BRANCHES, max(p, 1)))
    total = np.empty(2)
    for mu in range(n):
        top, squares, count = -np.inf, 0.0, 0
        total[:] = 0.0
        mean[:, mu] = 0.0
        second[:, mu] = 0.0
        for s in range(len(subsets)):
            chosen, n_previous = subsets[s], 0
            for k in range(K):
                for i in range(D):
                    free[i] = centre[mu, i]
                    for j in range(D):
                        free[i] += roots[s, i, j] * nodes[mu, k, j]
                n_branches = 0
                n_random = n_starts if k > 0 else len(starts)
                n_trials = 1 if p == 0 or affine[s] else 1 + n_previous + n_random
                for start in range(n_trials):
                    v[:] = free
                    for i in range(p):
                        if start == 0:
                            v[chosen[i]] = centre[mu, chosen[i]]
                        elif start <= n_previous:
                            v[chosen[i]] = previous[start - 1, i]
                        else:
                            row = (k * n_starts + start - 1 - n_previous) % len(starts)
                            v[chosen[i]] = scale[chosen[i]] * starts[row, chosen[i]]
                    if not _solve(fibre, y[mu], error[mu], chosen, p, v, out, trial, trial_out, gram, step):
                        continue
                    if _is_known(branches, n_branches, v, chosen, p) or n_branches == MAX_BRANCHES:
                        continue
                    for i in range(p):
                        branches[n_branches, i] = v[chosen[i]]
                    n_branches += 1
                    log_weight = _log_weight(
                        fibre, out, v, centre[mu], inverse, precisions, constants, subsets, p, gram
                    )
                    if not np.isfinite(log_weight):
                        continue
                    if log_weight > top:
                        ratio = np.exp(top - log_weight)
                        top = log_weight
                        total *= ratio
                        mean[:, mu] *= ratio
                        second[:, mu] *= ratio
                        squares *= ratio * ratio
                    weight = np.exp(log_weight - top)
                    half = k % 2
                    total[half] += weight
                    squares += weight * weight
                    count += 1
                    for i in range(D):
                        mean[half, mu, i] += weight * v[i]
                        for j in range(D):
                            second[half, mu, i, j] += weight * v[i] * v[j]
                n_previous = min(n_branches, MAX_PREVIOUS)
                previous[:n_previous] = branches[:n_previous]
        for half in range(2):
            mean[half, mu] /= total[half]
            second[half, mu] /= total[half]
        both = total[0] + total[1]
        log_z[mu] = top + np.log(both)
        effective[mu] = both * both / squares if squares > 0 else 0.0
        n_points[mu] = count
