"""Joint distribution ν of covariances, positions and teacher weights over the d coordinates.

A `CoordinateLaw` has K classes of coordinates. It is built by `coordinate_law` from classes of spectra, positions and
teacher weights (`CoordinateClasses`), or by `law_from_samples` from the values of all coordinates: one class for equal
coordinates, or a given number of bins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._core import check
from gamp_attention._core.display import DisplayMixin
from gamp_attention._core.numerics import MAX_ROOT, check_squarable, guard_call
from gamp_attention.results import add_display


@add_display
class CoordinateClasses(NamedTuple):
    """Values of K classes of coordinates, along the first axis, and the fraction of coordinates in each class.

    Attributes
    ----------
    values : (K, …), the value in each class.
    weight : (K,) fractions of the coordinates; they add to 1.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> spectrum = ga.CoordinateClasses([0.1, 0.4], [0.5, 0.5])
    >>> ga.coordinate_law(spectrum).gamma.tolist()
    [[0.1, 0.1], [0.4, 0.4]]
    """

    values: np.ndarray
    weight: np.ndarray


@guard_call
def power_law_spectrum(
    exponent: float, n_classes: int = 16, *, weight: ArrayLike | None = None, variance: float = 0.25
) -> CoordinateClasses:
    """Return eigenvalues γ_k ∝ k^(−a) of a covariance, k = 1..K, one for each class of coordinates.

    Coordinate i of d has an eigenvalue ∝ (i/d)^(−a), replaced within each class by its smallest value: with fractions
    w_k, γ_k ∝ u_k^(−a) at u_k = w_1 + … + w_k.

    Parameters
    ----------
    exponent : a ≥ 0.
    n_classes : K; with equal fractions the largest eigenvalue is K^a times the smallest. Ignored if `weight` is given.
    weight : (K,) fractions of the coordinates in each class; equal if not given.
    variance : tr Σ/d, to which the eigenvalues are scaled.

    Returns
    -------
    CoordinateClasses with values (K,) in decreasing order, for `coordinate_law`.

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if `exponent` is negative, or so large that an eigenvalue overflows; `variance` is not positive;
        `n_classes` is below 1; or `weight` is not positive or does not add to 1.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> ga.power_law_spectrum(1.0, n_classes=2).values.round(4).tolist()
    [0.3333, 0.1667]
    """
    exponent = check.real("exponent", exponent, low=0)
    variance = check.real("variance", variance, low=0, high=MAX_ROOT, strict=True)
    K = check.integer("n_classes", n_classes, low=1) if weight is None else len(check.array("weight", weight, ("K",)))
    check.require_memory("n_classes", K)
    weight = np.full(K, 1 / K) if weight is None else check.fractions("weight", weight, K)
    with np.errstate(over="ignore"):
        values = np.cumsum(weight) ** -exponent
    if not np.isfinite(values).all():
        raise check.fail("exponent", exponent, "a value for which no eigenvalue overflows the range of doubles")
    return CoordinateClasses(values * variance / (weight @ values), weight)


def sign_positions(n_tokens: int = 2, size: float = 1.0) -> CoordinateClasses:
    """Return positions with independent random signs, τ_l^i = ±size.

    Parameters
    ----------
    n_tokens : L, at most 10.
    size : absolute value of τ, at least 0.

    Returns
    -------
    CoordinateClasses with all 2^L sign patterns, values (2^L, L), in equal fractions.

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if `n_tokens` is not in 1..10, or `size` is negative.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> ga.sign_positions(2).values.tolist()
    [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]
    """
    L, size = check.integer("n_tokens", n_tokens, low=1), check.real("size", size, low=0, high=MAX_ROOT)
    max_tokens = 10  # the number of classes, 2^L, is then at most 1024
    if max_tokens < L:
        raise check.fail("n_tokens", L, f"at most {max_tokens}, because there are 2^L classes of coordinates")
    return CoordinateClasses(size * np.array(list(product((1.0, -1.0), repeat=L))), np.full(2**L, 0.5**L))


def subset_positions(tau: ArrayLike, fraction: float) -> CoordinateClasses:
    """Return positions τ_l/√fraction on some of the coordinates and 0 on the others; ‖p_l‖ is unchanged.

    Parameters
    ----------
    tau : (L,) positions that would be on all coordinates.
    fraction : fraction of the coordinates with positions, in (0, 1].

    Returns
    -------
    CoordinateClasses with values (2, L), or (1, L) if `fraction` is 1.

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if `tau` is not of shape (L,), or `fraction` is not in (0, 1].

    Examples
    --------
    >>> import gamp_attention as ga
    >>> positions = ga.subset_positions([1, -1], fraction=0.25)
    >>> positions.values.tolist(), positions.weight.tolist()
    ([[2.0, -2.0], [0.0, 0.0]], [0.25, 0.75])
    """
    tau, fraction = check.array("tau", tau, ("L",)), check.real("fraction", fraction, low=0, high=1, strict=True)
    return _on_fraction(tau / np.sqrt(fraction), fraction)


def sparse_teacher(fraction: float, teacher_rank: int = 1, variance: float = 1.0) -> CoordinateClasses:
    """Return teacher rows N(0, variance·1) on a fraction of the coordinates and zero on the others.

    Parameters
    ----------
    fraction : fraction of the coordinates with nonzero teacher weights, in (0, 1].
    teacher_rank : t, columns of the teacher.
    variance : variance of the nonzero entries.

    Returns
    -------
    CoordinateClasses whose values are covariances (2, t, t), or (1, t, t) if `fraction` is 1.

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if `fraction` is not in (0, 1], `teacher_rank` is below 1, or `variance` is negative.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> teacher = ga.sparse_teacher(0.1)
    >>> teacher.values.tolist(), teacher.weight.tolist()
    ([[[1.0]], [[0.0]]], [0.1, 0.9])
    """
    fraction = check.real("fraction", fraction, low=0, high=1, strict=True)
    t = check.integer("teacher_rank", teacher_rank, low=1)
    check.require_memory("teacher_rank", t, t)
    covariance = check.real("variance", variance, low=0, high=MAX_ROOT) * np.eye(t)
    return _on_fraction(covariance, fraction)


def _on_fraction(value: np.ndarray, fraction: float) -> CoordinateClasses:
    values, weight = np.stack([value, np.zeros_like(value)]), np.array([fraction, 1 - fraction])
    return CoordinateClasses(values[weight > 0], weight[weight > 0])


def value_classes(name: str, given: Any, *shapes: tuple[int, ...]) -> CoordinateClasses:
    """Return `given` as classes: one value of one of the `shapes`, an array of equally frequent values, or classes."""
    owner, weight = name, None
    if isinstance(given, CoordinateClasses):
        name, (given, weight) = f"{name}.values", given
    ndim = check.ndim(name, given)
    single = weight is None and ndim == len(shapes[0])
    shape = next((shape for shape in shapes if ndim == len(shape) + 1), shapes[0])
    values = check_squarable(name, given, shape if single else ("K", *shape))
    values = values[None] if single else values
    K = len(values)
    return CoordinateClasses(
        values, np.full(K, 1 / K) if weight is None else check.fractions(f"{owner}.weight", weight, K)
    )


@dataclass(frozen=True, eq=False)
class CoordinateLaw(DisplayMixin):
    """Joint distribution ν of covariances, positions and teacher weights over the coordinates of R^d, as K classes.

    This is the ν of equation (5). In class k every coordinate has covariance eigenvalues γ_l and positions
    τ_l = √d p_l, and a Gaussian teacher row π ~ N(mean, covariance).

    Attributes
    ----------
    weight : (K,) fractions of the coordinates in each class; they add to 1.
    gamma : (K, L) eigenvalues of Σ_l in the common basis, at least 0.
    tau : (K, L) √d times the coordinate of p_l.
    teacher_mean, teacher_cov : (K, t) and (K, t, t), mean and covariance of the rows of Q*.
    spikes : (L, t) coefficients a_l of means Q* a_l/√d along the teacher's columns, which are added to the means of the
        tokens, so that the row of all means is τ_l + π·a_l; None if there are none. Only in models with classes.

    Raises
    ------
    TypeError : if a field is not an array of real numbers.
    ValueError : if shapes do not match; `weight` is not positive or does not add to 1; `gamma` has a negative entry or
        a column of zeros; or a matrix of `teacher_cov` is not symmetric positive semi-definite.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> law = ga.CoordinateLaw(
    ...     weight=[0.5, 0.5],
    ...     gamma=[[0.1, 0.1], [0.4, 0.4]],
    ...     tau=[[1, -1], [-1, 1]],
    ...     teacher_mean=np.zeros((2, 1)),
    ...     teacher_cov=np.ones((2, 1, 1)),
    ... )
    >>> law.trace.round(12).tolist(), law.rho.round(12).ravel().tolist()
    ([0.25, 0.25], [0.25, 0.25])
    """

    weight: np.ndarray
    gamma: np.ndarray
    tau: np.ndarray
    teacher_mean: np.ndarray
    teacher_cov: np.ndarray
    spikes: np.ndarray | None = field(default=None, kw_only=True, metadata={"later": True})

    @guard_call
    def __post_init__(self) -> None:
        gamma = check_squarable("gamma", self.gamma, ("K", "L"))
        K, L = gamma.shape
        mean = check_squarable("teacher_mean", self.teacher_mean, (K, "t"))
        checked = {
            "gamma": gamma,
            "teacher_mean": mean,
            "weight": check.fractions("weight", self.weight, K),
            "tau": check_squarable("tau", self.tau, (K, L)),
            "teacher_cov": check_squarable("teacher_cov", self.teacher_cov, (K, mean.shape[1], mean.shape[1])),
        }
        if self.spikes is not None:
            checked["spikes"] = check_squarable("spikes", self.spikes, (L, mean.shape[1]))
        for name, values in checked.items():
            object.__setattr__(self, name, np.array(values))  # a copy, which the caller cannot change
        if (self.gamma < 0).any():
            raise check.fail("gamma", float(self.gamma.min()), "eigenvalues of positive semi-definite Σ_l, at least 0")
        if (self.trace <= 0).any():
            raise check.fail("gamma", self.gamma, "a positive trace of every Σ_l: no column of zeros")
        _covariances("teacher_cov", self.teacher_cov)

    @cached_property
    def trace(self) -> np.ndarray:
        """Normalized traces tr Σ_l / d, of shape (L,)."""
        return self.weight @ self.gamma

    @cached_property
    def mean(self) -> np.ndarray:
        """Means of (τ, π) in each class, of shape (K, L + t); τ includes spikes π·a."""
        return np.concatenate([self.means_of(self.teacher_mean), self.teacher_mean], axis=1)

    @cached_property
    def covariance(self) -> np.ndarray:
        """Covariances of (τ, π) in each class, of shape (K, L + t, L + t)."""
        L, t = self.tau.shape[1], self.teacher_mean.shape[1]
        on_teacher = np.concatenate([np.zeros((L, t)) if self.spikes is None else self.spikes, np.eye(t)])
        return on_teacher @ self.teacher_cov @ on_teacher.T

    @cached_property
    def moments(self) -> np.ndarray:
        """Second moments E[(τ, π)(τ, π)ᵀ] in each class, of shape (K, L + t, L + t)."""
        return self.mean[:, :, None] * self.mean[:, None, :] + self.covariance

    def means_of(self, pi: np.ndarray, k: Any = slice(None)) -> np.ndarray:
        """Return τ + π·a (N, L), the means of the tokens times √d, in coordinates of classes k with teacher rows pi."""
        return self.tau[k] if self.spikes is None else self.tau[k] + pi @ self.spikes.T

    @cached_property
    def rho(self) -> np.ndarray:
        """Teacher overlaps ρ_l = Q*ᵀ Σ_l Q* / d, of shape (L, t, t)."""
        L = self.tau.shape[1]
        return np.einsum("k,kl,kst->lst", self.weight, self.gamma, self.moments[:, L:, L:])


def require_law(coordinates: Any) -> CoordinateLaw:
    """Return the argument if it is a CoordinateLaw; raise TypeError if not."""
    if not isinstance(coordinates, CoordinateLaw):
        raise check.fail("coordinates", coordinates, "a CoordinateLaw", TypeError)
    return coordinates


def coordinate_law(
    spectra: ArrayLike | CoordinateClasses = 0.25,
    tau: ArrayLike | CoordinateClasses | None = None,
    teacher: ArrayLike | CoordinateClasses | None = None,
    *,
    n_tokens: int = 2,
    teacher_rank: int = 1,
) -> CoordinateLaw:
    """Return the distribution of coordinates in which covariances, positions and teacher weights are independent.

    Each of the three is an array of equally frequent values, or `CoordinateClasses` with other fractions; the result
    has a class for every combination. If they are dependent, build a `CoordinateLaw` or use `law_from_samples`.

    Parameters
    ----------
    spectra : eigenvalues of Σ_l: a number, (K,) common to all tokens, or (K, L) in a common basis.
    tau : (L,) or (J, L) positions τ = √d p; evenly spaced from 1 to −1, the same in all coordinates, if not given.
    teacher : (t, t) or (J, t, t) covariances of the rows of Q*, Gaussian of mean zero; the identity if not given.
    n_tokens, teacher_rank : number of tokens L and of teacher columns t.

    Returns
    -------
    CoordinateLaw

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if `n_tokens` or `teacher_rank` is below 1; `spectra` has a negative value or only zeros for a token;
        `teacher` has a matrix that is not symmetric positive semi-definite; or a shape does not match L or t.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> law = ga.coordinate_law(ga.power_law_spectrum(1.0, 4), teacher=ga.sparse_teacher(0.5))
    >>> law.gamma.shape, law.trace.round(12).tolist(), law.rho[0].round(12).tolist()
    ((8, 2), [0.25, 0.25], [[0.125]])
    """
    L = check.integer("n_tokens", n_tokens, low=1)
    t = check.integer("teacher_rank", teacher_rank, low=1)
    check.require_memory("n_tokens, teacher_rank", max(L, t), t)
    gamma = value_classes("spectra", spectra, (), (L,))
    if not (gamma.values >= 0).all() or not gamma.values.any(axis=0).all():
        needs = "eigenvalues of positive semi-definite Σ_l: at least 0, with a positive trace of each Σ_l"
        raise check.fail("spectra", gamma.values, needs)
    gamma = gamma._replace(values=np.broadcast_to(gamma.values.reshape(len(gamma.values), -1), (len(gamma.values), L)))
    tau = value_classes("tau", np.linspace(1, -1, L) if tau is None else tau, (L,))
    cov = value_classes("teacher", np.eye(t) if teacher is None else teacher, (t, t))
    _covariances("teacher", cov.values)
    sizes = [len(part.weight) for part in (gamma, tau, cov)]
    k, j, i = np.unravel_index(np.arange(np.prod(sizes)), sizes)
    return CoordinateLaw(
        weight=gamma.weight[k] * tau.weight[j] * cov.weight[i],
        gamma=np.ascontiguousarray(gamma.values[k]),
        tau=tau.values[j],
        teacher_mean=np.zeros((len(k), t)),
        teacher_cov=cov.values[i],
    )


def _covariances(name: str, value: np.ndarray) -> None:
    symmetric = np.allclose(value, np.swapaxes(value, 1, 2), rtol=1e-10, atol=1e-12)
    if not symmetric or np.linalg.eigvalsh(value).min() < -1e-12:
        raise check.fail(name, value, "symmetric positive semi-definite matrices")


@dataclass(frozen=True, eq=False)
class SampledLaw(CoordinateLaw):
    """Distribution of coordinates from samples, with the error of binning them into classes.

    Attributes
    ----------
    gamma_spread, tau_spread : (L,) binning error: root mean square distance of γ_l and τ_l from the means of their
        classes, divided by the root mean square of γ_l and τ_l; zero, up to rounding, if nothing was binned. Means of
        γ, τ, π and π πᵀ within classes are exact, so errors of overlaps are of second order in the spreads if there are
        no correlations within classes.
    """

    gamma_spread: np.ndarray
    tau_spread: np.ndarray


@guard_call
def law_from_samples(gamma: ArrayLike, tau: ArrayLike, pi: ArrayLike, n_classes: int | None = None) -> SampledLaw:
    """Return the distribution ν of equation (5) of d given coordinates, e.g. of one instance of data.

    Coordinates of one class have the same γ and τ, and their teacher rows are replaced by a Gaussian of the same mean
    and covariance. With the ridge penalty only these moments matter. Unless coordinates are binned, a class never
    contains both zero and nonzero teacher rows.

    Parameters
    ----------
    gamma : (d, L) eigenvalues of Σ_l along the coordinates.
    tau : (d, L) positions √d p_l.
    pi : (d, t) rows of Q*.
    n_classes : maximum number of classes. If there are more distinct coordinates, they are binned by repeatedly cutting
        the widest bin in two. If not given, coordinates with equal (γ, τ) form a class, and there may be d classes.

    Returns
    -------
    SampledLaw, with the binning error.

    Raises
    ------
    TypeError : if an argument is not an array of real numbers, or `n_classes` not an integer.
    ValueError : if shapes do not match, `gamma` has a negative entry or a column of zeros, or `n_classes` is below 1.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> law = ga.law_from_samples(np.full((4, 2), 0.25), [[1, -1], [1, -1], [1, -1], [-1, 1]], np.ones((4, 1)))
    >>> law.weight.tolist(), law.tau.tolist()
    ([0.25, 0.75], [[-1.0, 1.0], [1.0, -1.0]])
    """
    gamma = check_squarable("gamma", gamma, ("d", "L"))
    tau = check_squarable("tau", tau, gamma.shape)
    pi = check_squarable("pi", pi, (len(gamma), "t"))
    if (gamma < 0).any() or not gamma.any(axis=0).all():
        raise check.fail(
            "gamma", gamma, "eigenvalues of positive semi-definite Σ_l: at least 0, with a positive trace of each Σ_l"
        )
    keys = np.column_stack([gamma, tau, pi.any(axis=1)])
    _, first, group, counts = np.unique(
        keys.round(12), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    max_classes = len(counts) if n_classes is None else check.integer("n_classes", n_classes, low=1)
    binned = max_classes < len(counts)
    if binned:
        group = _assign_bins(np.column_stack([gamma, tau]), max_classes)
        counts = np.bincount(group)

    def mean(values: np.ndarray) -> np.ndarray:
        total = np.zeros((len(counts), *values.shape[1:]))
        np.add.at(total, group, values)
        return total / counts.reshape(-1, *(1 for _ in values.shape[1:]))

    def spread(values: np.ndarray, means: np.ndarray) -> np.ndarray:
        scale = np.sqrt((values**2).mean(axis=0))
        return np.sqrt(((values - means[group]) ** 2).mean(axis=0)) / np.maximum(scale, 1e-300)

    gammas, taus = (mean(gamma), mean(tau)) if binned else (gamma[first], tau[first])
    pis = mean(pi)
    deviations = pi - pis[group]
    return SampledLaw(
        weight=counts / len(gamma), gamma=gammas, tau=taus, teacher_mean=pis,
        teacher_cov=mean(deviations[:, :, None] * deviations[:, None, :]), gamma_spread=spread(gamma, gammas),
        tau_spread=spread(tau, taus),
    )  # fmt: skip


def _assign_bins(points: np.ndarray, n_classes: int) -> np.ndarray:
    """Return bin labels (d,) of points (d, k).

    The bin with the largest sum of squares about its mean is cut in two, at the mean of the column that contributes
    most, until there are n_classes bins or all points within each bin are equal. Columns are divided by their standard
    deviation first.
    """
    scale = points.std(axis=0)
    points = points / np.where(scale > 1e-12 * (np.abs(points).max(axis=0) + 1e-300), scale, np.inf)
    label = np.zeros(len(points), dtype=int)

    def squares(bin_number: int) -> np.ndarray:
        inside = points[label == bin_number]
        return ((inside - inside.mean(axis=0)) ** 2).sum(axis=0)

    inner = [squares(0)]
    while len(inner) < n_classes:
        widest = int(np.argmax([column_squares.sum() for column_squares in inner]))
        if inner[widest].sum() <= 1e-18 * len(points):
            break
        column = points[:, int(np.argmax(inner[widest]))]
        inside = label == widest
        label[inside & (column > column[inside].mean())] = len(inner)
        inner[widest] = squares(widest)
        inner.append(squares(len(inner)))
    return label


def isotropic_law(
    n_tokens: int, teacher_rank: int, sigma: ArrayLike | None = None, tau: ArrayLike | None = None
) -> CoordinateLaw:
    """Return Gaussian tokens of variances σ_l² (default 0.5²), positions τ_l 1_d/√d and Gaussian teacher weights."""
    L = n_tokens
    sigma = 0.5 if sigma is None else sigma
    sigma = check.standard_deviations("sigma", np.full(L, sigma) if check.ndim("sigma", sigma) == 0 else sigma, (L,))
    tau = None if tau is None else check.array("tau", tau, (L,))
    return coordinate_law(sigma[None] ** 2, tau, n_tokens=L, teacher_rank=teacher_rank)
