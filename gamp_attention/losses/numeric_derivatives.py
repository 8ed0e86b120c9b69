"""Gradient and Hessian of a loss by central differences of fourth order, for losses that are given by values alone.

With steps h, errors are of order h⁴ beside rounding of order ε/h and ε/h²: about 1e-12 and 1e-9 of the loss. The
Hessian steers Newton steps and gives the Onsager term; where the iteration ends is decided by the gradient alone.
"""

from typing import NamedTuple

from gamp_attention._core.compiled import inline_kernel
from gamp_attention.losses.attention import loss_value


class DifferenceSettings(NamedTuple):
    """Steps in units of the field, at least 1, that balance the two errors."""

    slope: float = 5e-4  # of the gradient
    curvature: float = 4e-3  # of the Hessian


DIFFERENCES = DifferenceSettings()


@inline_kernel
def _moved(loss, p, z, work, i, a, j, b):
    """ℓ with z_i moved by a and z_j by b; z is left as it was."""
    zi, zj = z[i], z[j]
    z[i] += a
    z[j] += b
    value = loss_value(loss, p, z, work)
    z[i], z[j] = zi, zj
    return value


@inline_kernel
def _difference_slope(loss, p, z, work, i):
    """∂ℓ/∂z_i."""
    h = DIFFERENCES.slope * max(1.0, abs(z[i]))
    near = _moved(loss, p, z, work, i, h, i, 0.0) - _moved(loss, p, z, work, i, -h, i, 0.0)
    far = _moved(loss, p, z, work, i, 2 * h, i, 0.0) - _moved(loss, p, z, work, i, -2 * h, i, 0.0)
    return (8 * near - far) / (12 * h)


@inline_kernel
def difference_gradient(loss, p, z, grad, hess, work):
    """ℓ(z), filling its gradient (k,); hess is not used."""
    for i in range(z.shape[0]):
        grad[i] = _difference_slope(loss, p, z, work, i)
    return loss_value(loss, p, z, work)


@inline_kernel
def difference_derivatives(loss, p, z, grad, hess, work):
    """ℓ(z), filling its gradient (k,) and Hessian (k, k)."""
    here = loss_value(loss, p, z, work)
    k = z.shape[0]
    for i in range(k):
        grad[i] = _difference_slope(loss, p, z, work, i)
        h = DIFFERENCES.curvature * max(1.0, abs(z[i]))
        near = _moved(loss, p, z, work, i, h, i, 0.0) + _moved(loss, p, z, work, i, -h, i, 0.0)
        far = _moved(loss, p, z, work, i, 2 * h, i, 0.0) + _moved(loss, p, z, work, i, -2 * h, i, 0.0)
        hess[i, i] = (16 * near - far - 30 * here) / (12 * h * h)
        for j in range(i):
            e = DIFFERENCES.curvature * max(1.0, abs(z[j]))
            fine, coarse = 0.0, 0.0
            for s in (-1.0, 1.0):
                fine += _moved(loss, p, z, work, i, s * h, j, s * e) - _moved(loss, p, z, work, i, s * h, j, -s * e)
                coarse += _moved(loss, p, z, work, i, 2 * s * h, j, 2 * s * e)
                coarse -= _moved(loss, p, z, work, i, 2 * s * h, j, -2 * s * e)
            hess[i, j] = (16 * fine - coarse) / (48 * h * e)
            hess[j, i] = hess[i, j]
    return here
