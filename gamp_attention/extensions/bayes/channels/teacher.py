"""Channel of any teacher that can be traced: posteriors of the fields by sums over points of the teacher's fibers.

The variables of a sample are its fields u (L, t) and the random numbers ξ that the teacher receives. Targets that are
always positive are replaced by their logarithms, so that a softmax close to 0 or 1 keeps its information, and all
targets are divided by their standard deviations. `gamp_attention.extensions.bayes.channels.fibers` computes the
posterior.

The subsets of variables that are solved for are selected on random samples (`_select_subsets`):

- If noise is added to all targets, the noise is solved for, which has one solution; its density is the likelihood.
- Otherwise, and if this noise is weak, a subset is tested by solving for it from random starts, with the other
  variables at their true values. Only subsets for which nearly all true values are found are used. The subset with the
  largest effective number of points is first; further subsets are added until each variable is solved for by some
  subset, so that a part of the fields that is nearly known can be drawn from its narrow prior.

A posterior is a sum over K points for each subset. Points of a sample are a Sobol sequence with a random shift, so that
errors of different samples are independent, and include all images under the changes of sign that leave the targets
unchanged, so that symmetries hold exactly. Four shifts give four independent groups. Two groups are a half of the
points, and products of averages over both halves have no bias from the finite number of points, except a bias of ratios
of sums of order 1/K², see `gamp_attention.extensions.bayes.channels.fibers`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import combinations, islice, product
from math import comb
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag
from scipy.special import ndtri

from gamp_attention._tools import check
from gamp_attention._tools.numerics import psd_root
from gamp_attention._tools.quadrature import inside_cube
from gamp_attention._tools.sobol import sobol_points
from gamp_attention.extensions.bayes.channels.channel import LabelChannel, Posterior, PosteriorChannel
from gamp_attention.extensions.bayes.channels.fibers import (
    N_GROUPS,
    Fiber,
    FiberPoints,
    Fibers,
    FiberSearch,
    FreePrior,
    Points,
    ReusedPoints,
    Subsets,
    compile_fiber,
    fill_points,
)
from gamp_attention.extensions.sequence.expressions import Graph, Program
from gamp_attention.extensions.sequence.sequence_labels import SequenceLabels, are_equal, evaluate_rows


@dataclass(frozen=True)
class TeacherSettings:
    """Settings of a `TeacherChannel`: sizes of draws, and the selection of its subsets on random samples."""

    max_fields: int = 6  # maximum number of fields L t: with more, few points have weight
    max_variables: int = 24  # maximum number of fields and random numbers, which limits the dimension of Sobol points
    n_interruptible: int = 256  # number of samples after whose points a run can be interrupted
    n_first_starts: int = 24  # number of random starts of the first search of a sample, and of searches on trial
    wider: float = 3.0  # ratio of the standard deviations of both draws of the fields of targets that are steps
    spread: float = 1.5  # standard deviation of random starts, in units of the prior's: solutions far out are found
    target_error: float = 1e-7  # allowed difference from a target
    rounding: float = 1e-13  # allowed difference of a number before its logarithm
    n_probes: int = 256  # number of random samples of the selection
    n_trials: int = 32  # number of samples from which the effective number of points is computed
    max_subsets: int = 500  # maximum number of subsets that are tested, which takes about a minute
    positive_at: tuple[float, ...] = (1.0, 3.0, 10.0)  # standard deviations at which targets with a logarithm are >= 0
    rank_error: float = 1e-9  # singular values of the Jacobian below this, relative to the largest, count as zero
    min_same_rank: float = 0.98  # minimum fraction of samples with the most frequent rank
    min_found: float = 0.98  # minimum fraction of samples whose true variables are found
    enough: float = 0.2  # effective fraction of points above which a subset of noise is used alone


@dataclass(frozen=True, eq=False)
class TeacherChannel(LabelChannel):
    """Observation model of `SequenceLabels`, for teachers that can be traced."""

    used: tuple[int, ...]  # indices of the random numbers on which targets depend
    program: Program = field(repr=False)  # the targets as functions of the variables, with their Jacobian
    fiber: Fiber = field(repr=False)  # the program, compiled
    logarithm: np.ndarray  # (P,) whether a target is replaced by its logarithm
    scale: np.ndarray  # (P,) number by which a target is then divided
    subsets: Subsets  # subsets of variables that are solved for
    flips: np.ndarray  # (F, D) changes of sign of the variables that leave targets unchanged, with the identity
    spread: np.ndarray  # (D,) standard deviations of the variables
    n_nodes: int = 256  # number of points for each subset, before they are multiplied by signs
    seed: int = 0  # seed of the shifts of the points
    settings: TeacherSettings = TeacherSettings()

    is_function = True

    @property
    def even(self) -> bool:
        """True if the sign of each column can be changed without a change of targets, so that E[u | y] = 0."""
        return bool(self.signless_columns.all())

    @property
    def signless_columns(self) -> np.ndarray:
        """Columns (t,) whose sign can be changed, with other columns or the noise, without a change of targets."""
        return np.asarray((self.flips[:, : self.shape[1]] < 0).any(axis=0))

    @property
    def has_mirror_images(self) -> bool:
        """True if targets do not change if all fields and the noise change sign."""
        return bool((self.flips < 0).all(axis=1).any())

    def convert_targets(self, observed: np.ndarray) -> np.ndarray:
        """Return the targets (N, P)."""
        return observed.reshape(len(observed), -1)

    def with_other_points(self, rng: np.random.Generator) -> PosteriorChannel:
        """Return the channel with another seed of the points."""
        return replace(self, seed=int(rng.integers(1 << 62)))

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the posterior of the fields, with the moments of two independent halves of the points."""
        return self.draw(y, omega, V).weigh(omega, V)[0]

    def reuse(self, y: np.ndarray, rho: np.ndarray) -> Callable[[np.ndarray, np.ndarray], Posterior]:
        """Return the posterior of samples y as a function of ω and V, with points that are drawn only if necessary."""
        return ReusedPoints(partial(self.draw, y), rho).posterior

    def draw(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> FiberPoints:
        """Return points on the fibers of n samples, drawn for prior means (n, L, t) and covariances (L, t, t)."""
        n, k, D = len(y), self.shape[0] * self.shape[1], self.fiber.n_variables
        center, cov = np.zeros((n, D)), np.eye(D)
        center[:, :k] = omega.reshape(n, -1)
        cov[:k, :k] = block_diag(*V)
        field_flips, nodes = np.unique(self.flips[:, :k], axis=0), self._nodes(n)
        factors = nodes.shape[1] / self.subsets.kept.sum(axis=1) * len(field_flips) / len(self.flips)
        prior = _free_prior(center, cov, self.subsets.chosen, factors, self.settings.wider)
        points, ends = self._fill(y, prior, nodes, k)
        shift = np.zeros(n)
        if self.subsets.chosen.shape[1] == len(self.scale):  # log Z is the logarithm of the density of y itself
            shift = -np.log(self.scale).sum() - np.log(y[:, self.logarithm]).sum(axis=1)
        return FiberPoints(points, ends, field_flips, shift)

    def solve(self, y: np.ndarray, variables: np.ndarray) -> np.ndarray:
        """Return whether the given `variables` (n, D) of targets y are found from random starts (n,), for one subset.

        The free variables are given. Variables are found up to changes of sign that keep these.
        """
        (n, D), center = variables.shape, variables.copy()
        center[:, self.subsets.chosen[0]] = 0.0
        zeros = np.zeros((1, D, D))
        prior = FreePrior(center, zeros, zeros, np.zeros(1))
        points, ends = self._fill(y, prior, np.zeros((n, 1, D)), D)
        sizes = np.diff(ends, prepend=0)
        truth = np.repeat(variables[:, None] * self.flips[self.subsets.kept[0]], sizes, axis=0)
        near = np.abs(points.fields[:, None] - truth) <= self.search.same * (1 + np.abs(truth))
        is_found = np.bincount(np.repeat(np.arange(n), sizes), near.all(axis=2).any(axis=1), minlength=n)
        return np.asarray(is_found > 0)

    def _fill(self, y: np.ndarray, prior: FreePrior, nodes: np.ndarray, k: int) -> tuple[Points, np.ndarray]:
        """Return points on the fibers of n targets, with their first k variables, and the end of each sample (n,)."""
        n, subsets, search, (transformed, error) = len(y), self.subsets, self.search, self._transform(y)
        ends, first = np.empty(n, dtype=np.int64), 0
        size = 2 * n * nodes.shape[1] * len(subsets.chosen) + search.max_branches
        points = Points(np.empty((size, k)), np.empty(size), np.empty(size, dtype=np.int64))
        while first < n:  # in parts, because Python cannot handle Ctrl-C while a kernel runs
            last = min(first + self.settings.n_interruptible, n)
            fibers = Fibers(self.fiber, transformed[:last], error, self.flips)
            first = fill_points(fibers, prior, nodes, subsets, search, first, points, ends)
            if first < last:
                points = Points(*(np.concatenate([array, np.empty_like(array)]) for array in points))
        return Points(*(array[: ends[-1]].copy() for array in points)), ends

    @property
    def search(self) -> FiberSearch:
        """Starts and settings of the search for solutions."""
        white = np.random.default_rng(1).standard_normal((self.settings.n_first_starts, len(self.spread)))
        return FiberSearch(self.settings.spread * self.spread * white)

    def _transform(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the targets (n, P) as the compiled function returns them, and the allowed differences."""
        out = np.array(y, dtype=float)
        error = np.full(out.shape, self.settings.target_error)
        positive = np.maximum(out[:, self.logarithm], np.finfo(float).tiny)
        error[:, self.logarithm] += self.settings.rounding / positive
        out[:, self.logarithm] = np.log(positive)
        return out / self.scale, error

    def _nodes(self, n: int) -> np.ndarray:
        """Return standard normal points (n, K, D); points with different indices modulo 4 are independent."""
        D = self.fiber.n_variables
        if self.subsets.chosen.shape[1] == D:
            return np.zeros((n, N_GROUPS, D))
        size = max(self.n_nodes // (N_GROUPS * len(self.flips)), 1)
        shifts = np.random.default_rng(self.seed).random((n, 1, N_GROUPS, D))
        cube = (sobol_points(size, D)[None, :, None, :] + shifts) % 1.0
        return np.asarray(ndtri(inside_cube(cube)).reshape(n, N_GROUPS * size, D))


def _free_prior(
    center: np.ndarray, cov: np.ndarray, subsets: np.ndarray, factors: np.ndarray, wider: float
) -> FreePrior:
    """Return the prior of the free variables for prior means (n, D) and a covariance (D, D) of all variables.

    `factors` (s,) multiply the density of the free variables. If targets are steps, no variable is solved for, and
    points of a target that is unlikely for this prior need a density that is `wider`.
    """
    D = len(cov)
    (roots, precisions), constants = np.zeros((2, len(subsets), D, D)), []
    for s, chosen in enumerate(subsets):
        free = np.setdiff1d(np.arange(D), chosen)
        part, entries = cov[np.ix_(free, free)] * wider ** (2 * s * (not len(chosen))), np.ix_(free, free)
        roots[s][entries] = psd_root(part) if len(free) else part
        precisions[s][entries] = np.linalg.inv(part)
        constants.append(np.log(factors[s]) - 0.5 * np.linalg.slogdet(2 * np.pi * part)[1])
    return FreePrior(center, roots, precisions, np.array(constants))


def teacher_channel(labels: SequenceLabels, rho: np.ndarray) -> TeacherChannel:
    """Return the channel of a function of the fields, with subsets of variables selected on random samples.

    Parameters
    ----------
    labels : the label model.
    rho : (L, t, t) prior covariances of the fields.

    Raises
    ------
    ValueError : if the teacher cannot be traced; it has too many fields or random numbers; the number of fields that
        its targets determine is not the same everywhere; or its equations cannot be solved reliably.
    """
    if labels.program is None:
        raise check.fail_words("model.teacher", "a function that cannot be traced", "arithmetic and functions of numpy")
    return _cached_channel(labels.program, labels.count, labels.target_shape, rho.tobytes(), rho.shape)


@lru_cache(maxsize=64)
def _cached_channel(
    program: Program, count: int, target_shape: tuple[int, ...], content: bytes, shape: tuple[int, ...]
) -> TeacherChannel:
    rho = np.frombuffer(content).reshape(shape)
    (L, t), rng, settings = rho.shape[:2], np.random.default_rng(2), TeacherSettings()
    labels = SequenceLabels(None, target_shape, count, False, program)
    if L * t > settings.max_fields:
        raise check.fail_words("model", f"L t = {L * t} fields of the teacher", f"at most {settings.max_fields}")
    read = {arguments[0] for name, *arguments in program.drop_unused().code if name == "input"}
    used = tuple(sorted(i - L * t for i in read if i >= L * t))
    D = L * t + len(used)
    if settings.max_variables < D:
        got = f"{D} fields and random numbers of a sample"
        raise check.fail_words("model", got, f"at most {settings.max_variables}")
    spread = np.concatenate([np.sqrt(np.diagonal(rho, axis1=1, axis2=2)).ravel(), np.ones(len(used))])
    u = np.einsum("lab,nlb->nla", psd_root(rho), rng.standard_normal((settings.n_probes, L, t)))
    probes = np.concatenate([u.reshape(len(u), -1), rng.standard_normal((len(u), len(used)))], axis=1)
    targets, logarithm, scale = _transform_targets(program, used, probes, settings.positive_at)
    P = len(scale)
    jacobians = evaluate_rows(targets, probes)[:, P:].reshape(-1, P, D)
    rank = _common_rank(jacobians * spread, settings)
    bare = TeacherChannel(
        labels=labels, shape=(L, t), used=used, program=targets, fiber=compile_fiber(targets, P, D),
        logarithm=logarithm, scale=scale, subsets=Subsets(*np.zeros((3, 0))),
        flips=_find_flips(targets, P, (L, t), spread), spread=spread,
    )  # fmt: skip
    return _select_subsets(bare, rank, rho, probes)


def _transform_targets(
    program: Program, used: tuple[int, ...], probes: np.ndarray, sizes: tuple[float, ...]
) -> tuple[Program, np.ndarray, np.ndarray]:
    """Return targets h (P,) in the form of `TeacherChannel`, their logarithms and their units.

    The targets are a program of the variables, whose further results are their Jacobian (P, D), row by row. Targets
    with a logarithm are not negative at `sizes` times the random variables.
    """
    D = probes.shape[1]
    n_fields = D - len(used)
    graph = Graph(D)
    inputs = [*graph.inputs[:n_fields], *[graph.constant(0.0)] * (program.n_inputs - n_fields)]
    for index, number in enumerate(used):
        inputs[n_fields + number] = graph.inputs[n_fields + index]
    results = graph.include(program, inputs)
    raw = graph.program(results)
    values = [evaluate_rows(raw, size * probes) for size in sizes]
    # an exponential that overflows far away gives NaN, which says nothing about the sign
    logarithm = (values[0] > 0).all(axis=0) & ~np.any([(v < 0).any(axis=0) for v in values], axis=0)
    results = [graph.apply("log", k) if log else k for k, log in zip(results, logarithm, strict=True)]
    scale = evaluate_rows(graph.program(results), probes).std(axis=0)
    scale[scale == 0] = 1.0
    scaled = [graph.apply("mul", k, graph.constant(1 / size)) for k, size in zip(results, scale, strict=True)]
    return graph.program(scaled + [graph.derivative(k, i) for k in scaled for i in range(D)]), logarithm, scale


def _common_rank(jacobians: np.ndarray, settings: TeacherSettings) -> int:
    """Return the rank of Jacobians (N, P, D); ValueError if it differs between samples."""
    values = np.linalg.svd(jacobians, compute_uv=False)
    ranks = np.sum(values > settings.rank_error * np.maximum(values[:, :1], np.finfo(float).tiny), axis=1)
    rank = int(np.bincount(ranks).argmax())
    same = float(np.mean(ranks == rank))
    if same < settings.min_same_rank:
        got = f"a rank of the Jacobian that is {rank} for {same:.0%} of random samples only"
        needs = "targets that determine the same number of fields for all samples, for example by noise on each target"
        raise check.fail_words("model.teacher", got, needs)
    return rank


def _find_flips(targets: Program, P: int, shape: tuple[int, int], spread: np.ndarray) -> np.ndarray:
    """Return the changes of sign (F, D) of columns and of all noise under which the P targets do not change."""
    (L, t), D = shape, len(spread)
    v = spread * np.random.default_rng(4).standard_normal((16, D))
    values, flips = evaluate_rows(targets, v)[:, :P], []
    for signs in product((1.0, -1.0), repeat=t):
        for of_noise in (1.0, -1.0) if L * t < D else (1.0,):
            flip = np.concatenate([np.tile(signs, L), np.full(D - L * t, of_noise)])
            if are_equal(values, evaluate_rows(targets, flip * v)[:, :P]):
                flips.append(flip)
    return np.array(flips)


def _select_subsets(channel: TeacherChannel, p: int, rho: np.ndarray, probes: np.ndarray) -> TeacherChannel:
    """Return the channel with the subsets of p variables that are solved for; see the description of the module."""
    D, n_fields, settings = probes.shape[1], rho[:, :, 0].size, channel.settings
    if p == 0:
        return _with_subsets(channel, [_Test((), True)] * 2)

    def test_subsets(subsets: Iterable[tuple[int, ...]]) -> list[_Test]:
        return [_test(channel, chosen, rho, probes) for chosen in subsets]

    noise_only = test_subsets(islice(combinations(range(n_fields, D), p), settings.max_subsets))
    usable = [test for test in noise_only if test.affine and test.found == 1]
    noise = max(usable, key=lambda test: test.effective, default=None)
    if noise is not None and noise.effective > settings.enough:
        return _with_subsets(channel, [noise])
    every: Iterable[tuple[int, ...]] = combinations(range(D), p)
    if comb(D, p) > settings.max_subsets:
        rng = np.random.default_rng(6)
        draws = np.sort([rng.choice(D, p, replace=False) for _ in range(settings.max_subsets)], axis=1)
        every = dict.fromkeys(map(tuple, draws.tolist()))
    others = test_subsets(every)
    valid = sorted((test for test in others if test.found >= settings.min_found), key=lambda test: -test.effective)
    if not valid:
        best = max((test.found for test in others), default=0.0)
        got = f"a teacher for which the fields of at most {best:.0%} of random samples were found from their targets"
        raise check.fail_words("model.teacher", got, f"at least {settings.min_found:.0%}, or noise on each target")
    selected = [valid[0] if noise is None else noise]
    for test in valid:
        if not set(test.chosen) <= {i for other in selected for i in other.chosen}:
            selected.append(test)
    return _with_subsets(channel, selected)


class _Test(NamedTuple):
    """Outcome of `_test`."""

    chosen: tuple[int, ...]
    affine: bool
    found: float = 0.0  # fraction of samples whose true variables are found
    effective: float = 0.0  # median effective number of points, as a fraction of the number of points


def _test(channel: TeacherChannel, chosen: tuple[int, ...], rho: np.ndarray, probes: np.ndarray) -> _Test:
    """Return how well a subset of variables can be solved for."""
    D, P, (L, t) = probes.shape[1], len(channel.scale), channel.shape
    inputs = [frozenset({i}) for i in range(D)]  # the variables on which each slope depends
    union = lambda name, *read: frozenset().union(*read)  # noqa: E731
    slopes = channel.program.interpret(inputs, lambda value: frozenset(), union)[P:]
    test = _Test(chosen, not any(slopes[k * D + i] & set(chosen) for k in range(P) for i in chosen))
    out = evaluate_rows(channel.program, probes)[:, P:].reshape(-1, P, D)[:, :, list(chosen)]
    values = np.linalg.svd(out * channel.spread[list(chosen)], compute_uv=False)
    if np.median(values[:, -1] / np.maximum(values[:, 0], 1e-300)) < channel.settings.rank_error:
        return test
    one = _with_subsets(channel, [test])
    white = np.zeros((len(probes), channel.n_noise))
    white[:, list(channel.used)] = probes[:, L * t :]
    y = channel.observe(probes[:, : L * t].reshape(-1, L, t), white)
    test = test._replace(found=float(one.solve(y, probes).mean()))
    if test.found < channel.settings.min_found:
        return test
    y = y[: channel.settings.n_trials]
    omega = np.zeros((len(y), L, t))
    points = one.draw(y, omega, rho)
    effective, count = points.weigh(omega, rho)[1], one._nodes(1).shape[1] * len(points.flips)
    return test._replace(effective=float(np.median(effective)) / count)


def _with_subsets(channel: TeacherChannel, tests: list[_Test]) -> TeacherChannel:
    chosen = np.array([test.chosen for test in tests], dtype=np.int64).reshape(len(tests), -1)
    free = np.ones((len(tests), 1, channel.fiber.n_variables), dtype=bool)
    np.put_along_axis(free[:, 0], chosen, False, axis=1)
    kept = np.logical_not((free & (channel.flips < 0)).any(axis=2))
    return replace(channel, subsets=Subsets(chosen, np.array([test.affine for test in tests]), kept))
