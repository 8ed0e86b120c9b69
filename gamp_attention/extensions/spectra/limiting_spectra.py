"""Spectra for d → ∞: the Hessian of the training risk at its minimum.

At a fixed point of state evolution the Hessian is Λ + Σ_μ X̃^μᵀ D^μ X̃^μ with D = ∇²ℓ(z) at the minimizer z of the
proximal problem. The steps are:

1. Draw fields of the teacher and of the student at the fixed point, and compute D of each sample (`_draw_ensemble`).
   With one step of replica symmetry breaking, the fields of a minimum are drawn with the weights of its cluster.
2. Add the student to the teachers of the ensemble, because D depends on its fields (`_with_student`).
3. Solve for both edges, the eigenvalues outside, and the density (`equations.spectrum`).

At a fixed point whose proximal map jumps, matrices D of some samples come arbitrarily close to −V⁻¹, the curvature at
which a minimum of the proximal problem disappears. The spectrum then begins at the latest where the variance of the
resolvent, which is V̂ in its derivative form at x = 0, has grown to the V of the fixed point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.display import format_with_error
from gamp_attention._tools.numerics import generator, guard_call, symmetrize
from gamp_attention._tools.quadrature import gaussian_points
from gamp_attention._tools.statistics import half_width
from gamp_attention.extensions.spectra.hessian_spectrum import require_smooth_loss
from gamp_attention.extensions.spectra.spectrum import (
    Ensemble,
    densities,
    eigenvalues_below,
    lowest_edge,
    solve_near_axis,
)
from gamp_attention.problem.denoisers.output import Denoised, denoise
from gamp_attention.problem.losses.attention import RiskTerms
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.problem.penalties.standard import refuse_intercept
from gamp_attention.problem.sources import Group
from gamp_attention.results import Columns, Overlaps, Result
from gamp_attention.theory.equations.channel import Channel, Hats, n_white, select_sources
from gamp_attention.theory.equations.weights import drift_and_noise, linear_response, weights_law
from gamp_attention.theory.fixed_points.observables import NEGLIGIBLE_JUMPS
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.fixed_points.refinement import StateEvolutionResult
from gamp_attention.theory.models.coordinates import CoordinateLaw
from gamp_attention.theory.models.model import Model, require_model
from gamp_attention.theory.rules.choice import first_rule

ZERO = 0.02  # eigenvalue along a rotation, in units of the largest outside the bulk; zero up to the error of averages
DEVIATION = 0.1  # relative deviation of V̂ from the fixed point above which α or the model is another
N_INNER = 128  # number of fields of a cluster from which the field of a minimum is drawn
MARGIN = 0.05  # distance of the default grid of the density from both edges, in units of the width of the bulk
GRID = 128  # number of points of this grid
NEAR_AXIS = 1e-5  # distance of x = 0 from the real axis for the variances, in units of the width of the bulk
RESOLUTION = 200.0  # width of the bulk in units of the default resolution of the density


@dataclass(frozen=True, eq=False)
class LimitingSpectrum(Result):
    """Spectrum of the Hessian of the training risk at a minimum, for d → ∞.

    All errors are 95 % half-widths from independent sets of points.

    Attributes
    ----------
    lower_edge, upper_edge : ends of the bulk of the spectrum. At a stable minimum the lower edge is not negative. If
        rare samples have a far lower or higher curvature than the others, an edge depends on `n_points`, as it depends
        on the number of samples at finite d, unless the proximal map jumps and determines the lower edge.
    eigenvalues : (k,) eigenvalues outside the bulk, ascending.
    teacher, weights, positions : (k,) norms, from 0 to 1, of the projections of each normalized eigenvector on the
        columns of Q*, on the columns of Q, and on the positions (in mixtures, on the means of all sources).
    x, density : (G,) points and the density there, which is normalized to one and convolved with the Cauchy
        distribution of scale `width`. It includes neither the eigenvalues outside the bulk, a fraction of order 1/d,
        nor the eigenvalues 0 along rotations of the columns of Q.
    V : (S, r, r) variances γ tr H⁻¹ of the minimum, from the almost-everywhere derivative.
    lower_edge_error, upper_edge_error, density_error, V_error : errors of the bulk.
    eigenvalues_error, teacher_error, weights_error, positions_error : errors of the eigenvalues outside it.
    width : resolution of the density.
    """

    lower_edge: float
    upper_edge: float
    eigenvalues: np.ndarray
    teacher: np.ndarray
    weights: np.ndarray
    positions: np.ndarray
    x: np.ndarray
    density: np.ndarray
    V: np.ndarray
    lower_edge_error: float
    upper_edge_error: float
    eigenvalues_error: np.ndarray
    teacher_error: np.ndarray
    weights_error: np.ndarray
    positions_error: np.ndarray
    density_error: np.ndarray
    V_error: np.ndarray
    width: float

    _columns: ClassVar[Columns] = {
        "lower edge": lambda s: format_with_error(s.lower_edge, s.lower_edge_error, 4),
        "upper edge": lambda s: format_with_error(s.upper_edge, s.upper_edge_error, 4),
        "eigenvalues outside": lambda s: ", ".join(
            format_with_error(float(v), float(e), 4) for v, e in zip(s.eigenvalues, s.eigenvalues_error, strict=True)
        ),
    }


@guard_call
def limiting_spectrum(
    model: Model,
    alpha: float,
    fixed_point: StateEvolutionResult,
    x: ArrayLike | None = None,
    width: float | None = None,
    *,
    n_points: int = 2048,
    n_replicas: int = 4,
    seed: int | np.random.Generator = 0,
) -> LimitingSpectrum:
    """Compute the spectrum of the Hessian of the training risk at its minimum for d → ∞, at n = αd samples.

    Eq. :eq:`hessian-density`, :eq:`hessian-outliers`, :eq:`lower-edge`.

    Parameters
    ----------
    model : a model with a ridge penalty and without an intercept.
    alpha : sample complexity α > 0 of the fixed point.
    fixed_point : result of `solve_state_evolution`, or of `solve_broken` with one step, for this model and α that has
        converged. With one step, eigenvalues outside the bulk are not computed (k = 0).
    x : (G,) increasing points for the density; by default 128 points from below the lower to above the upper edge.
    width : scale of the Cauchy distribution with which the density is convolved; by default 1/200 of the bulk.
    n_points : number of random points of an average over fields, even and at least 64.
    n_replicas : number of independent sets of points, at least 2.
    seed : seed of the points.

    Returns
    -------
    LimitingSpectrum

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if `alpha` or `width` is not positive; `x` is empty or does not increase; `n_points` is odd or too
        small; the penalty is not a ridge; the loss has kinks; the model has an intercept; or `fixed_point`
        belongs to another model or α, has not converged, or has more than one step of replica symmetry breaking; or the
        equations are not solved because `width` is too small or too large.

    Examples
    --------
    At the semantic minimum two eigenvalues lie above the bulk: one along the positions, one along the teacher.

    >>> import gamp_attention as ga
    >>> model = ga.paper_model()
    >>> se = ga.solve_state_evolution(model, 1.5, rtol=1e-3, stability=False)
    >>> spectrum = ga.limiting_spectrum(model, 1.5, se, x=[0.02])
    >>> spectrum.eigenvalues.round(2).tolist(), spectrum.positions.round(1).tolist()
    ([0.09, 0.12], [0.0, 0.8])
    """
    model = require_model(model)
    alpha = check.real("alpha", alpha, low=0, strict=True)
    _require_problem(model, fixed_point)
    n_points, n_replicas = check.integer("n_points", n_points, low=64), check.integer("n_replicas", n_replicas, low=2)
    check.require_memory("n_points, n_replicas", n_points, n_replicas, (model.n_tokens * model.rank) ** 2)
    if n_points % 2:
        raise check.fail("n_points", n_points, "an even number")
    width = None if width is None else check.real("width", width, low=0, strict=True)
    points = None if x is None else check.array("x", x, ("G",))
    if points is not None and (len(points) == 0 or (np.diff(points) <= 0).any()):
        raise check.fail("x", points, "at least one point, in increasing order")
    rng = generator(seed)
    hats = None
    if not fixed_point.n_steps:
        rule = first_rule("auto", model, (0,))
        hats = OverlapMap(model, alpha, rule, fixed_point.response).images(fixed_point.overlaps)[0].hats
        size = np.abs(fixed_point.V_hat).max()
        if not np.abs(hats.response(fixed_point.response) - fixed_point.V_hat).max() <= DEVIATION * size:
            raise check.fail("alpha", alpha, "the sample complexity of the fixed point")
    ensembles = [_draw_ensemble(model, alpha, fixed_point, hats, n_points, rng) for _ in range(n_replicas)]
    rotations = model.rank * (model.rank - 1) // 2 if model.rotations else 0
    replicas = [_solve(ensemble, limit, rotations) for ensemble, limit in ensembles]
    low, high = (float(np.mean([replica[name] for replica in replicas])) for name in ("lower_edge", "upper_edge"))
    if points is None:
        points = np.linspace(low - MARGIN * (high - low), high + MARGIN * (high - low), GRID)
    width = (high - low) / RESOLUTION if width is None else width
    for replica, (ensemble, _) in zip(replicas, ensembles, strict=True):
        replica["density"] = densities(ensemble, points, width)
        if not np.isfinite(replica["density"]).all():
            needs = "a width at which the equations can be solved; try a larger or a smaller one"
            raise check.fail("width", width, needs)
    if len({len(replica["eigenvalues"]) for replica in replicas}) > 1:
        _match_eigenvalues(replicas)
    numbers: dict[str, Any] = {}
    for name in replicas[0]:
        samples = np.array([replica[name] for replica in replicas])
        for key, value in ((name, samples.mean(axis=0)), (f"{name}_error", half_width(samples))):
            numbers[key] = float(value) if np.ndim(value) == 0 else value
    return LimitingSpectrum(x=points, width=width, **numbers)


def _require_problem(model: Model, fixed_point: Any) -> None:
    """Raise an error unless a model has a Hessian and the fixed point of state evolution is a solution for it."""
    if not model.penalty.quadratic:
        needs = "a ridge penalty: this penalty has no Hessian at kinks"
        raise check.fail_words("model", type(model.penalty).__name__, needs)
    refuse_intercept(model.intercept, "False for the spectrum of the Hessian")
    if not isinstance(fixed_point, StateEvolutionResult):
        raise check.fail("fixed_point", fixed_point, "a result of solve_state_evolution", TypeError)
    shape = model.n_sources, model.rank, model.teacher_rank
    if fixed_point.overlaps.theta.shape != shape:
        needs = f"a fixed point of this model, with θ of shape {shape}"
        raise check.fail("fixed_point", fixed_point.overlaps.theta.shape, needs)
    if fixed_point.n_steps > 1:
        raise check.fail_words("fixed_point", f"{fixed_point.n_steps} steps", "at most one step of symmetry breaking")
    if not np.isfinite(fixed_point.train_loss):
        raise check.fail_words("fixed_point", fixed_point.status.value, "a fixed point that has converged")


def _draw_ensemble(
    model: Model, alpha: float, fixed_point: StateEvolutionResult, hats: Hats | None, n_points: int, rng: Any
) -> tuple[Ensemble, np.ndarray | None]:
    """Return the ensemble of the Hessian, and V of the fixed point if the proximal map jumps, otherwise None."""
    overlaps = fixed_point.overlaps
    parts, groups, first = [], [], 0
    for probability, sources, component in model.components:
        selected = select_sources(overlaps, sources)
        y, noise, terms, out = _draw_fields(component, selected, fixed_point, n_points, rng)
        require_smooth_loss("model", component, terms.params)
        D = sample_derivatives(component.loss, terms.params, out.z)[2]
        parts.append((np.full(n_points, probability / n_points), D, y, noise, out.g))
        groups.append(Group(slice(first, first + n_points), np.asarray(sources)))
        first += n_points
    weight, D, y, noise, g = (np.concatenate(values) for values in zip(*parts, strict=True))
    h = D.reshape(len(D), model.n_tokens, model.rank, model.n_tokens, model.rank)
    ridge, law = np.broadcast_to(model.penalty.curvature, (model.rank,)), model.coordinates
    if hats is None:
        g, response = g[:, :, :0], np.zeros((len(law.weight), 0, 0))
    else:
        y = np.concatenate([y, noise], axis=2)
        law, response = _with_student(model, hats, fixed_point.V_hat)
    ensemble = Ensemble(law, alpha, h, y, ridge, weight, tuple(groups), g, response)
    jumps = np.abs(fixed_point.jump_mass).max() > NEGLIGIBLE_JUMPS * np.abs(fixed_point.V_hat).max()
    return ensemble, overlaps.V if jumps else None


def _draw_fields(
    model: Model, overlaps: Overlaps, fixed_point: StateEvolutionResult, n_points: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, RiskTerms, Denoised]:
    """Return teacher fields y, student fields without mean, the risk of the samples, and the proximal minimizer.

    With one step of replica symmetry breaking, the fields of a minimum are the outer field plus an inner field, which
    is drawn from `N_INNER` candidates with probabilities proportional to exp(−y M) of the Moreau envelope M.
    """
    broken: Any = fixed_point if fixed_point.n_steps else None  # the result of `solve_broken` with one step
    channel = Channel(model, replace(overlaps, q=broken.levels[0]) if broken else overlaps)
    y, terms, noise = channel.at(gaussian_points(n_points, n_white(model), rng))
    if broken:
        root = np.sqrt(overlaps.q - broken.levels[0])[:, :, 0]  # r = 1
        candidates = noise[:, None] + root * rng.standard_normal((n_points, N_INNER, *noise.shape[1:]))
        fields, rows = candidates.reshape(-1, *noise.shape[1:]), np.repeat(terms.params, N_INNER, axis=0)
        moreau = denoise(model.loss, rows, fields + overlaps.m, overlaps.V).moreau.reshape(n_points, N_INNER)
        # the largest of −y M plus independent Gumbel variables is a draw with these probabilities
        score = -broken.parisi[0] * moreau + rng.gumbel(size=moreau.shape)
        noise = candidates[np.arange(n_points), np.argmax(score, axis=1)]
    return y, noise, terms, denoise(model.loss, terms.params, noise + overlaps.m, overlaps.V)


def _with_student(model: Model, hats: Hats, V_hat: np.ndarray) -> tuple[CoordinateLaw, np.ndarray]:
    """Return the distribution of the coordinates with Q as further columns of the teacher, and the response C of Q.

    The weights of a coordinate are x = C (H (τ, π) + ζ), with the noise ζ of the data.
    """
    law, (mean, covariance) = model.coordinates, weights_law(model, hats)  # of b = H (τ, π) + ζ
    C = np.broadcast_to(linear_response(model, V_hat)[1], covariance.shape)
    on_teacher = (C @ drift_and_noise(model, hats)[0] @ law.covariance)[:, :, model.n_sources :]
    joint = np.block([[law.teacher_cov, np.swapaxes(on_teacher, 1, 2)], [on_teacher, C @ covariance @ C]])
    means = np.concatenate([law.teacher_mean, np.einsum("kab,kb->ka", C, mean)], axis=1)
    spikes = None if law.spikes is None else np.pad(law.spikes, ((0, 0), (0, model.rank)))
    unseen = np.pad(law.unseen, (0, model.rank))
    return replace(law, teacher_mean=means, teacher_cov=symmetrize(joint), spikes=spikes, unseen=unseen), C


def _solve(ensemble: Ensemble, limit: np.ndarray | None, n_rotations: int) -> dict[str, Any]:
    """Return the edges, the variances at x = 0, and the eigenvalues outside with their projections."""
    (S, c, _), student = ensemble.shape, ensemble.student
    parts = {"positions": slice(0, S), "teacher": slice(S, student.start), "weights": student}
    edges, rows = [], []
    negative = replace(ensemble, h=-ensemble.h, ridge=-ensemble.ridge)  # its lowest eigenvalues are minus the highest
    for sign, side, its_limit in ((1.0, ensemble, limit), (-1.0, negative, None)):
        path = lowest_edge(side, its_limit)
        edges.append(sign * path[-1].x.real)
        if ensemble.g.size:
            rows += [[sign * x, *norms] for x, *norms in eigenvalues_below(side, path, list(parts.values()))]
    for _ in range(n_rotations):  # leave out the zero eigenvalues along rotations of the columns of Q
        sizes = [abs(row[0]) for row in rows]
        if min(sizes, default=np.inf) < ZERO * max(sizes, default=0.0):
            del rows[int(np.argmin(sizes))]
    rows.sort()
    table = np.array(rows).reshape(len(rows), 1 + len(parts))
    found = dict(zip(("eigenvalues", *parts), table.T, strict=True))
    near = solve_near_axis(ensemble, 0.0, NEAR_AXIS * (edges[1] - edges[0]))
    V = np.full((S, c, c), np.nan) if near is None else near.V.real
    return {"lower_edge": edges[0], "upper_edge": edges[1], "V": V, **found}


def _match_eigenvalues(replicas: list[dict[str, Any]]) -> None:
    """Leave out eigenvalues outside the bulk that some replicas do not have: the nearest to the edges of the others."""
    names = ("eigenvalues", "teacher", "weights", "positions")
    below = min(int(np.sum(replica["eigenvalues"] < replica["lower_edge"])) for replica in replicas)
    above = min(int(np.sum(replica["eigenvalues"] > replica["upper_edge"])) for replica in replicas)
    for replica in replicas:
        k = len(replica["eigenvalues"])
        replica |= {name: np.delete(replica[name], slice(below, k - above)) for name in names}
