"""Registered losses and attention maps in compiled code.

Both are NamedTuples with a few small methods, from the package or defined by users. A loss must define the method

- `value(self, p, z)`: return ℓ at fields z (L, r) of a sample with labels p (P,).

It may also define

- `derivatives(self, p, z, grad, hess)`: return ℓ, and fill its gradient (L r,) and Hessian (L r, L r) in the fields,
  in row-major order; without this method, derivatives are computed by central differences of the value;
- `floor(self, p)`: return a lower bound of ℓ; required unless the loss is convex;
- `curvature(self, p, n_fields, radius)`: return a lower bound of the eigenvalues of the Hessian on ‖z‖ <= radius, for
  L r = n_fields; such a bound saves searches;
- `torch(self, p, z)`: return losses (n,) for tensors p (n, P) and z (n, L, r), which `minimize_risk` requires;
- `field_size(self, size)`: return the size of fields that fit labels of a given size, from which the unit of weights
  and tolerances follow; without this method, the size of the labels, at most 1 (`bounded_size`);
- `convex`, `even` (ℓ(−z) = ℓ(z)) and `rotations` (ℓ(zO) = ℓ(z)), which are False by default. `convex` is compiled in,
  so it must be True or False for the class; it cannot be a property.

An attention map must define the method

- `attend(self, z, S)`: fill the attention matrix S (L, L) from fields z (L, r).

It may also define

- `torch(self, z)`: return attention matrices (n, L, L) for a tensor of fields (n, L, r); required by `minimize_risk`;
- `bounded`: True if rows of S are positive and add up to 1, which saves searches; it is compiled in, so it must be True
  or False for the class and cannot be a property;
- `even` (S[−z] = S[z]), `rotations` (S[zO] = S[z]) and `parts` (number of weight matrices in the columns of Q).

Derivatives of the loss of its layer are computed by central differences. The methods `value`, `derivatives`, `floor`,
`curvature` and `attend` are compiled by numba. The first use of a loss or map in a model or dataset checks it, see
`gamp_attention.problem.losses.registration`.
"""

from typing import Any, NamedTuple

import numpy as np

from gamp_attention._kernels.compiled import (
    dispatch_on_type,
    inline_kernel,
    is_instance,
    kernel,
    overload,
    plain_kernel,
    sample_kernel,
)
from gamp_attention._kernels.user_code import Registry
from gamp_attention._tools.threads import over_blocks
from gamp_attention.problem.losses.attention import AttentionLoss, attention_floor, is_dot_product_loss, row_loss
from gamp_attention.problem.losses.protocol import (
    IndirectLoss,
    differentiate,
    for_kernels,
    loss_curvature,
    loss_derivatives,
    loss_floor,
    loss_value,
    make_work,
    outer_radius,
    work_size,
)

# Central differences of fourth order have errors of order h⁴, plus rounding errors of order ε/h for the gradient and
# ε/h² for the Hessian. These steps h balance them: the errors are about 1e-12 and 1e-9 of the loss. The Hessian may be
# less accurate, because only the gradient decides when a minimization ends.
SLOPE_STEP = 5e-4  # step for the gradient, in units of the field or of 1 if that is larger
CURVATURE_STEP = 4e-3  # step for the Hessian, in the same units
ROUGH = 1e-15  # fourth difference that rounding can cause, in units of the values
DIFFERENCE_NOISE = 1e-12  # error of a minimizer, relative to its size, by derivatives that are differences
BLOCK = 1e8  # number of operations on a block of samples, between which a run can be interrupted


class DifferenceSettings(NamedTuple):
    """Settings of differences next to kinks, compiled in."""

    preferred: float = 30.0  # ratio of fourth differences above which points on one side of z are better
    kinked: float = 1e-4  # fourth difference, in units of changes of the values, above which both sides have a kink
    shorter: float = 1 / 32  # factor of the step then
    steps: int = 4  # largest number of steps


DIFFERENCES = DifferenceSettings()


@inline_kernel
def _probe(loss, p, z, work, i, a, j, b):
    """Return ℓ after z_i is increased by a and z_j by b; z is restored."""
    zi, zj = z[i], z[j]
    z[i] += a
    z[j] += b
    value = loss_value(loss, p, z, work)
    z[i], z[j] = zi, zj
    return value


