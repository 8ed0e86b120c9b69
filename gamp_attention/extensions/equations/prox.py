"""The proximal map of a loss of one field, for arrays."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.numerics import guard_call
from gamp_attention.extensions.sequence.sequence_labels import UserFunction
from gamp_attention.extensions.sequence.sequence_loss import SequenceSpec, sequence_loss
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.problem.losses.point import PointLoss
from gamp_attention.problem.students import require_loss


@guard_call
def prox(
    loss: Any, omega: ArrayLike, V: ArrayLike, *parameters: ArrayLike, convex: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return the proximal map z = argmin (z − ω)²/(2V) + ℓ(z) of a loss of one field, and its derivative ∂z/∂ω.

    Eq. :eq:`prox`. Losses may have kinks, where ∂z/∂ω = 0, and several minima, of which z is the lowest,
    unless its well is narrower than about 0.3 or, for large V, far from z = 0.

    Parameters
    ----------
    loss : registered loss or a loss of the package; or a function of z and the parameters that returns a number ≥ 0,
        which is traced and compiled, as by `sequence_model`.
    omega, V : arrays of any shapes that can be broadcast, V > 0. Different values of V take separate calls.
    *parameters : parameters of the loss, such as labels, in the order of `p[0]`, `p[1]`, …; broadcast as well.
    convex : True if a function `loss` is convex in z, so that no search for a lower minimum is needed.

    Returns
    -------
    z, dz : arrays of the common shape; NaN where no minimum was found.

    Raises
    ------
    TypeError, ValueError : if `loss` is neither, an argument is not an array of finite numbers, or V is not positive.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> z, dz = ga.prox(lambda z, y: abs(z - y), [0.5, 3.0], 1.0, 0.0)
    >>> z.round(9).tolist(), dz.round(9).tolist()
    ([0.0, 2.0], [0.0, 1.0])
    """
    names = ["omega", "V", *(f"parameters[{k}]" for k in range(len(parameters)))]
    values = [check.read_array(value) for value in (omega, V, *parameters)]
    for name, value in zip(names, values, strict=True):
        if value.dtype.kind not in "iuf":
            raise check.fail(name, value, "an array of numbers", TypeError)
        check.require_finite(name, value)
    try:
        arrays = np.broadcast_arrays(*values)
    except ValueError:
        got = ", ".join(f"{name} {value.shape}" for name, value in zip(names, values, strict=True))
        raise check.fail_words("omega", got, "shapes that can be broadcast") from None
    shape, (centers, widths, *columns) = arrays[0].shape, [np.ravel(array).astype(float) for array in arrays]
    if not (widths > 0).all():
        raise check.fail("V", float(widths.min()), "numbers > 0")
    p = np.column_stack(columns) if columns else np.zeros((len(centers), 1))
    student = PointLoss(compile_loss(loss, p[:, : len(columns)], check.flag("convex", convex)), 1, 1)
    z, dz = np.empty((2, len(centers)))
    for width in np.unique(widths):
        rows = np.flatnonzero(widths == width)
        out = denoise(student, p[rows], centers[rows, None, None], np.full((1, 1, 1), width))
        z[rows] = np.where(out.solved, out.z[:, 0, 0], np.nan)
        dz[rows] = np.where(out.solved, 1 - width * out.response[:, 0, 0, 0], np.nan)
    return z.reshape(shape), dz.reshape(shape)


def compile_loss(loss: Any, rows: np.ndarray, convex: bool) -> Any:
    """Return the registered loss of a function of z and n parameters; a registered loss is returned as it is.

    A function is checked at the rows (N, n) of parameters with the smallest, median and largest first parameter.
    """
    if not callable(loss) or hasattr(loss, "value"):
        return require_loss(loss)
    n = rows.shape[1]
    tried = rows[np.argsort(rows[:, 0])[[0, len(rows) // 2, -1]]] if rows.size else rows[:0]
    return _compile_function(loss, n, convex, tuple(map(tuple, tried.tolist())))


@lru_cache(maxsize=64)
def _compile_function(loss: Any, n: int, convex: bool, tried: tuple[tuple[float, ...], ...]) -> Any:
    """Return the registered loss of a function of z and n parameters, which is checked at the parameters `tried`."""
    size, values = max(n, 1), {"p": np.array(tried)} if tried else {}
    shapes = {"p": (size,), "z": (1, 1)}
    function = UserFunction("loss", lambda p, z: loss(z[0, 0], *p[:n]), shapes, "(P,)", "(1, 1)", tried=values)
    if (got := function.probe()) != ():
        raise function.error("to return one number", f"an array of shape {got}", TypeError)
    spec = SequenceSpec(function.trace(), (size,), 1, 1, 0.0 if convex else -np.inf, convex, False, False)
    return sequence_loss(spec)
