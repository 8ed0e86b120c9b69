"""Losses that a class gives by a few small methods: those of `gamp_attention.losses.glm`, and users'.

A loss is a NamedTuple with

- `value(self, p, z)`: ℓ at fields z (L, r) of a sample whose labels are p (P,);

and, if it likes,

- `derivatives(self, p, z, grad, hess)`: the value again, filling the gradient (L r,) and Hessian (L r, L r) in the
  fields in row-major order; central differences of the value if not given;
- `floor(self, p)`: a lower bound of ℓ; asked for unless the loss is convex;
- `curvature(self, p, n_fields, radius)`: a lower bound of the Hessian's eigenvalues on ‖z‖ <= radius, with L r fields,
  which saves searches;
- `torch(self, p, z)`: the losses (n,) for tensors p (n, P) and z (n, L, r), for `minimize_risk`;
- `convex`, `even` (ℓ(−z) = ℓ(z)), `rotations` (ℓ(zO) = ℓ(z)): whether these hold, False if not given. `convex` is
  compiled in, so it is True or False for the class, not a property.

Its first use in a model or dataset checks it. It stands wherever an attention map does.

Gradient and Hessian of a loss by central differences of fourth order, for losses that are given by values alone.

With steps h, errors are of order h⁴ beside rounding of order ε/h and ε/h²: about 1e-12 and 1e-9 of the loss. The
Hessian steers Newton steps and gives the Onsager term; where the iteration ends is decided by the gradient alone.

Losses of many samples with their derivatives in the fields.
"""

from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core.compiled import inline_kernel, is_instance, kernel, over_blocks, overload
from gamp_attention._core.user_code import Registry
from gamp_attention.losses.attention import (
    AttentionLoss,
    differentiate,
    loss_derivatives,
    loss_gradient,
    loss_value,
    make_work,
)
from gamp_attention.losses.bounds import curvature_floor, loss_floor
from gamp_attention.losses.indirect import IndirectLoss, as_indirect


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


LOSSES = Registry(
    "register_loss",
    needed=("value(self, p, z)",),
    optional=("derivatives", "floor", "curvature"),
    traits={"convex": False, "even": False, "rotations": False, "parts": 1},
    compiled_in=("convex",),
)


class PointLoss(NamedTuple):
    """A registered loss at fields of n_tokens times rank; what kernels are called with."""

    loss: Any
    n_tokens: int
    rank: int

    @property
    def n_fields(self) -> int:
        """Number of local fields per sample, L r."""
        return self.n_tokens * self.rank

    def torch(self, params: Any, z: Any) -> Any:
        """Losses (n,) of tensors."""
        if not hasattr(self.loss, "torch"):
            raise TypeError(
                f"data: minimize_risk needs a loss with a method torch(self, p, z), got {type(self.loss).__name__}"
            )
        return self.loss.torch(params, z)


class WeightedLoss(NamedTuple):
    """w ℓ(z; p) for a registered loss ℓ and a weight w > 0 of each sample, the last entry of its row of parameters."""

    point: PointLoss

    @property
    def n_tokens(self) -> int:
        """Tokens per sample L."""
        return self.point.n_tokens

    @property
    def rank(self) -> int:
        """Columns r of the weights."""
        return self.point.rank

    @property
    def n_fields(self) -> int:
        """Number of local fields per sample, L r."""
        return self.point.n_fields

    def torch(self, params: Any, z: Any) -> Any:
        """Losses (n,) of tensors."""
        return params[:, -1] * self.point.torch(params[:, :-1], z)


def for_kernels(loss: Any) -> Any:
    """A loss as kernels are given it: a registered one as a IndirectLoss, so that they are compiled once for all."""
    return as_indirect(loss) if isinstance(loss, PointLoss | WeightedLoss) else loss


@overload(make_work, counted=True)
def _make_work(loss):
    nothing = any(is_instance(loss, cls) for cls in (PointLoss, WeightedLoss, IndirectLoss))
    return (lambda loss: 0) if nothing else None