@sample_kernel  # not inlined: it would be compiled twice
def _differences(loss, p, z, work, i, h, here):
    """Return ∂ℓ/∂z_i and ∂²ℓ/∂z_i² by differences of the step h; `here` is ℓ(z).

    For a single field, the points are on the side of z on which their fourth difference is small, if this difference
    shows a kink among the points on both sides. If there are kinks on both sides, the step is shortened.
    """
    slope, curvature = 0.0, 0.0
    for _ in range(DIFFERENCES.steps):
        right, left = _probe(loss, p, z, work, i, h, i, 0.0), _probe(loss, p, z, work, i, -h, i, 0.0)
        far_right, far_left = _probe(loss, p, z, work, i, 2 * h, i, 0.0), _probe(loss, p, z, work, i, -2 * h, i, 0.0)
        near, far, bend = right - left, far_right - far_left, right + left - 2 * here
        slope, curvature = (8 * near - far) / (12 * h), (16 * bend - far_right - far_left + 2 * here) / (12 * h * h)
        smoothest = abs(far_right + far_left - 2 * here - 4 * bend)
        rounding = ROUGH * (abs(here) + abs(right) + abs(left) + abs(far_right) + abs(far_left))
        if z.shape[0] > 1 or smoothest <= rounding:
            break
        limit = smoothest / DIFFERENCES.preferred
        for side in (1.0, -1.0):
            a, b = (right, far_right) if side > 0 else (left, far_left)
            c = _probe(loss, p, z, work, i, 3 * side * h, i, 0.0)
            d = _probe(loss, p, z, work, i, 4 * side * h, i, 0.0)
            rough = abs(here - 4 * a + 6 * b - 4 * c + d)
            if rough < limit:
                smoothest = limit = rough
                slope = side * (-25 * here + 48 * a - 36 * b + 16 * c - 3 * d) / (12 * h)
                curvature = (35 * here - 104 * a + 114 * b - 56 * c + 11 * d) / (12 * h * h)
        if smoothest <= DIFFERENCES.kinked * (abs(far_right - here) + abs(far_left - here)) + rounding:
            break
        h *= DIFFERENCES.shorter
    return slope, curvature


@inline_kernel
def difference_derivatives(loss, p, z, grad, hess, work, second):
    """Return ℓ(z), and fill its gradient (k,) and, if `second` is True, its Hessian (k, k)."""
    here = loss_value(loss, p, z, work)
    k = z.shape[0]
    for i in range(k):
        grad[i] = _differences(loss, p, z, work, i, SLOPE_STEP * max(1.0, abs(z[i])), here)[0]
    for i in range(k if second else 0):
        h = CURVATURE_STEP * max(1.0, abs(z[i]))
        hess[i, i] = _differences(loss, p, z, work, i, h, here)[1]
        for j in range(i):
            e = CURVATURE_STEP * max(1.0, abs(z[j]))
            fine, coarse = 0.0, 0.0
            for s in (-1.0, 1.0):
                fine += _probe(loss, p, z, work, i, s * h, j, s * e) - _probe(loss, p, z, work, i, s * h, j, -s * e)
                coarse += _probe(loss, p, z, work, i, 2 * s * h, j, 2 * s * e)
                coarse -= _probe(loss, p, z, work, i, 2 * s * h, j, -2 * s * e)
            hess[i, j] = (16 * fine - coarse) / (48 * h * e)
            hess[j, i] = hess[i, j]
    return here


def bounded_size(self: Any, size: float) -> float:
    """Return the size of fields that fit labels of a given size: this size, at most 1. Default of registered losses."""
    return min(1.0, size)


LOSSES = Registry(
    "register_loss",
    needed=("value(self, p, z)",),
    optional=("derivatives", "floor", "curvature"),
    traits={"convex": False, "even": False, "rotations": False, "parts": 1, "field_size": bounded_size},
    compiled_in=("convex",),
)


def sample_loss(student: Any, n_tokens: int, rank: int) -> Any:
    """Return the loss of a sample for a student, which is an attention map or a registered loss."""
    return student.loss_class(student, n_tokens, rank)


class PointLoss(NamedTuple):
    """A registered loss for fields of shape (n_tokens, rank)."""

    loss: Any
    n_tokens: int
    rank: int

    by_differences, n_params = True, None  # type: ignore[misc]

    @property
    def n_fields(self) -> int:
        """Number of local fields per sample, L r."""
        return self.n_tokens * self.rank

    @property
    def noise(self) -> float:
        """Relative error of minimizers that derivatives by differences cause."""
        return 0.0 if hasattr(self.loss, "derivatives") else DIFFERENCE_NOISE

    def of_fields(self, params: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, ...] | None:
        """Return ℓ, ℓ' and ℓ'' (n,) of samples with one field z (n,), by formulas in numpy; None if there are none."""
        formulas = getattr(self.loss, "of_fields", None) if self.n_fields == 1 else None
        return formulas and formulas(params[:, 0], z)

    def torch(self, params: Any, z: Any) -> Any:
        """Return losses (n,) for tensors."""
        if not hasattr(self.loss, "torch"):
            raise TypeError(
                f"data: minimize_risk needs a loss with a method torch(self, p, z), got {type(self.loss).__name__}"
            )
        return self.loss.torch(params, z)


LOSSES.traits["loss_class"] = PointLoss


def is_by_differences(numba_type: Any) -> bool:
    """Return whether a numba type is an AttentionLoss whose derivatives are computed by differences of values."""
    return is_instance(numba_type, AttentionLoss) and not is_dot_product_loss(numba_type)


