"""Classes of coordinates: values of spectra, positions and teacher weights, from which a CoordinateLaw is built."""

from itertools import product
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.overflow import MAX_ROOT, quiet, squarable
from gamp_attention.results import shown


@shown
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


@quiet
def power_law_spectrum(
    exponent: float, n_classes: int = 16, *, weight: Any = None, variance: float = 0.25
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
    check.fits("n_classes", K)
    weight = np.full(K, 1 / K) if weight is None else class_shares("weight", weight, K)
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


def subset_positions(tau: Any, share: float) -> CoordinateClasses:
    """Return positions τ_l/√share on a fraction `share` of the coordinates and 0 on the others; ‖p_l‖ is unchanged.

    Parameters
    ----------
    tau : (L,) positions that would be on all coordinates.
    share : fraction of the coordinates with positions, in (0, 1].

    Returns
    -------
    CoordinateClasses with values (2, L), or (1, L) if `share` is 1.

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if `tau` is not of shape (L,), or `share` is not in (0, 1].

    Examples
    --------
    >>> import gamp_attention as ga
    >>> positions = ga.subset_positions([1, -1], share=0.25)
    >>> positions.values.tolist(), positions.weight.tolist()
    ([[2.0, -2.0], [0.0, 0.0]], [0.25, 0.75])
    """
    tau, share = check.array("tau", tau, ("L",)), check.real("share", share, low=0, high=1, strict=True)
    return _on_share(tau / np.sqrt(share), share)


def sparse_teacher(share: float, teacher_rank: int = 1, variance: float = 1.0) -> CoordinateClasses:
    """Return teacher rows N(0, variance·1) on a fraction `share` of the coordinates and zero on the others.

    Parameters
    ----------
    share : fraction of the coordinates with nonzero teacher weights, in (0, 1].
    teacher_rank : t, columns of the teacher.
    variance : variance of the nonzero entries.

    Returns
    -------
    CoordinateClasses whose values are covariances (2, t, t), or (1, t, t) if `share` is 1.

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if `share` is not in (0, 1], `teacher_rank` is below 1, or `variance` is negative.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> teacher = ga.sparse_teacher(0.1)
    >>> teacher.values.tolist(), teacher.weight.tolist()
    ([[[1.0]], [[0.0]]], [0.1, 0.9])
    """
    share = check.real("share", share, low=0, high=1, strict=True)
    t = check.integer("teacher_rank", teacher_rank, low=1)
    check.fits("teacher_rank", t, t)
    covariance = check.real("variance", variance, low=0, high=MAX_ROOT) * np.eye(t)
    return _on_share(covariance, share)


def _on_share(value: np.ndarray, share: float) -> CoordinateClasses:
    values, weight = np.stack([value, np.zeros_like(value)]), np.array([share, 1 - share])
    return CoordinateClasses(values[weight > 0], weight[weight > 0])


def value_classes(name: str, given: Any, *shapes: tuple[int, ...]) -> CoordinateClasses:
    """Return `given` as classes: one value of one of the `shapes`, an array of equally frequent values, or classes."""
    weight = None
    if isinstance(given, CoordinateClasses):
        given, weight = given
    ndim = check.ndim(name, given)
    single = weight is None and ndim == len(shapes[0])
    shape = next((shape for shape in shapes if ndim == len(shape) + 1), shapes[0])
    values = squarable(name, given, shape if single else ("K", *shape))
    values = values[None] if single else values
    K = len(values)
    return CoordinateClasses(values, np.full(K, 1 / K) if weight is None else class_shares(f"{name}.weight", weight, K))


def class_shares(name: str, value: Any, K: int) -> np.ndarray:
    """Return the fractions (K,) of the classes; raise ValueError unless they are positive and add to 1."""
    weight = check.array(name, value, (K,))
    if (weight <= 0).any() or abs(weight.sum() - 1) > 1e-12:
        raise check.fail(name, weight, "positive numbers that add to 1, the fractions of the classes")
    return weight
