"""Distributions of coordinates from a few numbers: classes of spectra, positions and teacher weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.numerics import MAX_ROOT, check_squarable, guard_call, raise_spectrum, symmetrize
from gamp_attention.results import add_display
from gamp_attention.theory.models.coordinates import CoordinateLaw, law_from_samples, require_covariances


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
def power_law_spectrum(exponent: float, n_classes: int = 16, *, variance: float = 0.25) -> CoordinateClasses:
    """Return eigenvalues γ_k ∝ k^(−a) of a covariance, k = 1..K, one for each of K equal classes of coordinates.

    Coordinate i of d has an eigenvalue ∝ (i/d)^(−a), replaced within each class by its smallest value.

    Parameters
    ----------
    exponent : a ≥ 0.
    n_classes : K; the largest eigenvalue is K^a times the smallest.
    variance : tr Σ/d, to which the eigenvalues are scaled.

    Returns
    -------
    CoordinateClasses with values (K,) in decreasing order, for `coordinate_law`.

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if `exponent` is negative, or so large that an eigenvalue overflows; `variance` is not positive; or
        `n_classes` is below 1.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> ga.power_law_spectrum(1.0, n_classes=2).values.round(4).tolist()
    [0.3333, 0.1667]
    """
    exponent = check.real("exponent", exponent, low=0)
    variance = check.real("variance", variance, low=0, high=MAX_ROOT, strict=True)
    K = check.integer("n_classes", n_classes, low=1)
    check.require_memory("n_classes", K)
    with np.errstate(over="ignore"):
        values = (np.arange(1, K + 1) / K) ** -exponent
    if not np.isfinite(values).all():
        raise check.fail("exponent", exponent, "a value for which no eigenvalue overflows the range of doubles")
    return CoordinateClasses(values * variance / values.mean(), np.full(K, 1 / K))


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
    weight = np.array([fraction, 1 - fraction])
    return CoordinateClasses(np.stack([covariance, 0 * covariance])[weight > 0], weight[weight > 0])


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


def coordinate_law(
    spectra: ArrayLike | CoordinateClasses | None = None, tau: ArrayLike | CoordinateClasses | None = None,
    teacher: ArrayLike | CoordinateClasses | None = None, *, n_tokens: int | None = None,
    teacher_rank: int | None = None, teacher_covariance: ArrayLike | None = None, cross: ArrayLike | None = None,
    covariance: ArrayLike | None = None,
) -> CoordinateLaw:  # fmt: skip
    """Return the distribution of coordinates in which covariances, positions and teacher weights are independent.

    Each of the three is an array of equally frequent values, or `CoordinateClasses` with other fractions; the result
    has a class for every combination. If they are dependent, build a `CoordinateLaw` or use `law_from_samples`.

    With covariances of features it is the Gaussian covariate model (Loureiro et al., 2021): the teacher has features u,
    and the student features v. The teacher's fields u·θ/√p = v·Q*/√d + e have a linear part, Q* = √(d/p) Ω⁺Φᵀθ with the
    pseudo-inverse Ω⁺, and a part e that is independent of v, of covariance `unseen`. Eq. :eq:`covariates`.

    Parameters
    ----------
    spectra : eigenvalues of Σ_l: a number, (K,) common to all tokens, or (K, L) in a common basis; 0.25 if not given.
    tau : (L,) or (J, L) positions τ = √d p; evenly spaced from 1 to −1, the same in all coordinates, if not given.
    teacher : (t, t) or (J, t, t) covariances of the rows of Q*, Gaussian of mean zero; the identity if not given. With
        covariances of features: the weights θ, (p,) or (p, t).
    n_tokens, teacher_rank : number of tokens L and of teacher columns t; 2 and 1 if not given.
    teacher_covariance, cross, covariance : Ψ = E[u uᵀ] (p, p), Φ = E[u vᵀ] (p, d) and Ω = E[v vᵀ] (d, d) of the
        features of a single token, for `dataclasses.replace(glm_model(loss), coordinates=law)`. The model must have
        a ridge penalty unless Ω is diagonal.

    Returns
    -------
    CoordinateLaw

    Raises
    ------
    TypeError : if an argument has the wrong type, or only some of the arrays of covariances and weights are given.
    ValueError : if `n_tokens` or `teacher_rank` is below 1; `spectra` has a negative value or only zeros for a token;
        `teacher` has a matrix that is not symmetric positive semi-definite, or [[Ψ, Φ], [Φᵀ, Ω]] is not; a shape does
        not match L, t, p or d; or `spectra`, `tau` or an `n_tokens` above 1 is given with covariances of features.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> law = ga.coordinate_law(ga.power_law_spectrum(1.0, 4), teacher=ga.sparse_teacher(0.5))
    >>> law.gamma.shape, law.trace.round(12).tolist(), law.rho[0].round(12).tolist()
    ((8, 2), [0.25, 0.25], [[0.125]])

    The student has the first of two features of correlation 1/2, and the teacher has their sum:

    >>> Psi, theta = [[1.0, 0.5], [0.5, 1.0]], [1.0, 1.0]
    >>> law = ga.coordinate_law(teacher=theta, teacher_covariance=Psi, cross=[[1.0], [0.5]], covariance=[[1.0]])
    >>> law.rho.round(12).tolist(), law.unseen.round(12).tolist()
    ([[[1.5]]], [[0.375]])
    """
    if any(part is not None for part in (teacher_covariance, cross, covariance)):
        law = _covariate_law(teacher, teacher_covariance, cross, covariance)
        sizes = {"n_tokens": (n_tokens, 1), "teacher_rank": (teacher_rank, law.teacher_mean.shape[1])}
        for name, (value, size) in {"spectra": (spectra, None), "tau": (tau, None), **sizes}.items():
            if value is not None and (size is None or check.integer(name, value, low=1) != size):
                raise check.fail(name, value, f"{size or 'no value'} with covariances of features")
        return law
    L = check.integer("n_tokens", 2 if n_tokens is None else n_tokens, low=1)
    t = check.integer("teacher_rank", 1 if teacher_rank is None else teacher_rank, low=1)
    check.require_memory("n_tokens, teacher_rank", max(L, t), t)
    gamma = value_classes("spectra", 0.25 if spectra is None else spectra, (), (L,))
    gamma = gamma._replace(values=np.broadcast_to(gamma.values.reshape(len(gamma.values), -1), (len(gamma.values), L)))
    tau = value_classes("tau", np.linspace(1, -1, L) if tau is None else tau, (L,))
    cov = value_classes("teacher", np.eye(t) if teacher is None else teacher, (t, t))
    k, j, i = np.indices([len(part.weight) for part in (gamma, tau, cov)]).reshape(3, -1)
    weight, mean = gamma.weight[k] * tau.weight[j] * cov.weight[i], np.zeros((len(k), t))
    with check.rename(gamma="spectra", teacher_cov="teacher"):
        return CoordinateLaw(weight, np.ascontiguousarray(gamma.values[k]), tau.values[j], mean, cov.values[i])


def _covariate_law(teacher: Any, teacher_covariance: Any, cross: Any, covariance: Any) -> CoordinateLaw:
    """Return the law of a Gaussian covariate model along the eigenvectors of Ω, see `coordinate_law`."""
    theta = check_squarable("teacher", teacher, ("p",) if check.ndim("teacher", teacher) == 1 else ("p", "t"))
    theta, p = theta.reshape(len(theta), -1), len(theta)
    Psi = check_squarable("teacher_covariance", teacher_covariance, (p, p))
    Phi = check_squarable("cross", cross, (p, "d"))
    d = Phi.shape[1]
    Omega = check_squarable("covariance", covariance, (d, d))
    joint = np.block([[Psi, Phi], [Phi.T, Omega]])
    require_covariances("teacher_covariance, cross, covariance", joint[None])
    rotated = bool((Omega != np.diag(np.diag(Omega))).any())
    gamma, vectors = np.linalg.eigh(Omega) if rotated else (np.diag(Omega), np.eye(d))
    pi = np.sqrt(d / p) * vectors.T @ np.linalg.pinv(Omega, rcond=1e-12, hermitian=True) @ Phi.T @ theta
    unseen = raise_spectrum(symmetrize(theta.T @ Psi @ theta / p - pi.T @ (gamma[:, None] * pi) / d))
    with check.rename(gamma="covariance"):
        law = law_from_samples(gamma.clip(min=0)[:, None], np.zeros((d, 1)), pi)
    return replace(law, unseen=unseen, rotated=rotated)


def isotropic_law(
    n_tokens: int, teacher_rank: int, sigma: ArrayLike | None = None, tau: ArrayLike | None = None
) -> CoordinateLaw:
    """Return Gaussian tokens of variances σ_l² (default 0.5²), positions τ_l 1_d/√d and Gaussian teacher weights."""
    L = n_tokens
    sigma = 0.5 if sigma is None else sigma
    sigma = check.standard_deviations("sigma", np.full(L, sigma) if check.ndim("sigma", sigma) == 0 else sigma, (L,))
    tau = None if tau is None else check.array("tau", tau, (L,))
    return coordinate_law(sigma[None] ** 2, tau, n_tokens=L, teacher_rank=teacher_rank)