@overload(loss_value)
def _loss_value(loss, p, z, work):
    if is_instance(loss, WeightedLoss):
        return lambda loss, p, z, work: p[-1] * loss_value(loss.point, p[:-1], z, work)
    if not is_instance(loss, PointLoss):
        return None
    value = LOSSES.method(loss.types[0], "value")
    return lambda loss, p, z, work: value(loss.loss, p, z.reshape((loss.n_tokens, loss.rank)))


@overload(loss_derivatives)
def _loss_derivatives(loss, p, z, grad, hess, work):
    if is_instance(loss, WeightedLoss):

        def weighted_derivatives(loss, p, z, grad, hess, work):
            weight = p[-1]
            value = loss_derivatives(loss.point, p[:-1], z, grad, hess, work)
            for i in range(grad.shape[0]):
                grad[i] *= weight
                for j in range(grad.shape[0]):
                    hess[i, j] *= weight
            return weight * value

        return weighted_derivatives
    if not is_instance(loss, PointLoss):
        return None
    derivatives = LOSSES.method(loss.types[0], "derivatives")
    if derivatives is None:
        return difference_derivatives

    def point_derivatives(loss, p, z, grad, hess, work):
        return derivatives(loss.loss, p, z.reshape((loss.n_tokens, loss.rank)), grad, hess)

    return point_derivatives


@overload(loss_gradient)
def _loss_gradient(loss, p, z, grad, hess, work):
    if is_instance(loss, AttentionLoss):
        return None
    if is_instance(loss, WeightedLoss):

        def weighted_gradient(loss, p, z, grad, hess, work):
            weight = p[-1]
            value = loss_gradient(loss.point, p[:-1], z, grad, hess, work)
            for i in range(grad.shape[0]):
                grad[i] *= weight
            return weight * value

        return weighted_gradient
    if is_instance(loss, PointLoss) and LOSSES.method(loss.types[0], "derivatives") is None:
        return difference_gradient
    return lambda loss, p, z, grad, hess, work: loss_derivatives(loss, p, z, grad, hess, work)


@overload(loss_floor)
def _loss_floor(loss, p, work):
    if is_instance(loss, WeightedLoss):
        return lambda loss, p, work: p[-1] * loss_floor(loss.point, p[:-1], work)
    if not is_instance(loss, PointLoss):
        return None
    floor = LOSSES.method(loss.types[0], "floor")
    return (lambda loss, p, work: floor(loss.loss, p)) if floor else (lambda loss, p, work: -np.inf)


@overload(curvature_floor)
def _curvature_floor(loss, p, radius):
    if is_instance(loss, WeightedLoss):
        return lambda loss, p, radius: p[-1] * curvature_floor(loss.point, p[:-1], radius)
    if not is_instance(loss, PointLoss):
        return None
    if loss.types[0].instance_class.convex:
        return lambda loss, p, radius: 0.0
    curvature = LOSSES.method(loss.types[0], "curvature")
    if curvature is None:
        return lambda loss, p, radius: -np.inf
    return lambda loss, p, radius: curvature(loss.loss, p, loss.n_tokens * loss.rank, radius)


BLOCK = 1e8  # operations on a block of samples, between which a run can be interrupted


@kernel
def _derivatives(first, last, loss, params, z, value, grad, hess):
    work = make_work(loss)
    for mu in range(first, last):
        value[mu] = differentiate(loss, params[mu], z[mu], grad[mu], hess[mu], work)


def sample_derivatives(loss: Any, params: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ℓ (n,), ∇ℓ (n, L, r) and ∇²ℓ (n, L r, L r) at fields z (n, L, r)."""
    n, L, r = z.shape
    loss, params = for_kernels(loss), np.ascontiguousarray(params, dtype=float)
    flat = np.ascontiguousarray(z).reshape(n, L * r)
    value, grad, hess = np.empty(n), np.empty((n, L * r)), np.empty((n, L * r, L * r))
    block = max(1, min(1024, int(BLOCK / (L**3 * (r * r + 2)))))
    over_blocks(lambda first, last: _derivatives(first, last, loss, params, flat, value, grad, hess), n, block)
    return value, grad.reshape(n, L, r), hess
