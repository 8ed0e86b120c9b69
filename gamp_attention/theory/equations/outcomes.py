"""Labels with few outcomes: their probabilities given the student's fields, averaged over the teacher's fields.

The output function g depends on the student's fields ω and the label only. With the probabilities P(label | ω), an
average of g needs points of ω, and a proximal problem for each label (Rao and Blackwell: a conditional expectation has
less variance). Given ω, the teacher's fields are Gaussian, and the probabilities are averages over them with no
proximal problem:

- for smooth probabilities, over equally spaced nodes in the directions of the teacher's fields on which they depend
  (Trefethen and Weideman, 2014);
- otherwise over uniform points, randomly shifted at each point of ω (Cranley and Patterson, 1976);
- if labels change on planes (`Planes`), such as the sign of a sum or the class of the largest field, exactly in two
  directions, and over such points in the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag
from scipy.special import ndtr, ndtri, owens_t

from gamp_attention._tools import check
from gamp_attention._tools.numerics import apply_to_rows, psd_root
from gamp_attention._tools.quadrature import gaussian_weights, inside_cube, spaced_grid
from gamp_attention._tools.sobol import sobol_points
from gamp_attention._tools.threads import over_blocks
from gamp_attention.theory.equations.directions import DIRECTIONS, changes_of, span_of
from gamp_attention.theory.models.model import Model


@dataclass(frozen=True)
class OutcomeSettings:
    """Settings of averages over labels."""

    n_shifts: int = 64  # number of points of the teacher's fields for each point of the student's
    block: int = 32768  # number of points that a thread takes at a time, whose arrays fit in a processor's cache
    spacings: tuple[float, ...] = (0.9, 0.72, 0.58, 0.46, 0.37, 0.3, 0.24, 0.19, 0.1, 0.05)  # distances of spaced nodes
    # largest distance of a node from zero, farther than which points have a probability of 2e-9 and 3e-7
    reach: tuple[float, ...] = (6.0, 5.5)
    max_nodes: int = 640  # largest number of nodes
    # largest error of a probability, without knowledge of ω, up to which nodes are used, by the number of directions
    smooth: tuple[float, ...] = (1e-8, 1e-6)
    n_tests: int = 1 << 18  # number of random points at which rare labels are searched
    max_labels: int = 8  # largest number of values of labels that are found there
    max_planes: int = 8  # largest number of planes on which labels change
    radii: tuple[float, float] = (0.1, 6.0)  # smallest and largest size of fields between which planes are searched
    bracket: float = 0.02  # part of the way between two points that is searched for a plane
    halvings: int = 40  # number of halvings of this part
    same_plane: float = 1e-6  # distance of normals and offsets of planes below which they are equal
    end: float = 40.0  # largest distance of a plane from the fields, in standard deviations
    aside: float = 1e-7  # shift of fields by which they do not lie on a plane, in standard deviations
    rare: float = 1e-12  # probability of a label below which its moments are rounding


OUTCOMES = OutcomeSettings()
Outcomes = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def outcomes_of(model: Model) -> Outcomes | None:
    """Return the function that returns labels and probabilities for fields y; None if unknown, or ℓ is not convex."""
    if model.task.jumps:  # searches at a part of the points need points of equal probability
        return None
    find: Any = getattr(model.teacher, "outcomes", None)
    if find is None:
        return _listed_outcomes(model)
    return None if find(np.zeros((1, model.n_tokens, model.teacher_rank))) is None else find


@lru_cache(maxsize=32)
def _listed_outcomes(model: Model) -> Outcomes | None:
    """Return the function for labels without noise that have few values at random points; None for others.

    It replaces values that none of these points has by the nearest of the others.
    """
    if model.task.n_noise > 0:
        return None
    points = np.random.default_rng(0).standard_normal((OUTCOMES.n_tests, model.n_tokens, model.teacher_rank))
    points = apply_to_rows(psd_root(model.coordinates.rho), points)

    def labels(y: np.ndarray) -> np.ndarray:
        return model.task.terms(y, np.zeros((len(y), 0))).params

    for n in (DIRECTIONS.n_points, len(points)):
        known = np.unique(labels(points[:n]), axis=0)
        if len(known) > OUTCOMES.max_labels:
            return None
    if len(known) == 1:
        return None

    def find(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        distances = np.abs(labels(y)[:, None] - known).sum(axis=2)
        return known, np.eye(len(known))[distances.argmin(axis=1)]

    return find


def known_labels(model: Model) -> tuple[tuple[float, ...], ...]:
    """Return all labels if their probabilities are known, otherwise none."""
    find = outcomes_of(model)
    return () if find is None else tuple(map(tuple, find(np.ones((1, model.n_tokens, model.teacher_rank)))[0].tolist()))


def shift_dimension(model: Model) -> int:
    """Return the number of random coordinates, for each point, of averages over the teacher's fields."""
    if outcomes_of(model) is None:
        return 0
    planes = _planes(model)
    if planes is not None:
        return max(planes.axes.shape[1] - 2, 0)
    return 0 if _spaced_nodes(model) is not None else model.n_tokens * model.teacher_rank


