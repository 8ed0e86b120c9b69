"""Overlap of spectral starts with the teacher and the positions, for d → ∞.

Spectral starts are eigenvectors of Σ_μ X̃ᵀ h X̃ (Lu and Li, Information and Inference 9, 2020; Mondelli and Montanari,
Foundations of Computational Mathematics 19, 2019). The matrices h depend on the teacher's fields only. They are drawn,
and the eigenvalues below the bulk determine the overlaps (`gamp_attention.extensions.spectra.spectrum`).
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import generator, guard_call, psd_root
from gamp_attention._tools.quadrature import gaussian_points
from gamp_attention.extensions.bayes.channels.choice import field_moments, moment_channel
from gamp_attention.extensions.sequence.sequence_labels import is_function
from gamp_attention.extensions.spectra.limiting_spectra import mean_of_replicas, require_points
from gamp_attention.extensions.spectra.sample_starts import draw_ensemble
from gamp_attention.extensions.spectra.spectrum import Ensemble, eigenvalues_below, growths, lowest_edge
from gamp_attention.extensions.train.spectral_weights import (
    WEIGHTS,
    Shape,
    posterior_weights,
    spectral_weights,
)
from gamp_attention.problem.sources import Group
from gamp_attention.results import Result
from gamp_attention.theory.equations.channel import fields_and_terms, teacher_size
from gamp_attention.theory.models.model import Model, require_model

MAX_ALPHA = 1e12  # largest sample complexity
MIN_OF_CLASS = 4  # minimum number of points of a class, in units of the number of random numbers of a sample


@dataclass(frozen=True, eq=False)
class SpectralOverlap(Result):
    """Lowest eigenvalues of Σ_μ X̃ᵀ h X̃, and projections of their eigenvectors on the teacher and the positions.

    Attributes
    ----------
    edge : lower edge of the bulk of the spectrum.
    strength : largest eigenvalue of the map of overlaps at the edge; above 1 if an eigenvalue lies below the edge.
    eigenvalues : (k,) eigenvalues below the bulk, ascending; k = 0 if there are none.
    teacher : (k,) norm of the projection of each normalized eigenvector on the span of the columns of Q*, summed over
        the columns of the eigenvector.
    positions : (k,) the same projection on the span of the positions.
    edge_error, strength_error, eigenvalues_error, teacher_error, positions_error : 95 % half-widths.
    """

    edge: float
    strength: float
    eigenvalues: np.ndarray
    teacher: np.ndarray
    positions: np.ndarray
    edge_error: float
    strength_error: float
    eigenvalues_error: np.ndarray
    teacher_error: np.ndarray
    positions_error: np.ndarray


@guard_call
def spectral_overlap(
    model: Model,
    alpha: float,
    weights: str = "fitted",
    *,
    n_points: int = 4096,
    n_replicas: int = 4,
    seed: int | np.random.Generator = 0,
) -> SpectralOverlap:
    """Compute the overlap of spectral starts with the teacher and the positions, for d → ∞ at n = αd samples.

    Eq. :eq:`spectral-law`.

    Parameters
    ----------
    model : a model without token classes, in which all samples have the same positions and teacher; or a sequence model
        with classes.
    alpha : sample complexity α > 0.
    weights : "fitted", "hessian" or "posterior": the matrices h of the samples, as for `spectral_directions` and
        `posterior_directions`.
    n_points : number of random points of an average over the teacher's fields, even and at least 64.
    n_replicas : number of independent sets of points, at least 2.
    seed : seed of the points.

    Returns
    -------
    SpectralOverlap

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if `alpha` is not in (0, 1e12], `n_points` is odd or too small, `weights` is an unknown name or does
        not apply to the student, the model is an attention layer with token classes, or the spectrum is zero.

    Examples
    --------
    With few samples, no eigenvector overlaps with the teacher; with d samples, one does:

    >>> import gamp_attention as ga
    >>> model = ga.paper_model(omega=0.2, sigma=0.8)
    >>> [len(ga.spectral_overlap(model, alpha).eigenvalues) for alpha in (0.1, 1.0)]
    [0, 1]
    """
    model = require_model(model)
    alpha = check.real("alpha", alpha, low=0, high=MAX_ALPHA, strict=True)
    check.choice("weights", weights, (*WEIGHTS, "posterior"))
    n_points, n_replicas = require_points(model, n_points, n_replicas)
    with_classes = model.is_mixture and not model.attention
    if not with_classes and (model.is_mixture or model.teacher_shift.any()):
        raise check.fail_words("model", type(model).__name__, "tokens without classes")
    columns = Shape.of(model.student, model.n_tokens, model.rank).columns
    by_column = is_function(model.teacher) and columns == model.teacher_rank
    if weights == "posterior" and (with_classes or (columns > 1 and not by_column)):
        students = "samples without classes of students with tied weights, or with a column for each of a function"
        raise check.fail("weights", weights, f"'fitted' or 'hessian', except for {students}")
    rng = generator(seed)
    draw = _draw_classes if with_classes else _draw_samples
    replicas = [_solve_lowest(draw(model, alpha, weights, n_points, rng)) for _ in range(n_replicas)]
    k = min(len(replica["eigenvalues"]) for replica in replicas)
    common = [{name: v if np.ndim(v) == 0 else v[:k] for name, v in replica.items()} for replica in replicas]
    return SpectralOverlap(**mean_of_replicas(common))


def _draw_samples(model: Model, alpha: float, weights: str, n_points: int, rng: np.random.Generator) -> Ensemble:
    """Return the matrices h at random teacher fields."""
    if weights != "posterior":
        return draw_ensemble(model, alpha, weights, n_points, rng)[0]
    shape = Shape.of(model.student, model.n_tokens, model.rank)
    channel, rho = moment_channel(model), model.coordinates.rho
    size = rho.shape[0] * rho.shape[1]
    white = gaussian_points(n_points, size + channel.n_noise, rng)
    y = np.einsum("lst,nlt->nls", psd_root(rho), white[:, :size].reshape(n_points, *rho.shape[:2]))
    seen = channel.observe(y, white[:, size:])
    h = posterior_weights(field_moments(channel, seen, rho, by_column=shape.columns > 1), rho, alpha)
    L, c = shape.n_tokens, shape.columns
    return Ensemble(model.coordinates, alpha, h.reshape(-1, L, c, L, c), y)


def _draw_classes(model: Any, alpha: float, weights: str, n_points: int, rng: np.random.Generator) -> Ensemble:
    """Return the matrices h at random teacher fields of samples with classes, of a `SequenceMixture`.

    Spikes Q* a/√d are means along the teacher: the fields of all directions depend linearly on u = y + E[π πᵀ] a in
    place of y, if the variances of tokens are equal in all coordinates.
    """
    law, shape = model.coordinates, Shape.of(model.student, model.n_tokens, model.rank)
    if law.spikes is not None and (law.gamma != law.gamma[:1]).any():
        raise check.fail_words(
            "coordinates.gamma", "other variances in other coordinates", "equal variances, for spikes"
        )
    fields, params, counts = [], [], list[int]()
    for (probability, _, component), sources in zip(model.components, model.classes.patterns, strict=True):
        dim = teacher_size(component)
        size = max(2 * round(n_points * probability / 2), MIN_OF_CLASS * dim)
        y, terms = fields_and_terms(component, gaussian_points(size, dim, rng))
        shift = 0.0 if law.spikes is None else law.spikes[sources] @ law.teacher_cov[0]
        fields.append(y + shift)
        params.append(terms.params)
        counts.append(size)
    sizes = np.array(counts)
    u, weight = np.concatenate(fields), np.repeat(model.classes.probability / sizes, sizes)
    h = spectral_weights(weights, model.loss, np.concatenate(params), shape)
    ends = np.cumsum(sizes)
    of_class = zip(ends - sizes, ends, model.classes.patterns, strict=True)
    groups = tuple(Group(slice(first, last), np.asarray(sources)) for first, last, sources in of_class)
    L, c = shape.n_tokens, shape.columns
    return Ensemble(replace(law, spikes=None), alpha, h.reshape(-1, L, c, L, c), u, 0.0, weight, groups)


def _solve_lowest(ensemble: Ensemble) -> dict[str, Any]:
    """Return the edge, its strength, the eigenvalues below it and their projections, as in `SpectralOverlap`."""
    path = lowest_edge(ensemble)
    L, t = ensemble.law.tau.shape[1], ensemble.shape[2]
    outside = eigenvalues_below(ensemble, path)
    arrays = {
        "eigenvalues": [value.x for value in outside],
        "teacher": [value.projection(ensemble.law, slice(L, L + t)) for value in outside],
        "positions": [value.projection(ensemble.law, slice(0, L)) for value in outside],
    }
    return {"edge": path[-1].x, "strength": float(growths(path[-1])[0])} | {
        name: np.array(entries) for name, entries in arrays.items()
    }
