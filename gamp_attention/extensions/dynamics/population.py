"""Population loss: the mean loss of a new sample as a function of the overlaps of the weights.

`population_loss` evaluates it at given overlaps. `population_map` evaluates it for weights with one column on the
sphere ‖Q‖² = d, as a function of the cosines e with the direction of the positions and c with the teacher, and finds
its minima. Gradient descent with small steps on new samples, with the norm of Q kept, goes downhill on this map.

Every replica is a fixed set of points, for which the loss is a smooth function of the overlaps, so that minima are
found by a local search, and the spread of the replicas gives the errors.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import Rows, format_with_error
from gamp_attention._tools.numerics import generator, guard_call
from gamp_attention.extensions.dynamics.field_paths import min_paths
from gamp_attention.extensions.dynamics.online_paths import OnlineFields
from gamp_attention.results import Overlaps, Result, add_display
from gamp_attention.theory.models.model import Model, require_model

Replica = list[OnlineFields]  # points of the fields of every component


@add_display
class PopulationLoss(NamedTuple):
    """Population loss at given overlaps.

    Attributes
    ----------
    value, error : E[ℓ] at each time of the overlaps, and its standard error; numbers if the overlaps have no times.
    """

    value: np.ndarray
    error: np.ndarray


@add_display
class PopulationMinimum(NamedTuple):
    """A minimum of the population loss on the sphere.

    Attributes
    ----------
    positional, semantic : cosines of the weights with the direction of the positions and with the teacher.
    loss, error : population loss and its standard error.
    """

    positional: float
    semantic: float
    loss: float
    error: float


@dataclass(frozen=True, eq=False)
class PopulationMap(Result):
    """Population loss of weights with one column on the sphere ‖Q‖² = d.

    Attributes
    ----------
    cosines : (n,) grid of both cosines.
    loss, error : (n, n) population loss and its standard error; the first axis is the positional cosine. NaN outside of
        the unit disc.
    minima : the minima, lowest first. If the loss is even in the weights, only one of each pair Q, −Q.
    curvature, curvature_error : (2, 2) second derivatives of the loss at zero cosines, in the order positional,
        semantic, and their standard errors. Descent from random weights leaves along the lowest eigenvector.
    """

    cosines: np.ndarray
    loss: np.ndarray
    error: np.ndarray
    minima: tuple[PopulationMinimum, ...]
    curvature: np.ndarray
    curvature_error: np.ndarray

    def _rows(self) -> Rows:
        """Return a table of the minima."""
        rows: Rows = [["PopulationMap: minimum", "positional", "semantic", "loss"]]
        for number, at in enumerate(self.minima):
            rows.append(
                [str(number), f"{at.positional:.4f}", f"{at.semantic:.4f}", format_with_error(at.loss, at.error, 5)]
            )
        return rows


@guard_call
def population_loss(
    model: Model, overlaps: Overlaps, *, n_points: int = 4096, n_replicas: int = 8,
    seed: int | np.random.Generator = 0,
) -> PopulationLoss:  # fmt: skip
    """Compute the mean loss of a new sample for weights with given overlaps, in the limit d → ∞.

    Eq. :eq:`population`. For an attention layer it is E‖y − f_Q(x)‖²/(2d), without a penalty.

    Parameters
    ----------
    model : the problem.
    overlaps : overlaps of the weights, V is not used; also a Trajectory or History, with times in front.
    n_points : number of points of the fields in each replica, even; best a power of two.
    n_replicas : number of independent replicas, at least 2; their spread gives the error.
    seed : an integer or a numpy Generator.

    Returns
    -------
    PopulationLoss

    Raises
    ------
    TypeError : if an argument has a wrong type.
    ValueError : if arrays of the overlaps have other shapes than the model requires, or a number is out of range.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> path = ga.trajectory(ga.paper_model(), 1.5, method=ga.SinglePass(lr=1.0), n_iter=3, n_paths=512)
    >>> loss = ga.population_loss(ga.paper_model(), path)
    >>> bool((loss.value[1:] < loss.value[:-1]).all())
    True
    """
    model = require_model(model)
    if not all(hasattr(overlaps, name) for name in ("q", "m", "theta")):
        raise check.fail("overlaps", overlaps, "Overlaps", TypeError)
    S, r, t = model.n_sources, model.rank, model.teacher_rank
    times = ("T",) if check.ndim("overlaps.m", overlaps.m) == 3 else ()
    shapes = {"q": (S, r, r), "m": (S, r), "theta": (S, r, t)}
    given = {name: check.array(f"overlaps.{name}", getattr(overlaps, name), (*times, *shapes[name])) for name in shapes}
    replicas = _draw_replicas(model, n_points, n_replicas, seed)
    rows = [given] if not times else [{name: v[k] for name, v in given.items()} for k in range(len(given["m"]))]
    at = [Overlaps(**row, V=np.full((S, r, r), np.nan)) for row in rows]
    values = np.array([[_mean_loss(fields, point) for point in at] for fields in replicas])
    mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return PopulationLoss(mean, error) if times else PopulationLoss(mean[0], error[0])


@guard_call
def population_map(
    model: Model, *, n_grid: int = 21, n_points: int = 4096, n_replicas: int = 4, seed: int | np.random.Generator = 0,
) -> PopulationMap:  # fmt: skip
    """Compute the population loss on the sphere ‖Q‖² = d as a function of two cosines, and find its minima.

    Eq. :eq:`population`.

    Parameters
    ----------
    model : a problem with one column of weights (r = 1) and of the teacher (t = 1), one class of coordinates, no
        mixture, and positions that span at most one direction.
    n_grid : number of values of each cosine between −1 and 1, from 5 to 1001.
    n_points, n_replicas, seed : as for `population_loss`.

    Returns
    -------
    PopulationMap

    Raises
    ------
    TypeError : if an argument has a wrong type.
    ValueError : if the model is not of this kind, or a number is out of range.

    Examples
    --------
    A teacher that attends by position only:

    >>> import gamp_attention as ga
    >>> model = ga.paper_model(omega=1.0, sigma=1.0, A=[[0.9, 0.1], [0.1, 0.9]])
    >>> landscape = ga.population_map(model, n_grid=9, n_points=1024)
    >>> landscape.minima[0].positional > 0.99
    True
    """
    model, n_grid = require_model(model), check.integer("n_grid", n_grid, low=5, high=1001)
    law = model.coordinates
    if model.rank != 1 or model.teacher_rank != 1 or len(law.weight) != 1 or model.is_mixture or law.teacher_mean.any():
        needs = "one column of weights and teacher, one class of coordinates, no mixture and a teacher of mean zero"
        raise check.fail("model", model, needs)
    replicas = _draw_replicas(model, n_points, n_replicas, seed)
    cosines = np.linspace(-1, 1, n_grid)
    e, c = np.meshgrid(cosines, cosines, indexing="ij")
    inside = e**2 + c**2 <= 1 + 1e-12
    values = np.full((n_replicas, n_grid, n_grid), np.nan)
    for number, fields in enumerate(replicas):
        values[number, inside] = [
            _mean_loss(fields, overlaps_of_cosines(model, *at)) for at in zip(e[inside], c[inside], strict=True)
        ]
    loss, scale = values.mean(axis=0), 1 / np.sqrt(n_replicas)
    curvatures = np.array([_curvature(model, fields) for fields in replicas])
    minima, error = _find_minima(model, replicas, cosines, loss), values.std(axis=0, ddof=1) * scale
    curvature_error = curvatures.std(axis=0, ddof=1) * scale
    return PopulationMap(cosines, loss, error, minima, curvatures.mean(axis=0), curvature_error)


def _find_minima(
    model: Model, replicas: list[Replica], cosines: np.ndarray, loss: np.ndarray, same: float = 0.1, gtol: float = 1e-6
) -> tuple[PopulationMinimum, ...]:
    """Return the minima by local searches from the minima of the grid, lowest first.

    Parameters
    ----------
    model, replicas : the model, and points of its fields.
    cosines, loss : the grid, and the loss on it.
    same : distance of cosines below which two minima are the same; errors of the points can split a minimum.
    gtol : norm of the gradient at which a local search ends.
    """
    from scipy.optimize import minimize  # imported here because it takes long to load

    def on_sphere(point: np.ndarray) -> float:
        """Return the loss at a point of the ball, moved to the upper half of the sphere in three dimensions."""
        e, c, _ = point / np.linalg.norm(point)
        return float(np.mean([_mean_loss(fields, overlaps_of_cosines(model, e, c)) for fields in replicas]))

    minima = list[PopulationMinimum]()
    for i, k in _grid_minima(loss):
        start = np.array([cosines[i], cosines[k], np.sqrt(max(1 - cosines[i] ** 2 - cosines[k] ** 2, 0))])
        end = minimize(on_sphere, start, method="BFGS", options={"gtol": gtol}).x
        at = (end / np.linalg.norm(end))[:2]
        if model.even and (at[np.argmax(np.abs(at))] < 0):
            at = -at
        signs = (1, -1) if model.even else (1,)
        known = [sign * np.array([old.positional, old.semantic]) for old in minima for sign in signs]
        if all(np.linalg.norm(at - other) > same for other in known):
            losses = [_mean_loss(fields, overlaps_of_cosines(model, *at)) for fields in replicas]
            error = float(np.std(losses, ddof=1) * (1 / np.sqrt(len(losses))))
            minima.append(PopulationMinimum(float(at[0]), float(at[1]), float(np.mean(losses)), error))
    return tuple(sorted(minima, key=lambda at: at.loss))


def overlaps_of_cosines(model: Model, positional: float, semantic: float) -> Overlaps:
    """Return the overlaps of weights with ‖Q‖² = d and given cosines with positions and teacher; V is NaN."""
    law = model.coordinates
    q = law.gamma[0, :, None, None]
    theta = semantic * np.sqrt(law.teacher_cov[0]) * q
    return Overlaps(q.copy(), positional * law.tau[0, :, None], theta, np.full(q.shape, np.nan))


def _draw_replicas(model: Model, n_points: int, n_replicas: int, seed: int | np.random.Generator) -> list[Replica]:
    """Return independent sets of points of the fields, each for all components."""
    n_points, enough = check.integer("n_points", n_points, low=64), min_paths(model, 0)
    if n_points % 2 or n_points < enough:
        raise check.fail("n_points", n_points, f"an even number of at least {enough}")
    rng, n_replicas = generator(seed), check.integer("n_replicas", n_replicas, low=2)
    check.require_memory("n_points, n_replicas", n_points, n_replicas, 8 * model.n_tokens * model.rank)
    return [[OnlineFields(component, n_points, rng) for component in model.components] for _ in range(n_replicas)]


def _mean_loss(fields: Replica, overlaps: Overlaps) -> float:
    """Return the mean loss of a new sample, averaged over the components."""
    return float(sum(part.probability * part.losses(overlaps).mean() for part in fields))


def _grid_minima(loss: np.ndarray) -> list[tuple[int, int]]:
    """Return the indices of grid points that are not above any of their neighbors inside the disc."""
    padded = np.pad(np.where(np.isfinite(loss), loss, np.inf), 1, constant_values=np.inf)
    n = len(loss)
    shifts = [(a, b) for a in range(3) for b in range(3) if (a, b) != (1, 1)]
    lowest = np.isfinite(loss) & np.all([padded[1:-1, 1:-1] <= padded[a : a + n, b : b + n] for a, b in shifts], axis=0)
    return [(int(i), int(k)) for i, k in np.argwhere(lowest)]


def _curvature(model: Model, fields: Replica, spacing: float = 2e-2) -> np.ndarray:
    """Return the second derivatives (2, 2) of the loss in the cosines at zero, by central differences."""

    def at(e: float, c: float) -> float:
        return _mean_loss(fields, overlaps_of_cosines(model, e * spacing, c * spacing))

    here, across = at(0, 0), (at(1, 1) + at(-1, -1) - at(1, -1) - at(-1, 1)) / 4
    along = at(1, 0) + at(-1, 0) - 2 * here, at(0, 1) + at(0, -1) - 2 * here
    return np.array([[along[0], across], [across, along[1]]]) / spacing**2
