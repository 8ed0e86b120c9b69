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

`register_loss` compiles and checks it; then it stands wherever an attention map does.
"""

from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core.compiled import is_instance, overload
from gamp_attention._core.user_code import Registry
from gamp_attention.losses.attention import loss_derivatives, loss_value, make_work
from gamp_attention.losses.bounds import curvature_floor, loss_floor
from gamp_attention.losses.numeric_derivatives import difference_derivatives

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
                f"minimize_risk: needs a method torch(self, p, z) of {type(self.loss).__name__}, for descent in torch"
            )
        return self.loss.torch(params, z)


class PointWork(NamedTuple):
    """No scratch; a NamedTuple needs a field."""

    nothing: int


def _methods(loss: Any) -> dict[str, Any] | None:
    """Compiled methods of the loss in the numba type of a PointLoss; None for other types."""
    return LOSSES.methods(loss.types[0]) if is_instance(loss, PointLoss) else None


@overload(make_work, counted=True)
def _make_work(loss):
    if is_instance(loss, PointLoss):
        return lambda loss: PointWork(0)
    return None


@overload(loss_value)
def _loss_value(loss, p, z, work):
    methods = _methods(loss)
    if methods is None:
        return None
    value = methods["value"]

    def point_value(loss, p, z, work):
        return value(loss.loss, p, z.reshape((loss.n_tokens, loss.rank)))

    return point_value


@overload(loss_derivatives)
def _loss_derivatives(loss, p, z, grad, hess, work):
    methods = _methods(loss)
    if methods is None:
        return None
    if "derivatives" not in methods:
        return lambda loss, p, z, grad, hess, work: difference_derivatives(loss, p, z, grad, hess, work)
    derivatives = methods["derivatives"]

    def point_derivatives(loss, p, z, grad, hess, work):
        return derivatives(loss.loss, p, z.reshape((loss.n_tokens, loss.rank)), grad, hess)

    return point_derivatives


@overload(loss_floor)
def _loss_floor(loss, p, work):
    methods = _methods(loss)
    if methods is None:
        return None
    if "floor" not in methods:
        return lambda loss, p, work: -np.inf
    floor = methods["floor"]
    return lambda loss, p, work: floor(loss.loss, p)


@overload(curvature_floor)
def _curvature_floor(loss, p, radius):
    methods = _methods(loss)
    if methods is None:
        return None
    if loss.types[0].instance_class.convex:
        return lambda loss, p, radius: 0.0
    if "curvature" not in methods:
        return lambda loss, p, radius: -np.inf
    curvature = methods["curvature"]
    return lambda loss, p, radius: curvature(loss.loss, p, loss.n_tokens * loss.rank, radius)