def node_error(model: Model) -> float:
    """Return the error of averages with the probabilities of labels that the spread of random points does not show."""
    if outcomes_of(model) is None:
        return 0.0
    nodes = _spaced_nodes(model)
    unseen = 0.0 if hasattr(model.teacher, "outcomes") else 3 / OUTCOMES.n_tests  # largest probability of other labels
    return unseen if nodes is None else OUTCOMES.smooth[nodes[0].shape[1] - 1]


def _probabilities(model: Model) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Return random fields (n, L t) of the teacher, and the probabilities of labels as a function of such fields."""
    find: Any = outcomes_of(model)
    shape, root = (-1, model.n_tokens, model.teacher_rank), block_diag(*psd_root(model.coordinates.rho))
    points = np.random.default_rng(0).standard_normal((DIRECTIONS.n_points, len(root))) @ root
    return points, lambda y: find(y.reshape(shape))[1]


class Planes(NamedTuple):
    """Planes nᵀy = c of the teacher's fields between which the probabilities of labels are constant."""

    normals: np.ndarray  # (B, L t) unit vectors n
    offsets: np.ndarray  # (B,) c
    axes: np.ndarray  # (L t, K) orthonormal columns that span the normals
    table: np.ndarray  # (2^B, C) probabilities on the sides of the planes, a bit 2^b if nᵀy > c; NaN if not seen


@lru_cache(maxsize=32)
def _planes(model: Model) -> Planes | None:
    """Return the planes on which labels change, found between random points; None if labels change otherwise."""
    points, probabilities = _probabilities(model)
    points *= np.geomspace(*OUTCOMES.radii, len(points))[:, None]
    here, way = probabilities(points), points[::-1] - points

    def is_same(start: np.ndarray, t: np.ndarray) -> np.ndarray:
        return np.asarray((probabilities(start + t[:, None] * way) == here).all(axis=1))

    changed = np.full(len(points), np.nan)  # part of the way on which the probabilities have changed
    for t in np.outer(np.linspace(1, 0, round(1 / OUTCOMES.bracket)), np.ones(len(points))):
        changed = np.where(is_same(points, t), changed, t)

    def crossing(start: np.ndarray) -> np.ndarray:
        """Return the parts of the ways on which probabilities change, close to `changed`; NaN if they do not."""
        low, high = changed - OUTCOMES.bracket, changed + OUTCOMES.bracket
        does_change = is_same(start, low) & ~is_same(start, high)
        for _ in range(OUTCOMES.halvings):
            t = 0.5 * (low + high)
            low, high = np.where(is_same(start, t), [t, high], [low, t])
        return np.where(does_change, low, np.nan)

    first = crossing(points)
    normals = np.array([first - crossing(points + step) for step in DIRECTIONS.step * np.eye(points.shape[1])])
    found = np.isfinite(normals).all(axis=0)
    normals = (normals[:, found] / np.linalg.norm(normals[:, found], axis=0)).T
    offsets = np.einsum("nk,nk->n", normals, (points + first[:, None] * way)[found])
    planes = np.zeros((0, normals.shape[1] + 1))
    for plane in np.column_stack([normals, offsets]):
        distances = [np.abs(planes - sign * plane).max(axis=1) for sign in (1, -1)]
        if not (np.minimum(*distances) < OUTCOMES.same_plane).any():
            planes = np.vstack([planes, plane])
        if len(planes) > OUTCOMES.max_planes:
            return None
    if len(planes) == 0:
        return None
    normals, offsets = planes[:, :-1], planes[:, -1]
    points = np.random.default_rng(1).standard_normal((OUTCOMES.n_tests, points.shape[1]))
    here, number = probabilities(points), _bits(points @ normals.T > offsets)
    table = np.full((1 << len(planes), here.shape[1]), np.nan)
    table[number] = here
    return None if (here != table[number]).any() else Planes(normals, offsets, span_of(normals.T), table)


def _bits(sides: np.ndarray) -> np.ndarray:
    """Return the numbers (...) with given bits (..., B)."""
    return np.asarray(sides @ (1 << np.arange(sides.shape[-1])))


