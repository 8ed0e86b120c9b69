"""Output channel of state evolution: Gaussian averages over fields and teacher fields, equations (7) to (9).

For every token, (ω̃_l, y_l) is a centered Gaussian with covariance [[q, θ], [θᵀ, ρ]] and ω_l = m_l + ω̃_l; then
z = prox(ω; T[y], V), g_l = V_l⁻¹(z_l − ω_l), and the conjugate overlaps ("hats") are averages of g: state evolution as
in Javanmard and Montanari (2013), for attention by Cui, Behrens, Krzakala and Zdeborová (2024).

`Channel` is a function of white noise, which quadrature rules (`rules`) average, over a fundamental domain of its
symmetries if it has any. The averages (`Moments`) are completed by the symmetries, summed over the components of a
mixture (`sum_over_components`), and converted to conjugate overlaps (`conjugates`).
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag

from gamp_attention._tools.numerics import apply_to_rows, compose, diagonalize, psd_root, symmetrize
from gamp_attention.problem.denoisers.output import Denoised, denoise
from gamp_attention.problem.losses.attention import RiskTerms
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.directions import DIRECTIONS, loss_directions
from gamp_attention.theory.equations.outcomes import known_labels, labels_given_fields, outcomes_of, shift_dimension
from gamp_attention.theory.equations.symmetry import (
    Symmetry,
    fold_points,
    gauge_dimension,
    permutation_mean,
    rotation_mean_of_pairs,
)
from gamp_attention.theory.equations.units import subtract_explained
from gamp_attention.theory.models.model import Component, Model

LOWERED = 1e-10  # smallest relative difference of objectives at which a minimum counts as lower than another
AVERAGES = ("g", "with_noise", "with_teacher", "gg", "response", "square", "moreau", "loss")  # fields of `Moments`
# averages of each token, and the overlap that transforms like each of them
OF_TOKENS = {"g": "m", "with_noise": "q", "with_teacher": "theta", "gg": "q", "response": "V"}


@dataclass(frozen=True, eq=False)
class Moments:
    """Averages over the output channel; g is the output function of the denoiser."""

    g: np.ndarray  # (L, r), E[g_l]
    with_noise: np.ndarray  # (L, r, r), E[g_l ω̃_lᵀ]
    with_teacher: np.ndarray  # (L, r, t), E[g_l y_lᵀ]
    gg: np.ndarray  # (L, r, r), E[g_l g_lᵀ]
    response: np.ndarray  # (L, r, r), E[−∂g_l/∂ω_l] with the almost-everywhere derivative
    square: np.ndarray  # (L, L, r², r²), E[(∂g_l/∂ω_k) ⊗ (∂g_l/∂ω_k)], also almost everywhere
    moreau: float  # average Moreau envelope, with the constant of the risk
    loss: float  # average of ℓ(z), with this constant
    max_jacobian_trace: float = np.inf  # largest trace of ∂z/∂ω; inf at a second minimum, or if none was searched
    multimodal_fraction: float = 1.0  # fraction of points with a second minimum; 1 if none was searched
    # fraction of the searched points whose nearest minimum is not the global minimum; 0 if no points were searched
    lowered_fraction: float = 0.0


def average(
    y: np.ndarray, noise: np.ndarray, terms: RiskTerms, out: Denoised, overlaps: Overlaps,
    weights: np.ndarray | None = None,
) -> Moments:  # fmt: skip
    """Return averages over samples of the denoiser's result at fields ω̃ = noise with teacher fields y.

    `weights` (n,) are factors of the samples, 1 by default; averages are sums divided by n. Averages of products of
    derivatives are NaN if the denoiser did not compute its Jacobian.
    """
    n, L, r = noise.shape
    V, square = overlaps.V, np.full((L, L, r * r, r * r), np.nan)

    def scaled(values: np.ndarray) -> np.ndarray:
        return values if weights is None else weights.reshape(n, *[1] * (values.ndim - 1)) * values

    g = scaled(out.g)
    columns = g.transpose(1, 2, 0)
    if len(out.jacobian):
        slope = field_slopes(out, V)
        square = np.einsum("nlakc,nlbkd->lkabcd", scaled(slope), slope, optimize=True).reshape(square.shape) / n
    return Moments(
        g=g.mean(axis=0),
        with_noise=columns @ noise.swapaxes(0, 1) / n,  # `einsum` takes three to seventy times longer
        with_teacher=columns @ y.swapaxes(0, 1) / n,
        gg=columns @ out.g.swapaxes(0, 1) / n,
        # `mean` adds in pairs: near perfect recovery, the difference of the response from 1 is 1e-7
        response=scaled(out.response).mean(axis=0),
        square=square,
        moreau=float(scaled(out.moreau + terms.constant).mean()),
        loss=float(scaled(out.loss + terms.constant).mean()),
        max_jacobian_trace=_max_jacobian_trace(out, V),
        multimodal_fraction=float(scaled(np.isfinite(out.gap)).mean()),
    )


def mean_of(samples: list[Moments]) -> Moments:
    """Return the mean of the replicas' averages."""
    if len(samples) == 1:
        return samples[0]
    return Moments(
        **{item.name: np.mean([getattr(sample, item.name) for sample in samples], axis=0) for item in fields(Moments)}
    )


