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
"""

from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core.compiled import is_instance, overload
from gamp_attention._core.user_code import Registry
from gamp_attention.losses.attention import AttentionLoss, loss_derivatives, loss_gradient, loss_value, make_work
from gamp_attention.losses.bounds import curvature_floor, loss_floor
from gamp_attention.losses.called import CalledLoss, called
from gamp_attention.losses.numeric_derivatives import difference_derivatives, difference_gradient

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
    """A loss as kernels are given it: a registered one as a CalledLoss, so that they are compiled once for all."""
    return called(loss) if isinstance(loss, PointLoss | WeightedLoss) else loss


@overload(make_work, counted=True)
def _make_work(loss):
    nothing = any(is_instance(loss, cls) for cls in (PointLoss, WeightedLoss, CalledLoss))
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
