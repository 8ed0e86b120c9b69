"""Labels with few outcomes: their probabilities given the student's fields, averaged over the teacher's fields.

The output function g depends on the student's fields ω and the label only. With the probabilities P(label | ω), an
average of g needs points of ω, and a proximal problem for each label (Rao and Blackwell: a conditional expectation has
less variance). Given ω, the teacher's fields are Gaussian, and the probabilities are averages over them with no
proximal problem:

- for smooth probabilities, over equally spaced nodes in the directions of the teacher's fields on which they depend
  (Trefethen and Weideman, 2014);
- otherwise over uniform points, randomly shifted at each point of ω (Cranley and Patterson, 1976);
- if labels change on planes (`Planes`), such as the sign of a sum or the class of the largest field, exactly along one
  direction, and over such points in the others.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag
from scipy.special import ndtr, ndtri

from gamp_attention._tools import check
from gamp_attention._tools.numerics import psd_root
from gamp_attention._tools.quadrature import gaussian_weights, inside_cube, spaced_grid
from gamp_attention._tools.sobol import sobol_points
from gamp_attention._tools.threads import over_blocks
from gamp_attention.theory.equations.directions import DIRECTIONS, changes_of, span_of
from gamp_attention.theory.models.model import Model


@dataclass(frozen=True)
class OutcomeSettings:
    """Settings of averages over labels."""

    n_shifts: int = 64  # number of points of the teacher's fields for each point of the student's
    n_lines: int = 16  # the same if probabilities are exact along a direction, and shifts have one coordinate
    block: int = 8192  # number of points that a thread takes at a time, whose arrays fit in a processor's cache
    spacings: tuple[float, ...] = (0.9, 0.72, 0.58, 0.46, 0.37, 0.3, 0.24, 0.19, 0.1, 0.05)  # distances of spaced nodes
    reach: float = 6.0  # largest distance of a node from zero: farther points have a probability of 1e-8
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
    points = np.einsum("lst,nlt->nls", psd_root(model.coordinates.rho), points)

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
        return planes.axes.shape[1] - 1
    return 0 if _spaced_nodes(model) is not None else model.n_tokens * model.teacher_rank


def node_error(model: Model) -> float:
    """Return the error of averages with the probabilities of labels that the spread of random points does not show."""
    if outcomes_of(model) is None:
        return 0.0
    nodes = None if _planes(model) is not None else _spaced_nodes(model)
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
    across: np.ndarray  # (L t,) direction that crosses all planes, at angles as large as possible


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
    _, first, number = np.unique(points @ normals.T > offsets, axis=0, return_index=True, return_inverse=True)
    here = probabilities(points)
    if (here != here[first][number.ravel()]).any():
        return None
    axes = span_of(normals.T)
    ways = np.random.default_rng(0).standard_normal((DIRECTIONS.n_points, axes.shape[1])) @ axes.T
    ways /= np.linalg.norm(ways, axis=1, keepdims=True)
    return Planes(normals, offsets, axes, ways[np.abs(ways @ normals.T).min(axis=1).argmax()])


@lru_cache(maxsize=32)
def _spaced_nodes(model: Model) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return directions (L t, K) of the teacher's fields y on which the labels depend, nodes (M, K) and weights (M,).

    None if the probabilities are not smooth functions of few directions, or their averages are inaccurate.
    """
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
        nodes = spaced_grid(h, K, OUTCOMES.reach, False)
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
    if len(mean) > OUTCOMES.block:
        parts: dict[int, Any] = {}

        def work(first: int, last: int) -> None:
            rows = slice(first, last)
            parts[first] = labels_given_fields(model, mean[rows], root, eta[rows], with_covariance)

        over_blocks(work, len(mean), OUTCOMES.block)
        known, *others = zip(*(parts[first] for first in sorted(parts)), strict=True)
        joined: Any = (None if part[0] is None else np.concatenate(part) for part in others)
        return LabelsGivenFields(known[0], *joined)
    (_, L, t), find = mean.shape, outcomes_of(model)
    assert find is not None
    planes = _planes(model)
    nodes = _spaced_nodes(model) if planes is None else None
    points: Iterable[tuple[np.ndarray, float]] = _shifted(eta, OUTCOMES.n_shifts)
    to_y, along, rest = root, np.zeros((L, t)), np.zeros_like(root)
    axes = nodes[0] if nodes is not None else None if planes is None else planes.axes
    if axes is not None:
        left, _, right = np.linalg.svd(axes.T @ root, full_matrices=False)
        to_y = root @ (left @ right).T  # (L t, K): on other directions of η, labels do not depend
        rest = root @ root.T - to_y @ to_y.T
    if planes is not None:
        turn = np.linalg.qr((to_y.T @ planes.across)[:, None], mode="complete")[0]
        along, to_y = (to_y @ turn[:, 0]).reshape(L, t), to_y @ turn[:, 1:]
        points = _shifted(eta, OUTCOMES.n_lines if eta.shape[1] == 1 else OUTCOMES.n_shifts)
    elif nodes is not None:
        points = zip(nodes[1][:, None], nodes[2], strict=True)
    probabilities: Any = 0.0
    sums: Any = 0.0
    pairs: Any = 0.0
    for noise, part in points:
        y = mean + (noise @ to_y.T).reshape(-1, L, t)
        labels, weight, *more = find(y) if planes is None else _on_lines(planes, find, y, along)
        probabilities = probabilities + part * weight
        weighted = np.einsum("nc,nls->ncls", part * weight, y)
        if more:
            weighted += part * np.einsum("nc,ls->ncls", more[0], along)
        sums = sums + weighted
        if with_covariance:
            pairs = pairs + np.einsum("ncks,nlu->nckslu", weighted, y)
            if more:
                right = np.einsum("nc,nls->ncls", more[0], y) + np.einsum("nc,ls->ncls", more[1], along)
                pairs += part * np.einsum("ncks,lu->nckslu", right, along)
    sums_of = probabilities.sum(axis=1)
    if not np.allclose(sums_of, 1):
        got = f"{probabilities[np.abs(sums_of - 1).argmax()].tolist()} of {labels.tolist()}"
        raise check.fail_words("outcomes of the labels", got, "probabilities with sum 1")
    scale = np.where(probabilities > OUTCOMES.rare, 1 / np.maximum(probabilities, OUTCOMES.rare), 0.0)
    means = scale[..., None, None] * sums
    if not with_covariance:
        return LabelsGivenFields(labels, probabilities, means, None)
    inside = scale[..., None, None, None, None] * pairs - np.einsum("ncks,nclu->nckslu", means, means)
    return LabelsGivenFields(labels, probabilities, means, inside + rest.reshape(L, t, L, t))


