"""Derivatives of averages over random points in all overlaps, along the paths of the points.

A point has white noise (y, ξ), with fields ω_l = m_l + S_l y_l + R_l ξ_l for S = θ ρ⁻¹ and R Rᵀ = q − θ ρ⁻¹ θᵀ. If the
overlaps change, its fields move by dω = dm + dS y + dR ξ with dR = ½ d(R Rᵀ) R⁻ᵀ, and its force g(ω, V) by

    dg = ∂g/∂ω (dω + dV g),

because g = V⁻¹(z − ω) is minus the slope of the loss at z = ω + V g (a pathwise derivative, Glasserman, 2004). The
force must be continuous, as for convex losses, which may have kinks. This dR differs from the change of the symmetric
root by a rotation of ξ, which changes no average. The average of −∂g/∂ω, which has no derivative at kinks, is
−E[g ξᵀ] R⁻¹ by Stein's identity. R may be singular in directions on which the loss does not depend, such as the sum of
the fields of a multinomial loss.
"""

from collections.abc import Iterator

import numpy as np

from gamp_attention._tools.numerics import apply_to_rows, compose
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.theory.equations.channel import Channel, average, complete, field_slopes, mean_of, no_response
from gamp_attention.theory.equations.expansions import ChannelExpansion, Entries, complete_slopes

FAMILIES = ("q", "m", "theta", "V")
SINGULAR = 1e-3  # singular value of R, in units of the root of the largest of q, below which a direction is free
MAX_NUMBERS = 1 << 22  # largest number of products of factors in memory


def expand_along_paths(channel: Channel, point_sets: Iterator[np.ndarray]) -> ChannelExpansion | None:
    """Return the averages over sets of points of white noise (N, n_white), one for each replica, to first order.

    None if R is singular in a direction on which the loss depends. The force must be a continuous function of the
    fields. The channel may have symmetries only under changes of signs and reversals.
    """
    (L, r, t), overlaps, samples = channel.shape, channel.overlaps, []
    values, vectors = np.linalg.eigh(channel.root)
    regular = values > SINGULAR * np.sqrt(np.linalg.eigvalsh(overlaps.q)[:, -1:])
    root_inverse = compose(np.where(regular, 1 / np.where(regular, values, 1.0), 0.0), vectors)
    noise_of_y = root_inverse @ channel.slope  # the part of ξ = R⁻¹ (ω̃ − S y) that is linear in y
    of_y = np.concatenate([np.tile(np.eye(t), (L, 1, 1)), -noise_of_y], axis=1)
    of_fields = np.concatenate([of_y, np.pad(root_inverse, ((0, 0), (t, 0), (0, 0)))], axis=2)
    # averages of (g_l)_a f_lj and of (∂g_l/∂ω_k)_ab f_ki f_lj, for the factors f_l = (y_l, ξ_l, 1, g_l)
    plain, paths = np.zeros((L, r, t + 2 * r + 1)), np.zeros((L, r, L, r, t + 2 * r + 1, t + 2 * r + 1))
    for white in point_sets:
        y, terms, fields, weights, covariance = channel.weighted(white, with_covariance=True)
        out = denoise(channel.loss, terms.params, fields + overlaps.m, overlaps.V, jacobian=True)
        samples.append(complete(average(y, fields, terms, out, overlaps, weights), channel.symmetry))
        xi = apply_to_rows(root_inverse, fields) - apply_to_rows(noise_of_y, y)
        g = out.g if weights is None else weights[:, None, None] * out.g
        factors = np.concatenate([y, xi, np.ones((len(y), L, 1)), out.g], axis=2)
        slope = field_slopes(out, overlaps.V)
        slope = slope if weights is None else weights[:, None, None, None, None] * slope
        plain += np.einsum("nla,nlj->laj", g, factors) / len(y)
        for rows in np.array_split(np.arange(len(y)), 1 + slope.size * factors.shape[2] // MAX_NUMBERS):
            products = np.einsum("nlakb,nki,nlj->lakbij", slope[rows], factors[rows], factors[rows], optimize=True)
            paths -= products / len(y)
        if covariance is not None:  # of y and ω̃, on which y and ξ depend
            slope = slope if len(covariance) > 1 else slope.sum(axis=0, keepdims=True)
            pairs = np.einsum("nlakb,nkslu->lakbsu", slope, covariance, optimize=True) / len(y)
            paths[..., : t + r, : t + r] -= np.einsum("lakbsu,kis,lju->lakbij", pairs, of_fields, of_fields)
    base, ends = mean_of(samples), np.cumsum([t, r, 1])
    if not no_response(base.response, vectors * ~regular[:, None]).all():
        return None
    with_y, with_xi, _, _ = np.split(plain / len(samples), ends, axis=2)
    entries, theta = Entries.of(channel.shape, FAMILIES), overlaps.theta
    d_slope = entries.theta @ channel.model.coordinates.rho_inverse
    d_unexplained = entries.q - d_slope @ np.swapaxes(theta, 1, 2) - channel.slope @ np.swapaxes(entries.theta, 2, 3)
    d_root = 0.5 * d_unexplained @ root_inverse
    moves = np.concatenate([d_slope, d_root, entries.m[..., None], entries.V], axis=3)
    d_plain = np.einsum("lakbij,ukbi->ulaj", paths / len(samples), moves)
    d_with_y, d_with_xi, d_g, d_with_g = np.split(d_plain, ends, axis=3)
    of_fields = d_with_y @ np.swapaxes(channel.slope, 1, 2) + d_with_xi @ channel.root
    of_moves = with_y @ np.swapaxes(d_slope, 2, 3) + with_xi @ np.swapaxes(d_root, 2, 3)
    slopes = {
        "g": d_g[..., 0],
        "with_noise": of_fields + of_moves,
        "with_teacher": d_with_y,
        "gg": d_with_g + np.swapaxes(d_with_g, 2, 3),
        "response": symmetric_from_columns(-(d_with_xi + base.response @ d_root) @ root_inverse, values, vectors),
    }
    complete_slopes(slopes, entries.families, channel.symmetry)
    return ChannelExpansion(overlaps, base, slopes, True, False, samples)


def symmetric_from_columns(matrices: np.ndarray, values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return symmetric matrices (K, L, r, r) from estimates whose columns have noise of the order of 1/R.

    `values`, `vectors` are the spectra of R. Of both estimates of an entry, in the axes of R, the mean with the
    reciprocals of their variances as weights is used.
    """
    squares = values**2 + 1e-300  # zero in fields that the loss does not read
    weights = squares[:, None, :] / (squares[:, :, None] + squares[:, None, :])
    rotated = weights * (np.swapaxes(vectors, 1, 2) @ matrices @ vectors)
    return np.asarray(vectors @ (rotated + np.swapaxes(rotated, 2, 3)) @ np.swapaxes(vectors, 1, 2))