@lru_cache(maxsize=32)
def _spaced_nodes(model: Model) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return directions (L t, K) of the teacher's fields y on which the labels depend, nodes (M, K) and weights (M,).

    None if the probabilities are not smooth functions of few directions, or their averages are inaccurate.
    """
    if _planes(model) is not None:
        return None
    (points, probabilities), root = _probabilities(model), block_diag(*psd_root(model.coordinates.rho))
    axes = span_of(changes_of(probabilities, points))
    K = axes.shape[1]
    if not 1 <= K <= len(OUTCOMES.smooth):
        return None
    smooth = OUTCOMES.smooth[K - 1]
    if np.abs(probabilities(points) - probabilities(points @ axes @ axes.T)).max() > smooth:
        return None
    coarse: Any = None
    for h in OUTCOMES.spacings:
        nodes = spaced_grid(h, K, OUTCOMES.reach[K - 1], False)
        weights = gaussian_weights(nodes)
        here = sum(w * probabilities(points + root @ axes @ x) for x, w in zip(nodes, weights, strict=True))
        if coarse is not None and np.abs(here - coarse[0]).max() <= smooth:
            return axes, *coarse[1:]
        if len(nodes) > OUTCOMES.max_nodes:
            return None
        coarse = here, nodes, weights
    return None


class LabelsGivenFields(NamedTuple):
    """Labels of N samples with given fields ω of the student, and moments of the teacher's fields y given both."""

    labels: np.ndarray  # (C, P)
    probabilities: np.ndarray  # (N, C)
    y: np.ndarray  # (N, C, L, t) means
    covariance: np.ndarray | None  # (N, C, L, t, L, t); None if not requested