def _on_lines(planes: Planes, find: Outcomes, y: np.ndarray, along: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return labels, and E[p], E[p e] and E[p e²] (N, C) of their probabilities p at y + e·along for e ~ N(0, 1)."""
    (N, L, t), across = y.shape, planes.normals @ along.ravel()
    gaps = planes.offsets - y.reshape(N, -1) @ planes.normals.T
    with np.errstate(all="ignore"):
        cuts = np.sort(np.clip(np.nan_to_num(gaps / across), -OUTCOMES.end, OUTCOMES.end), axis=1)
    ends = np.column_stack([cuts[:, 0] - 1, cuts, cuts[:, -1] + 1])
    middle = 0.5 * (ends[:, 1:] + ends[:, :-1])
    labels, p = find((y[:, None] + middle[..., None, None] * along).reshape(-1, L, t))
    density, zeros = np.exp(-0.5 * cuts**2) / np.sqrt(2 * np.pi), np.zeros((N, 1))
    masses = np.diff(np.column_stack([zeros, ndtr(cuts), zeros + 1]), axis=1)
    slopes, moments = (-np.diff(np.column_stack([zeros, v, zeros]), axis=1) for v in (density, cuts * density))
    parts = (masses, slopes, masses + moments)
    return labels, *(np.einsum("nb,nbc->nc", part, p.reshape(N, len(planes.offsets) + 1, -1)) for part in parts)


def _shifted(eta: np.ndarray, n: int) -> Iterator[tuple[np.ndarray, float]]:
    """Yield n points (N, K) of white noise with their weight, shifted by the noise (N, K) on the unit cube."""
    if eta.shape[1] == 0:
        return iter([(eta, 1.0)])
    uniform = (
        # the tent map makes the shifted integrand continuous at the faces of the cube
        inside_cube(1 - np.abs(2 * ((ndtr(eta) + point) % 1) - 1))
        for point in sobol_points(n, eta.shape[1])
    )
    return ((ndtri(cube), 1 / n) for cube in uniform)
