"""Classes of coordinates: spectra, positions and teacher weights that a law of coordinates is made of."""

from itertools import product
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.overflow import MAX_ROOT, quiet, squarable
from gamp_attention.results import shown


@shown
class CoordinateClasses(NamedTuple):
    """Values that coordinates take, along the first axis, and the shares of coordinates that take each.

    Attributes
    ----------
    values : (K, …).
    weight : (K,) shares, which add to one.

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
    """Eigenvalues γ_k ∝ k^(−a) of a covariance, k = 1..K, each of a class of coordinates.

    A coordinate of rank u = i/d has an eigenvalue ∝ u^(−a), held constant within each class at its smallest value: with
    shares w_k, γ_k ∝ u_k^(−a) at u_k = w_1 + … + w_k.

    Parameters
    ----------
    exponent : a >= 0.
    n_classes : K; with equal shares the largest eigenvalue is K^a times the smallest.
    weight : (K,) shares of the classes; equal if not given.
    variance : tr Σ/d that the eigenvalues are scaled to.

    Returns
    -------
    CoordinateClasses with values (K,), falling, for `coordinate_law`.

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

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
        raise check.fail("exponent", exponent, "eigenvalues within the range of doubles")
    return CoordinateClasses(values * variance / (weight @ values), weight)


def sign_positions(n_tokens: int = 2, size: float = 1.0) -> CoordinateClasses:
    """Positions with independent random signs, τ_l^i = ±size.

    Parameters
    ----------
    n_tokens : L.
    size : of τ, not negative.

    Returns
    -------
    CoordinateClasses with all patterns (2^L, L), equally likely.

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> ga.sign_positions(2).values.tolist()
    [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]
    """
    L, size = check.integer("n_tokens", n_tokens, low=1), check.real("size", size, low=0, high=MAX_ROOT)
    max_tokens = 10  # of 1024 classes
    if max_tokens < L:
        raise check.fail("n_tokens", L, f"at most {max_tokens}, for 2^L classes of coordinates")
    return CoordinateClasses(size * np.array(list(product((1.0, -1.0), repeat=L))), np.full(2**L, 0.5**L))


def subset_positions(tau: Any, share: float) -> CoordinateClasses:
    """Positions τ_l/√share on a share of the coordinates and zero on the others, so that ‖p_l‖ stays.

    Parameters
    ----------
    tau : (L,) positions on all coordinates.
    share : of the coordinates, in (0, 1].

    Returns
    -------
    CoordinateClasses with values (2, L).

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

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
    """Teacher rows N(0, variance·1) on a share of the coordinates and zero on the others.

    Parameters
    ----------
    share : of the coordinates, in (0, 1].
    teacher_rank : t.
    variance : of the entries that are not zero.

    Returns
    -------
    CoordinateClasses with covariances (2, t, t) for values.

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

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
    """A value of one of the given shapes, or many of them, with equal shares or shares of their own, as classes."""
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
    """The shares (K,) of classes, if they are positive and add to one."""
    weight = check.array(name, value, (K,))
    if (weight <= 0).any() or abs(weight.sum() - 1) > 1e-12:
        raise check.fail(name, weight, "positive numbers that add to 1")
    return weight