def field_slopes(out: Denoised, V: np.ndarray) -> np.ndarray:
    """Return −∂g_l/∂ω_k (n, L, r, L, r), from a denoiser's result with its Jacobian."""
    n, L, r = out.g.shape
    slope = (np.eye(L * r) - out.jacobian).reshape(n, L, r, L * r)
    return (np.linalg.inv(V)[None] @ slope).reshape(n, L, r, L, r)


def apply_control_variate(all_near: Moments, few: Moments, few_near: Moments) -> Moments:
    """Return averages at local minima, corrected by the difference between global and local minima at few points.

    Parameters
    ----------
    all_near : averages at all points with the local minimum nearest to the fields.
    few, few_near : averages at a subset of the points, with the global minimum and with the local minimum.
    """
    corrected: dict[str, Any] = {
        name: getattr(all_near, name) + (getattr(few, name) - getattr(few_near, name)) for name in AVERAGES
    }
    return Moments(
        **corrected,
        max_jacobian_trace=max(all_near.max_jacobian_trace, few.max_jacobian_trace),
        multimodal_fraction=few.multimodal_fraction,
        lowered_fraction=few.lowered_fraction,
    )


def _choose_searched(moreau: np.ndarray, searched: int) -> tuple[np.ndarray, np.ndarray]:
    """Return indices of points to search for lower minima, and factors with which they stand for all points.

    Lower minima exist mostly at points with a large Moreau envelope (n,), the objective at the nearest minimum. The
    n/searched points with the largest envelopes are searched, a quarter of the next 2n/searched, a sixteenth of the
    next 4n/searched, and so on, in each case the first in the order of the points.
    """
    n, rank = len(moreau), np.empty(len(moreau), dtype=int)
    rank[np.argsort(-moreau, kind="stable")] = np.arange(n)
    band = np.log2(1 + searched * rank / n).astype(int)
    n_first = np.maximum(n // 4**band, 1)
    rows = np.flatnonzero(np.arange(n) < n_first)
    return rows, n / n_first[rows]


def _max_jacobian_trace(out: Denoised, V: np.ndarray) -> float:
    """Return the largest trace of ∂z/∂ω, which is large next to jumps; inf if a second minimum was found."""
    if np.isfinite(out.gap).any():
        return np.inf
    return float(V.shape[0] * V.shape[1] - np.einsum("lab,nlba->n", V, out.response).min(initial=0.0))


def complete(moments: Moments, symmetry: Symmetry) -> Moments:
    """Return averages over the whole channel, given averages over a fundamental domain of its symmetries."""
    square = moments.square
    if symmetry.isotropic:
        square = rotation_mean_of_pairs(square)
    if symmetry.reversal:
        square = 0.5 * (square + square[::-1, ::-1])
    if symmetry.exchange:
        square = permutation_mean(square, 0, 1)
    if symmetry.columns:
        r = moments.gg.shape[-1]
        square = permutation_mean(square.reshape(*square.shape[:2], r, r, r, r), 2, 3, 4, 5).reshape(square.shape)
    means: dict[str, Any] = {name: symmetry.mean(like, getattr(moments, name)) for name, like in OF_TOKENS.items()}
    return replace(moments, square=square, **means)


@dataclass(frozen=True, eq=False)
class Hats:
    """Conjugate overlaps, computed by the output channel from the overlaps.

    Attributes
    ----------
    m, q, theta, V : (L, r), (L, r, r), (L, r, t), (L, r, r): m̂, q̂, θ̂ and V̂ in Stein's form.
    V_derivative : (L, r, r) V̂ as the average of the almost-everywhere derivative, which omits the jumps of the prox.
    square : (L, L, r², r²) α E[(∂g_l/∂ω_k) ⊗ (∂g_l/∂ω_k)].
    moreau, loss : α E[Moreau envelope + constant] and α E[ℓ(z) + constant].
    """

    m: np.ndarray
    q: np.ndarray
    theta: np.ndarray
    V: np.ndarray
    V_derivative: np.ndarray
    square: np.ndarray
    moreau: float
    loss: float

    @property
    def jump_mass(self) -> np.ndarray:
        """Contribution of the jumps of the proximal map to V̂, V̂_Stein − V̂_derivative. Eq. :eq:`jump-mass`.

        No eigenvalue is positive, because g jumps along the direction in which ω moves.
        """
        return self.V - self.V_derivative

    def response(self, form: str) -> np.ndarray:
        """Return V̂ in the form "stein" or "derivative"."""
        return self.V if form == "stein" else self.V_derivative


def teacher_size(model: Model) -> int:
    """Return the number of white coordinates of the teacher: its L t fields and the noise of its labels."""
    return model.n_tokens * model.teacher_rank + model.task.n_noise


def n_white(model: Model) -> int:
    """Return the number of white coordinates of the channel: L (r + t) and the noise of the labels."""
    return model.n_tokens * model.rank + teacher_size(model)


def fields_and_terms(model: Model, white: np.ndarray) -> tuple[np.ndarray, RiskTerms]:
    """Return teacher fields y (N, L, t) for white noise (N, teacher_size), and the loss parameters they imply."""
    n_fields = model.n_tokens * model.teacher_rank
    noise = white[:, :n_fields].reshape(len(white), model.n_tokens, model.teacher_rank)
    y = apply_to_rows(psd_root(model.coordinates.rho), noise)
    return y, model.task.terms(y, white[:, n_fields:])


class WeightedPoints(NamedTuple):
    """Samples of a channel, with means and covariances of everything on which g does not depend."""

    y: np.ndarray  # (n, L, t) teacher fields
    terms: RiskTerms  # parameters of the loss
    fields: np.ndarray  # (n, L, r) fields ω̃
    factors: np.ndarray | None  # (n,) factors in averages; None if they are 1
    # (n, L, t + r, L, t + r), or (1, ...) if all are equal: covariances of (y, ω̃); None if zero or not requested
    covariance: np.ndarray | None


class Channel:
    """The channel at given overlaps as a function of white noise, the only interface that quadrature rules use.

    The white coordinates are first the teacher's (see `fields_and_terms`), then the L r of the student.

    Attributes
    ----------
    model : the model, or a component of it.
    shape : (L, r, t).
    n_teacher, n_white : number of white coordinates of the teacher, and of all.
    overlaps : overlaps of the tokens.
    loss : loss of one sample.
    slope, root : (L, r, t), (L, r, r): ω̃ = slope·y + root·(white noise) given the teacher's fields, eq. :eq:`channel`.
    """

    def __init__(self, model: Model, overlaps: Overlaps) -> None:
        self.model, self.overlaps, self.loss = model, overlaps, model.loss
        self.shape = model.n_tokens, model.rank, model.teacher_rank
        self.n_teacher, self.n_white = teacher_size(model), n_white(model)
        self.slope = overlaps.theta @ model.coordinates.rho_inverse
        self.root = psd_root(overlaps.q - self.slope @ np.swapaxes(overlaps.theta, 1, 2))

    @cached_property
    def symmetry(self) -> Symmetry:
        """Transformations that leave the channel unchanged."""
        return Symmetry.of(self.model, self.overlaps)

    @property
    def n_coordinates(self) -> int:
        """Number of coordinates of a point; fewer than n_white with rotations as symmetries or flat directions."""
        if self.symmetry.isotropic:
            return self.n_white - gauge_dimension(self.shape[0], self.shape[2])
        if outcomes_of(self.model) is not None:
            return loss_directions(self.model, known_labels(self.model))[0].shape[1] + shift_dimension(self.model)
        return self.n_white if self.axes is None else len(self.axes)

    @cached_property
    def axes(self) -> np.ndarray | None:
        """Orthonormal rows (K, n_white) that span the white noise on which a convex loss of drawn labels depends.

        The loss varies in K combinations of ω̃, y and the noise of labels. With the root of their covariance, they
        follow from K coordinates, and the other directions of the white noise have zero mean given them.
        """
        if self.model.task.jumps or outcomes_of(self.model) is not None:
            return None
        steep = loss_directions(self.model, None)[0]
        (L, r, t), white = self.shape, np.eye(self.n_white)
        y, _, fields = self.at(white)  # linear functions of the white noise
        noise = white[:, L * t : self.n_teacher]
        everything = np.hstack([fields.reshape(self.n_white, -1), y.reshape(self.n_white, -1), noise])
        # combinations with a part of the student first: they follow from the first coordinates only
        first = np.where(np.abs(steep[: L * r]).max(axis=0) > DIRECTIONS.smallest, 1.0, DIRECTIONS.later)
        left, _, right = np.linalg.svd((first * steep).T @ everything.T, full_matrices=False)
        return np.asarray(left @ right)

    @cached_property
    def _hidden(self) -> np.ndarray:
        """Covariance (1, L, t + r, L, t + r) of y and ω̃ given the coordinates in `axes`."""
        assert self.axes is not None
        y, _, fields = self.at(np.eye(self.n_white) - self.axes.T @ self.axes)
        both = np.concatenate([y, fields], axis=2)
        return np.einsum("nki,nlj->kilj", both, both)[None]

    def fold(self, cube: np.ndarray) -> np.ndarray:
        """Return white noise (N, n_white) in the fundamental domain for points of the unit cube (N, n_coordinates)."""
        size = np.sqrt(self.model.coordinates.rho[:, 0, 0] * self.overlaps.q[:, 0, 0])
        cosines = self.overlaps.theta[:, 0, 0] / np.where(size > 0, size, np.inf)
        return fold_points(cube, self.symmetry, self.shape[1], cosines)

    def fields(self, y: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return fields ω̃ (N, L, r) given teacher fields y (N, L, t), for white noise (N, L, r)."""
        return apply_to_rows(self.slope, y) + apply_to_rows(self.root, noise)

    def moments(self, white: np.ndarray, squares: bool, searched: int = 1) -> Moments:
        """Return averages over points of white noise.

        Parameters
        ----------
        white : (N, n_white) points.
        squares : True to average products of derivatives, which are NaN otherwise.
        searched : 1 to compute the global minimum of the proximal problem at each point; otherwise at a part of the
            points, see `_choose_searched`. The others use the local minimum nearest to the fields, and the difference
            between global and local minima at the searched points corrects the averages (control variate).
        """
        y, terms, fields, factors, _ = self.weighted(white)

        def denoise_at(rows: np.ndarray | slice, hold: bool) -> Denoised:
            centers = fields[rows] + self.overlaps.m
            return denoise(self.loss, terms.params[rows], centers, self.overlaps.V, hold=hold, jacobian=squares)

        def average_at(rows: np.ndarray | slice, out: Denoised, weights: np.ndarray | None = None) -> Moments:
            chosen = replace(terms, params=terms.params[rows], constant=terms.constant[rows])
            return average(y[rows], fields[rows], chosen, out, self.overlaps, weights)

        everywhere = slice(None)
        if searched == 1:
            return average_at(everywhere, denoise_at(everywhere, hold=False), factors)
        near = denoise_at(everywhere, hold=True)
        rows, factors = _choose_searched(near.moreau, searched)
        best, near_there = denoise_at(rows, hold=False), Denoised(*(v[rows] if len(v) else v for v in near))
        factors *= len(rows) / len(white)
        lowered = best.moreau < near_there.moreau - LOWERED * (1 + np.abs(best.moreau))
        return apply_control_variate(
            average_at(everywhere, near),
            replace(average_at(rows, best, factors), lowered_fraction=float((factors * lowered).mean())),
            average_at(rows, near_there, factors),
        )

    def errors(self, white: np.ndarray) -> np.ndarray:
        """Return test errors, with factors of the points, at points of white noise (N, n_white); ε_g is their mean."""
        y, terms, fields, factors, _ = self.weighted(white)
        errors = self.model.task.errors(fields + self.overlaps.m, y, terms)
        return errors if factors is None else factors * errors

    def weighted(self, points: np.ndarray, with_covariance: bool = False) -> WeightedPoints:
        """Return samples for points of white noise (N, n_coordinates).

        For convex losses, each coordinate is a direction in which the loss varies. If the outcomes of
        labels are known, each point is repeated for each outcome, with its probability as a factor, see `outcomes`.
        Points may have factors as a further coordinate.
        """
        if self.model.task.jumps:
            return WeightedPoints(*self.at(points), None, None)
        K = self.n_coordinates
        points, factors = points[:, :K], points[:, K] if points.shape[1] > K else None
        if outcomes_of(self.model) is not None:
            return self._given_labels(points, factors, with_covariance)
        return WeightedPoints(*self.at(points @ self.axes), factors, self._hidden if with_covariance else None)

    def _given_labels(self, points: np.ndarray, factors: np.ndarray | None, with_covariance: bool) -> WeightedPoints:
        """Return samples for points, each repeated for each outcome of its label.

        The first K coordinates are white combinations of the fields on which the loss depends. Given them and the
        label, the teacher's fields y, and then the other combinations of ω̃, have known means and covariances.
        """
        (L, r, t), N, steep = self.shape, len(points), loss_directions(self.model, known_labels(self.model))[0]
        q, theta, rho = map(
            lambda x: block_diag(*x), (self.overlaps.q, self.overlaps.theta, self.model.coordinates.rho)
        )
        values, vectors = diagonalize(steep.T @ q @ steep)
        known = values > DIRECTIONS.rounding * values[-1]
        whiten = steep @ compose(np.where(known, np.where(known, values, 1.0) ** -0.5, 0.0), vectors)
        of_fields, of_teacher = q @ whiten, theta.T @ whiten  # covariances with the coordinates
        white, eta = np.split(points, [steep.shape[1]], axis=1)
        mean, rest = white @ of_teacher.T, rho - of_teacher @ of_teacher.T
        gain = (theta - of_fields @ of_teacher.T) @ np.linalg.pinv(rest, hermitian=True)
        given = labels_given_fields(self.model, mean.reshape(N, L, t), psd_root(rest), eta, with_covariance)
        C = len(given.labels)
        fields = (white @ of_fields.T)[:, None] + (given.y.reshape(N, C, -1) - mean[:, None]) @ gain.T
        factors = C * given.probabilities * (1.0 if factors is None else factors[:, None])
        covariance = None
        if given.covariance is not None:
            both = np.concatenate([np.eye(L * t).reshape(L, t, -1), gain.reshape(L, r, -1)], axis=1)
            covariance = np.einsum(
                "kis,nsu,lju->nkilj", both, given.covariance.reshape(-1, L * t, L * t), both, optimize=True
            )
            covariance[:, :, t:, :, t:] += (q - of_fields @ of_fields.T - gain @ rest @ gain.T).reshape(L, r, L, r)
        terms = RiskTerms(np.tile(given.labels, (N, 1)), np.zeros(C * N))
        return WeightedPoints(given.y.reshape(-1, L, t), terms, fields.reshape(-1, L, r), factors.ravel(), covariance)

    def sample(self, white: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return targets or labels, loss parameters, teacher fields y and fields ω at points of white noise."""
        y, terms, noise = self.at(white)
        target = self.model.teacher(y) if self.model.attention else terms.params
        return target, terms.params, y, noise + self.overlaps.m

    def at(self, white: np.ndarray) -> tuple[np.ndarray, RiskTerms, np.ndarray]:
        """Return teacher fields y, loss parameters and fields ω̃ at points of white noise (N, n_white)."""
        y, terms = fields_and_terms(self.model, white[:, : self.n_teacher])
        return y, terms, self.fields(y, white[:, self.n_teacher :].reshape(len(white), *self.shape[:2]))


def conjugates(model: Model, alpha: float, overlaps: Overlaps, moments: Moments, stein: bool) -> Hats:
    """Return the conjugate overlaps, given averages over the channel at given overlaps. Eq. :eq:`conjugates`.

    With `stein`, V̂ and θ̂ follow from the identity α E[g (ω̃, y)ᵀ] = (−V̂, θ̂) cov(ω̃, y) (Stein, 1981); otherwise V̂ is
    the average of the almost-everywhere derivative. Both are equal if the proximal map is continuous; then the
    derivative mostly has less Monte Carlo noise. For convex losses, the result has the chosen form in both fields.
    Entries that vanish by symmetry are set to zero.
    """
    symmetry = Symmetry.of(model, overlaps)
    with_teacher = np.zeros_like(overlaps.theta) if symmetry.theta_zero else alpha * moments.with_teacher
    derivative = alpha * moments.response
    # the derivative is exact for a continuous proximal map, and the only form in directions that y determines
    V_hat = derivative
    if stein:
        # Stein's form is 0/0 in directions in which ω̃ is determined by the teacher's fields, and noise divided by small
        # numbers in flat directions of a convex loss, in which weights vanish
        steep = np.eye(derivative.shape[1]) if model.task.jumps else _steep_part(derivative)
        spectrum, vectors = np.linalg.eigh(steep @ subtract_explained(model, overlaps) @ steep)
        free = spectrum <= DIRECTIONS.determined * np.linalg.eigvalsh(overlaps.q)[:, -1:]
        inverse = compose(np.where(free, 0.0, 1 / np.where(free, 1.0, spectrum)), vectors)
        slope = overlaps.theta @ model.coordinates.rho_inverse
        V_stein = -(alpha * moments.with_noise - with_teacher @ np.swapaxes(slope, 1, 2)) @ inverse
        V_hat = V_stein + derivative @ compose(free.astype(float), vectors)
    theta_hat = (with_teacher + V_hat @ overlaps.theta) @ model.coordinates.rho_inverse
    return Hats(
        m=np.zeros_like(overlaps.m) if symmetry.m_zero else alpha * moments.g,
        q=alpha * moments.gg,
        theta=theta_hat,
        V=symmetrize(V_hat),
        V_derivative=symmetrize(derivative if model.task.jumps else V_hat),
        square=alpha * moments.square,
        moreau=alpha * moments.moreau,
        loss=alpha * moments.loss,
    )


def _steep_part(response: np.ndarray) -> np.ndarray:
    """Return projectors (L, r, r) on the directions of each token's fields in which there is a response (L, r, r)."""
    values, vectors = diagonalize(symmetrize(response))
    return compose((values > DIRECTIONS.response * values[:, -1:]).astype(float), vectors)


def no_response(response: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Return for each token (L,) whether its response (L, r, r) is practically zero in given directions (L, r, k)."""
    return np.abs(response @ directions).max(axis=(1, 2)) <= 1e-3 * np.abs(response).max(axis=(1, 2))


def select_sources(overlaps: Overlaps, sources: np.ndarray) -> Overlaps:
    """Return the overlaps of given sources (indices) only."""
    return Overlaps(**{name: values[sources] for name, values in overlaps.arrays().items()})


def sum_over_components(components: tuple[Component, ...], moments: list[Moments]) -> Moments:
    """Return the moments by source, summed over the components of a mixture with their probabilities.

    The moments of a component are indexed by its L tokens, the result by the S sources. Eq. :eq:`mixture-conjugates`.
    """
    if len(components) == 1:
        return moments[0]
    pairs = list(zip(components, moments, strict=True))
    S = 1 + max(int(component.sources.max()) for component in components)

    def sum_field(name: str, axes: int = 1) -> np.ndarray:
        total = np.zeros((S,) * axes + getattr(moments[0], name).shape[axes:])
        for (probability, sources, _), part in pairs:
            total[np.ix_(*[sources] * axes)] += probability * getattr(part, name)
        return total

    return Moments(
        **{name: sum_field(name) for name in OF_TOKENS},
        square=sum_field("square", axes=2),
        moreau=sum(component.probability * part.moreau for component, part in pairs),
        loss=sum(component.probability * part.loss for component, part in pairs),
        max_jacobian_trace=max(part.max_jacobian_trace for part in moments),
        multimodal_fraction=max(part.multimodal_fraction for part in moments),
        lowered_fraction=max(part.lowered_fraction for part in moments),
    )