def labels_given_fields(
    model: Model, mean: np.ndarray, root: np.ndarray, eta: np.ndarray, with_covariance: bool = False
) -> LabelsGivenFields:
    """Return labels, their probabilities, and moments of y = mean + root·η given the student's fields.

    Parameters
    ----------
    model : model whose labels have known outcomes.
    mean, root : (N, L, t) means of y given ω, and a root (L t, L t) of its covariance.
    eta : (N, shift_dimension) white noise, from which the shifts of uniform points follow.
    with_covariance : whether to compute the covariances of y.
    """
    (N, L, t), find, planes, nodes = mean.shape, outcomes_of(model), _planes(model), _spaced_nodes(model)
    assert find is not None
    to_y, rest = root, np.zeros_like(root)
    axes = nodes[0] if nodes is not None else None if planes is None else planes.axes
    if axes is not None:
        left, _, right = np.linalg.svd(axes.T @ root, full_matrices=False)
        to_y = root @ (left @ right).T  # (L t, K): on other directions of η, labels do not depend
        rest = root @ root.T - to_y @ to_y.T
    if planes is not None:  # averages are exact in the last two directions, which cross all planes
        K = max(to_y.shape[1], 2)
        turn = np.linalg.qr(np.random.default_rng(0).standard_normal((K, K)))[0]
        to_y = np.pad(to_y, ((0, 0), (0, K - to_y.shape[1]))) @ turn
    parts: dict[int, Any] = {}

    def work(first: int, last: int) -> None:
        here = mean[first:last]
        x, weights = _points(nodes, eta[first:last])
        y = here + (x @ to_y[:, : x.shape[2]].T).reshape(*x.shape[:2], L, t)
        points = y.reshape(-1, L, t)
        p = {(): find(points)[1]} if planes is None else _on_sides(planes, find, points, to_y[:, -2:])
        moments = {key: weights[:, :, None] * value.reshape(*y.shape[:2], -1) for key, value in p.items()}
        # coordinates of y: functions of the points, and both directions in which averages are exact
        one = np.ones(x.shape[:2])
        coordinates = [(x[..., k], ()) for k in range(x.shape[2])] + [(one, key) for key in p if len(key) == 1]
        probabilities = _sum_over_points(one, moments[()])
        scale = np.where(probabilities > OUTCOMES.rare, 1 / np.maximum(probabilities, OUTCOMES.rare), 0.0)[..., None]
        means = scale * np.stack([_sum_over_points(f, moments[k]) for f, k in coordinates], axis=-1)
        of_y, covariance = here[:, None] + (means @ to_y.T).reshape(*means.shape[:2], L, t), None
        if with_covariance:
            pairs = [[_sum_over_points(f * g, moments[j + k]) for f, j in coordinates] for g, k in coordinates]
            inside = scale[..., None] * np.moveaxis(np.array(pairs), (0, 1), (2, 3))
            inside -= means[..., None] * means[..., None, :]
            covariance = (to_y @ inside @ to_y.T + rest).reshape(*means.shape[:2], L, t, L, t)
        parts[first] = probabilities, of_y, covariance

    size = len(_points(nodes, eta[:1])[0]) * (1 if planes is None else len(planes.offsets) ** 2)
    over_blocks(work, N, max(OUTCOMES.block // size, 1))
    columns = zip(*(parts[first] for first in sorted(parts)), strict=True)
    joined: Any = (None if column[0] is None else np.concatenate(column) for column in columns)
    given = LabelsGivenFields(find(mean[:1])[0], *joined)
    sums = given.probabilities.sum(axis=1)
    if not np.allclose(sums, 1):
        got = f"{given.probabilities[np.abs(sums - 1).argmax()].tolist()} of {given.labels.tolist()}"
        raise check.fail_words("outcomes of the labels", got, "probabilities with sum 1")
    return given


def _points(nodes: Any, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points (M, N or 1, K) of white noise in the directions without exact averages, and weights (M, 1)."""
    if nodes is not None:
        return nodes[1][:, None], nodes[2][:, None]
    cubes = sobol_points(OUTCOMES.n_shifts, eta.shape[1]) if eta.shape[1] else eta[:1]
    # the tent map makes the shifted integrand continuous at the faces of the cube
    shifted = 1 - np.abs(2 * ((ndtr(eta) + cubes[:, None]) % 1) - 1)
    return ndtri(inside_cube(shifted)), np.full((len(cubes), 1), 1 / len(cubes))


def _sum_over_points(f: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return Σ_m f p (N, C) of a function f (M, N) of the points, or (M, 1) if they are the same for all samples."""
    return np.tensordot(f[:, 0], p, 1) if f.shape[1] == 1 else np.einsum("mn,mnc->nc", f, p)


def _on_sides(planes: Planes, find: Outcomes, y: np.ndarray, plane: np.ndarray) -> dict[tuple[int, ...], np.ndarray]:
    """Return moments (N, C) of the probabilities p of labels at y + plane·v, for two coordinates v ~ N(0, 1).

    The keys are () for E[p], (i,) for E[p v_i] and (i, j) for E[p v_i v_j]. In v, the planes are lines. Integrated by
    parts, averages are sums of the jumps of p over the segments of the lines between their crossings: times differences
    of Owen's function (1956) for E[p], and times probabilities of the segments for E[p v] = E[∇p].
    """
    flat, end = y.reshape(len(y), -1) + OUTCOMES.aside * plane.sum(axis=1), OUTCOMES.end
    normals, lines = planes.normals @ plane, range(len(planes.offsets))
    size = np.linalg.norm(normals, axis=1)
    with np.errstate(all="ignore"):
        unit = np.nan_to_num(normals / size[:, None])
        tangent = np.column_stack([-unit[:, 1], unit[:, 0]])
        gaps = np.nan_to_num((planes.offsets - flat @ planes.normals.T) / size).clip(-end, end)  # (N, B), with a sign
        crossings = (gaps[:, None] - gaps[..., None] * (unit @ unit.T)) / (tangent @ unit.T)  # of each line (N, B, B)
        crossings = np.nan_to_num(crossings).clip(-end, end)
    crossings[:, lines, lines] = end
    s = np.sort(np.concatenate([np.full_like(crossings[..., :1], -end), crossings], axis=2), axis=2)
    middle = gaps[..., None, None] * unit[:, None] + 0.5 * (s[..., 1:] + s[..., :-1])[..., None] * tangent[:, None]
    sides = middle @ unit.T > gaps[:, None, None]  # (N, B, B, B): sides of the planes, for each segment of each line

    def probabilities(is_over: np.ndarray) -> np.ndarray:
        sides[:, lines, :, lines] = is_over.T[..., None]
        p = planes.table[_bits(sides)]
        n, b, k = np.nonzero(np.isnan(p[..., 0]))
        if len(n):  # a combination of sides that random points did not show
            step = np.where(is_over[n, b, None], OUTCOMES.same_plane, -OUTCOMES.same_plane) * unit[b]
            p[n, b, k] = find((flat[n] + (middle[n, b, k] + step) @ plane.T).reshape(-1, *y.shape[1:]))[1]
        return np.asarray(p)

    jumps = probabilities(gaps >= 0) - probabilities(gaps < 0)  # (N, B, B, C) away from y
    distance, sign = np.abs(gaps)[..., None], np.where(gaps < 0, -1.0, 1.0)[..., None]
    density = sign * np.exp(-0.5 * distance**2) / np.sqrt(2 * np.pi)
    mass, slope = density * np.diff(ndtr(s)), -density * np.diff(np.exp(-0.5 * s**2) / np.sqrt(2 * np.pi))
    means = (mass * gaps[..., None])[..., None] * unit[:, None] + slope[..., None] * tangent[:, None]  # of v there
    p = find(flat.reshape(y.shape))[1] + np.einsum("nbk,nbkc->nc", np.diff(owens_t(distance, s / distance)), jumps)
    moments: dict[tuple[int, ...], np.ndarray] = {(): p}
    for i in range(2):
        flow = unit[:, i, None, None] * jumps
        moments[i,] = np.einsum("nbk,nbkc->nc", mass, flow)
        moments |= {(i, j): (i == j) * p + np.einsum("nbk,nbkc->nc", means[..., j], flow) for j in range(2)}
    return moments
