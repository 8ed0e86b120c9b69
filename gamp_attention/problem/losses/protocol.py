"""Protocol of per-sample losses ℓ(z; p): the functions that compiled code calls, whatever the loss.

A loss is a NamedTuple. Numba selects the code of the following functions by its type: the code of attention layers is
in `gamp_attention.problem.losses.attention`, `heads` and `registration`, and the code of registered losses in `point`.
The fields z (L, r) of a sample are flat, with z[l * r + a], and p (P,) are the parameters of the sample.

- `make_work(loss)` returns scratch for the other functions, or 0 if they need none.
- `loss_value(loss, p, z, work)` returns ℓ(z).
- `loss_derivatives(loss, p, z, grad, hess, work, second)` returns ℓ(z) and fills its gradient, and its Hessian if
  `second` is True; if not, hess is scratch.
- `loss_floor(loss, p, work)` returns a lower bound of ℓ over all z.
- `loss_curvature(loss, p, center, reach)` returns a lower bound of the eigenvalues of ∇²ℓ on ‖z − center‖ ≤ reach.

A loss without a bound returns −inf. In Python, a loss has the attributes `n_tokens`, `rank` and `n_fields`, `n_params`
(the number P, or None if any number is possible), `is_indirect` (whether kernels call it through a table, see
`gamp_attention.problem.losses.indirect`), `by_differences` (whether derivatives may be central differences of values),
and the method `torch(params, z)`.
"""

import numpy as np
from numba.core.types import boolean, float64, int64

from gamp_attention._kernels.compiled import dispatch_on_type, inline_kernel
from gamp_attention._kernels.pointers import load_from
from gamp_attention.problem.losses.indirect import MATRIX, VECTOR, TableSlots, loss_kernel


@dispatch_on_type
def make_work(loss):
    """Return scratch arrays for the other functions. Compiled code only."""


@dispatch_on_type
def loss_value(loss, p, z, work):
    """Return ℓ(z). Compiled code only."""


@dispatch_on_type
def loss_derivatives(loss, p, z, grad, hess, work, second):
    """Return ℓ(z), and fill its gradient and, if `second` is True, its Hessian. Compiled code only."""


@dispatch_on_type
def loss_floor(loss, p, work):
    """Return a lower bound of ℓ over all z. Compiled code only."""


@dispatch_on_type
def loss_curvature(loss, p, center, reach):
    """Return a lower bound of the eigenvalues of ∇²ℓ on a ball around a point. Compiled code only."""


@loss_kernel(TableSlots.DIFFERENTIATE, float64, VECTOR, VECTOR, VECTOR, MATRIX, int64, boolean)
def differentiate(loss, p, z, grad, hess, work, second):
    """Return `loss_derivatives`, compiled once for all calling kernels."""
    return loss_derivatives(load_from(loss), p, z, grad, hess, work, second)


@inline_kernel
def outer_radius(center, reach):
    """Return the radius of the smallest ball around zero that contains a ball around `center`."""
    total = 0.0
    for i in range(center.shape[0]):
        total += center[i] * center[i]
    return np.sqrt(total) + reach