@overload(make_work)
def _make_work(loss, memory):
    by_differences = is_instance(loss, IndirectLoss) or is_by_differences(loss) or is_instance(loss, PointLoss)
    return (lambda loss, memory: memory) if by_differences else None


@overload(loss_value)
def _loss_value(loss, p, z, work):
    if is_by_differences(loss):
        return lambda loss, p, z, work: _map_value(loss, p, z, work)
    if not is_instance(loss, PointLoss):
        return None
    value = LOSSES.method(loss.types[0], "value")

    return lambda loss, p, z, work: value(loss.loss, p, z.reshape((loss.n_tokens, loss.rank)))


@overload(loss_derivatives)
def _loss_derivatives(loss, p, z, grad, hess, work, second):
    is_map = is_by_differences(loss)
    derivatives = None if is_map or not is_instance(loss, PointLoss) else LOSSES.method(loss.types[0], "derivatives")
    if derivatives is None:
        return difference_derivatives if is_map or is_instance(loss, PointLoss) else None
    return lambda loss, p, z, grad, hess, work, second: derivatives(
        loss.loss, p, z.reshape((loss.n_tokens, loss.rank)), grad, hess
    )


@overload(loss_floor)
def _loss_floor(loss, p, work):
    if is_by_differences(loss):
        bounded = loss.types[0].instance_class.bounded

        def floor_of_map(loss, p, work):
            L = loss.n_tokens
            chol = work[: L * L].reshape((L, L))
            return attention_floor(L, p, bounded, chol, work[L * L : L * L + L], work[L * L + L : L * L + 2 * L])

        return floor_of_map
    if not is_instance(loss, PointLoss):
        return None
    floor = LOSSES.method(loss.types[0], "floor")
    return (lambda loss, p, work: floor(loss.loss, p)) if floor else (lambda loss, p, work: -np.inf)


@overload(loss_curvature)
def _loss_curvature(loss, p, center, reach):
    if not (is_by_differences(loss) or is_instance(loss, PointLoss)):
        return None
    curvature = LOSSES.method(loss.types[0], "curvature")
    if getattr(loss.types[0].instance_class, "convex", False):
        return lambda loss, p, center, reach: 0.0
    if curvature is None:
        return lambda loss, p, center, reach: -np.inf
    return lambda loss, p, center, reach: curvature(loss.loss, p, center.shape[0], outer_radius(center, reach))


MAPS = Registry(
    "register_attention",
    needed=("attend(self, z, S)",),
    traits={"bounded": False, "even": False, "rotations": False, "parts": 1, "loss_class": AttentionLoss},
    compiled_in=("bounded",),
)


@dispatch_on_type
def attend(attention, z, S):
    """Fill S (L, L) from fields z (L, r). Compiled code only."""


@overload(attend)
def _attend(attention, z, S):
    fill = MAPS.method(attention, "attend")
    return fill and (lambda attention, z, S: fill(attention, z, S))


@kernel
def attend_all(attention, z, S):
    """Fill S (n, L, L) from fields z (n, L, r)."""
    for mu in range(len(z)):
        attend(attention, z[mu], S[mu])


@sample_kernel  # not inlined: central differences would compile it a dozen times
def _map_value(loss, p, z, work):
    """Return the loss of a registered map."""
    L, value = loss.n_tokens, 0.0
    S = work[: L * L].reshape((L, L))
    attend(loss.attention, z.reshape((L, loss.rank)), S)
    for i in range(L):
        value += row_loss(p, S, i)
    return value


@plain_kernel
def _derivatives(first, last, loss, params, z, value, grad, hess, memory):
    work = make_work(loss, memory)
    for mu in range(first, last):
        value[mu] = differentiate(loss, params[mu], z[mu], grad[mu], hess[mu], work, True)


def sample_derivatives(loss: Any, params: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ℓ (n,), ∇ℓ (n, L, r) and ∇²ℓ (n, L r, L r) at fields z (n, L, r)."""
    n, L, r = z.shape
    find = getattr(loss, "of_fields", None)
    parts = find(params, z.ravel()) if find and L * r == 1 else None  # vector instructions take a tenth of the time
    if parts:
        return parts[0], parts[1].reshape(n, 1, 1), parts[2].reshape(n, 1, 1)
    loss, params = for_kernels(loss), np.ascontiguousarray(params, dtype=float)
    flat = np.ascontiguousarray(z).reshape(n, L * r)
    value, grad, hess = np.empty(n), np.empty((n, L * r)), np.empty((n, L * r, L * r))
    block = max(1, min(1024, int(BLOCK / (L**3 * (r * r + 2)))))

    def work(first: int, last: int) -> None:
        _derivatives(first, last, loss, params, flat, value, grad, hess, np.empty(work_size(loss)))

    over_blocks(work, n, block)
    return value, grad.reshape(n, L, r), hess
