"""Output denoiser for arrays of samples: z, g = V⁻¹(z − ω), its derivative and the Moreau envelope.

The output function of GAMP (Rangan, 2011) is the proximal map of the loss (Parikh and Boyd, 2014).
"""

from typing import Any, NamedTuple

import numpy as np
from numba.core.types import none

from gamp_attention._kernels.compiled import inline_kernel, plain_kernel
from gamp_attention._kernels.deferred import deferred_kernel
from gamp_attention._kernels.pointers import load_from, point_to
from gamp_attention._tools import check
from gamp_attention._tools.numerics import guard_call
from gamp_attention._tools.threads import interruptible_blocks
from gamp_attention.problem.denoisers.newton import (
    LAST_STEP,
    MIN_PIVOT,
    OUTCOME,
    in_scalars,
    make_metric,
    make_workspace,
    minimize_in_scalars,
    point_to_loss_scratch,
    workspace_memory,
)
from gamp_attention.problem.denoisers.prox import (
    MAX_STARTS,
    MIN_SHIFT,
    factor_hessian,
    is_unique,
    make_search,
    minimize_globally,
    minimize_single_field,
)
from gamp_attention.problem.losses.kinks import for_proximal_steps
from gamp_attention.results import add_display

BLOCK = 128  # number of samples in a block
SMALL_BLOCK = 2048  # the same for samples with one field, which take a fraction of a microsecond each
# number of operations of one Newton step of each minimization above which work runs in other threads, so that it can be
# interrupted: 0.1 s for 1e-9 s per operation and six Newton steps
LONG = 1.7e7


@add_display
class Denoised(NamedTuple):
    """Result of the denoiser for n samples.

    Attributes
    ----------
    z : (n, L, r) minimizer of the proximal objective.
    g : (n, L, r) V⁻¹(z − ω) = −∇ℓ(z).
    response : (n, L, r, r) −∂g_l/∂ω_l, the a.e. derivative within each token.
    jacobian : (n, L r, L r) ∂z/∂ω, or (0, L r, L r) if it was not requested.
    moreau : (n,) the Moreau envelope, the proximal objective at z.
    loss : (n,) ℓ(z).
    gap : (n,) difference to the next higher minimum found; inf if none was found or `hold` was set.
    solved : (n,) True if the minimization reached a minimum with finite values.
    n_hessians : (n,) number of evaluated Hessians; of minimizations for two tokens and one column, or one field.
    """

    z: np.ndarray
    g: np.ndarray
    response: np.ndarray
    jacobian: np.ndarray
    moreau: np.ndarray
    loss: np.ndarray
    gap: np.ndarray
    solved: np.ndarray
    n_hessians: np.ndarray


@guard_call
def denoise(
    loss: Any,
    params: np.ndarray,
    omega: np.ndarray,
    V: np.ndarray,
    start: np.ndarray | None = None,
    *,
    hold: bool = False,
    jacobian: bool = False,
    max_starts: int | None = None,
    last_step: float = LAST_STEP,
) -> Denoised:
    """Apply the proximal denoiser to n samples: the output function of GAMP and of state evolution.

    z = argmin ½ Σ_l (z_l − ω_l)ᵀ V_l⁻¹ (z_l − ω_l) + ℓ(z) for each sample.

    Eq. :eq:`prox`, :eq:`force`, :eq:`jacobian`.

    Parameters
    ----------
    loss : the per-sample loss ℓ_μ.
    params : (n, P) parameters of the loss, one row per sample.
    omega : (n, L, r) centers ω.
    V : (L, r, r) symmetric positive definite blocks.
    start : (n, L, r) initial fields of each minimization; ω if not given.
    hold : return the local minimum that is reached from `start`, instead of searching for the global minimum.
    jacobian : also return the full ∂z/∂ω.
    max_starts : maximum number of further starts in each search for a lower minimum. A smaller number takes less time,
        but the search may miss the global minimum. By default a statistical rule ends the search, after at most 400
        starts.
    last_step : size of a Newton step of the minimizations, relative to the fields, after which none follows. The next
        step would be of the order of its square.

    Returns
    -------
    Denoised

    Raises
    ------
    TypeError : if `loss` is not the loss of a model or dataset, if `hold` or `jacobian` is not a boolean, or if
        `max_starts` is not an integer.
    ValueError : if an array has another shape, if a block of V is not symmetric positive definite, or if `max_starts`
        is negative, or if `last_step` is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=100, alpha=0.1, seed=0)
    >>> omega, V = np.ones((10, 2, 1)), np.ones((2, 1, 1))
    >>> out = ga.denoise(data.loss, data.terms("exact").params, omega, V)
    >>> bool(abs(out.g - (out.z - omega)).max() < 1e-12)
    True
    """
    n, L, r = _require_shapes(loss, params, omega, V, start)
    hold, jacobian = check.flag("hold", hold), check.flag("jacobian", jacobian)
    metric = make_metric(V, check.real("last_step", last_step, low=0, strict=True))
    # kernels are compiled again for read-only arrays, such as the arrays of reports
    params, omega = (np.require(array, float, ("C", "W")) for array in (params, omega))
    flat = omega.reshape(n, L * r)
    out = allocate_result(flat if start is None else np.reshape(start, flat.shape), r, jacobian)
    most = MAX_STARTS if max_starts is None else check.integer("max_starts", max_starts, low=0)
    most, search, long = 0 if hold else most, make_search(L * r), is_long(loss, n, most)
    loss = for_proximal_steps(loss, params)

    def work(first: int, last: int, stop: np.ndarray) -> None:
        _denoise_block(first, last, loss, params, flat, metric, most, search, stop, out, workspace_memory(loss))

    # for many samples longer blocks, because a thread needs some 30 µs to begin one
    block = max(BLOCK, min(n // BLOCK, SMALL_BLOCK)) if L * r > 1 else SMALL_BLOCK
    interruptible_blocks(work, n, block, long)
    return finalize_result(out)


def is_long(loss: Any, n: int, most: int) -> bool:
    """Return whether the proximal steps of n samples, each with at most `most` further starts, may take over 0.1 s.

    The derivatives of attention at k = L r fields cost L³ (r² + 2) + k³ operations. If a user-defined
    map or loss has no derivatives, they are computed by differences, from 8 k² values.
    """
    L, r = loss.n_tokens, loss.rank
    k, cost = L * r, float(L**3 * (r * r + 2) + (L * r) ** 3)
    if loss.by_differences:
        cost *= 8 * k * k
    return k > 2 and n * cost * (1 + most) > LONG


def _require_shapes(loss: Any, params: Any, omega: Any, V: Any, start: Any) -> tuple[int, int, int]:
    """Return (n, L, r) after checks of all shapes, because compiled code does not check the bounds of arrays."""
    if not all(hasattr(loss, name) for name in ("n_tokens", "rank", "n_params")):
        raise check.fail("loss", loss, "the loss of a model or dataset", TypeError)
    if hasattr(loss, "attention") and not hasattr(loss.attention, "parts"):
        raise check.fail("loss.attention", loss.attention, "an attention map", TypeError)
    L, r = (check.integer(f"loss.{name}", getattr(loss, name), low=1) for name in ("n_tokens", "rank"))
    n = len(omega) if check.ndim("omega", omega) else 0
    rows = check.ndim("params", params) == 2
    width = loss.n_params or (np.shape(params)[-1] if rows else "P")
    wanted = {"omega": (n, L, r), "params": (n, width), "V": (L, r, r), "start": (n, L, r)}
    for (name, shape), given in zip(wanted.items(), (omega, params, V, start), strict=True):
        if not (name == "start" and start is None):
            check.require_shape(name, given, shape)
    return n, L, r


def allocate_result(start: np.ndarray, r: int, jacobian: bool = False) -> Denoised:
    """Return arrays that kernels fill for n samples; z (n, L r), which contains the initial fields, and g are flat."""
    n, k = start.shape
    return Denoised(
        z=np.array(start, dtype=float), g=np.empty((n, k)), response=np.empty((n, k // r, r, r)),
        jacobian=np.empty((n if jacobian else 0, k, k)), moreau=np.empty(n), loss=np.empty(n), gap=np.empty(n),
        solved=np.empty(n, dtype=np.bool_), n_hessians=np.zeros(n, dtype=np.int64),
    )  # fmt: skip


def finalize_result(out: Denoised) -> Denoised:
    """Return z and g in shape (n, L, r), and mark samples without a finite result as not solved."""
    shape = out.response.shape[:3]
    solved = out.solved & np.isfinite(out.moreau) & np.isfinite(out.g).all(axis=1)
    return out._replace(z=out.z.reshape(shape), g=out.g.reshape(shape), solved=solved)


@plain_kernel
def _denoise_block(first, last, loss, params, omega, metric, most, search, stop, out, memory):
    at_ws = make_workspace(loss, omega.shape[1], stop, memory)
    denoise_rows(first, last, loss, params, omega, point_to(metric), most, search, at_ws, point_to(out))


@inline_kernel
def denoise_rows(first, last, loss, params, omega, at_metric, most, search, at_ws, at_out):
    """Fill rows of the result: in scalars if that is possible and succeeds, otherwise by `denoise_sample`.

    The arguments `at_` are pointers to a `Metric`, a `Workspace` and a `Denoised`.
    """
    stop = load_from(at_ws).stop
    for mu in range(first, last):
        if stop[0] != 0:
            return
        p, w = params[mu], omega[mu]
        if not (in_scalars(loss) and _denoise_in_scalars(mu, loss, p, w, at_metric, most, at_ws, at_out)):
            denoise_sample(mu, loss, p, w, at_metric, most, search, at_ws, at_out)


@inline_kernel
def _denoise_in_scalars(mu, loss, p, w, at_metric, most, at_ws, at_out):
    # The steps of `denoise_sample` for two tokens and one column, or for one field, in numbers: half of the time. If
    # the minimum is not known to be unique, or in rare cases, the general form starts again from the initial fields.
    ws, out = load_from(at_ws), load_from(at_out)
    z, is_pair = out.z[mu], w.shape[0] > 1
    x, y = z[0], z[1] if is_pair else 0.0
    value, outcome = minimize_in_scalars(loss, p, w, at_metric, z, at_ws, np.int64(0))
    solved = outcome == OUTCOME.solved
    if solved and most > 0:
        solved, _ = is_unique(loss, p, w, load_from(at_metric).smallest, value, point_to_loss_scratch(at_ws))
    if not (solved and _fill_in_scalars(mu, w, value, at_metric, ws.hess, at_out)):
        z[0] = x
        if is_pair:
            z[1] = y
        return False
    out.gap[mu], out.solved[mu], out.n_hessians[mu] = np.inf, True, 1
    return True


@inline_kernel
def _fill_in_scalars(mu, w, value, at_metric, hess, at_out):
    """Fill g, the response, the losses and the Jacobian of row mu, for one or two fields in one column.

    If the Hessian is nearly singular, False is returned and nothing is filled: `_fill_row` increases the shift.
    """
    metric, out, is_pair = load_from(at_metric), load_from(at_out), w.shape[0] > 1
    z = out.z[mu]
    shift = MIN_SHIFT * metric.smallest  # as in `factor_hessian`
    leading, xy, yy = hess[0, 0] + shift, hess[0, 1] if is_pair else 0.0, hess[1, 1] if is_pair else 1.0
    ratio = xy / leading
    pivot = yy + shift - ratio * xy
    if not (leading > 0.0 and pivot > MIN_PIVOT * yy):
        return False
    second = 1.0 / pivot  # entries of the inverse: first and second on the diagonal, and cross
    cross, first = -ratio * second, 1.0 / leading + ratio * ratio * second
    stiff, offset = metric.inverse[0, 0, 0], z[0] - w[0]
    quadratic = stiff * offset * offset
    out.g[mu, 0], out.response[mu, 0, 0, 0] = stiff * offset, stiff * (1.0 - first * stiff)
    if out.jacobian.shape[0] > 0:
        out.jacobian[mu, 0, 0] = first * stiff
    if is_pair:
        stiff_y, offset_y = metric.inverse[1, 0, 0], z[1] - w[1]
        quadratic += stiff_y * offset_y * offset_y
        out.g[mu, 1], out.response[mu, 1, 0, 0] = stiff_y * offset_y, stiff_y * (1.0 - second * stiff_y)
        if out.jacobian.shape[0] > 0:
            out.jacobian[mu, 0, 1], out.jacobian[mu, 1, 0] = cross * stiff_y, cross * stiff
            out.jacobian[mu, 1, 1] = second * stiff_y
    out.moreau[mu], out.loss[mu] = value, value - 0.5 * quadratic
    return True


@deferred_kernel(none)
def denoise_sample(mu, loss, p, w, at_metric, most, search, at_ws, at_out):
    """Fill row mu of the result for the center w (k,), after a search with at most `most` further starts.

    The first minimization starts from the current z. If `most` is 0, the result is its local minimum. The arguments
    `at_` are pointers to a `Metric`, a `Workspace` and a `Denoised`.
    """
    ws, out = load_from(at_ws), load_from(at_out)
    x, before = out.z[mu], ws.n_hessians[0]
    if w.shape[0] == 1 and most > search.n_attempts:
        value, out.gap[mu], status = minimize_single_field(loss, p, w, at_metric, x, most, search, at_ws)
    else:
        value, out.gap[mu], status = minimize_globally(loss, p, w, at_metric, x, most, search, at_ws)
    out.moreau[mu], out.n_hessians[mu] = value, np.int64(ws.n_hessians[0] - before)
    out.solved[mu] = status == OUTCOME.solved
    is_short = w.shape[0] <= 2 and out.response.shape[2] == 1
    if not (is_short and _fill_in_scalars(mu, w, value, at_metric, ws.hess, at_out)):
        _fill_row(mu, w, value, at_metric, ws.hess, ws.chol, ws.inverse, ws.product, at_out)


@deferred_kernel(none)
def _fill_row(mu, w, value, at_metric, hess, chol, inverse, product, at_out):
    """Fill g, the response, the loss and the Jacobian of row mu, from the minimizer and the Hessian there.

    Compiled once for all losses: `chol`, `inverse` and `product` are scratch of the `Workspace`.
    """
    metric, out = load_from(at_metric), load_from(at_out)
    L, r = metric.inverse.shape[0], metric.inverse.shape[1]
    k, x = L * r, out.z[mu]
    factor_hessian(metric, hess, chol)
    _invert_factor(chol, inverse)
    quadratic = 0.0
    for l in range(L):
        for a in range(r):
            acc = 0.0
            for b in range(r):
                acc += metric.inverse[l, a, b] * (x[l * r + b] - w[l * r + b])
            out.g[mu, l * r + a] = acc
            quadratic += 0.5 * acc * (x[l * r + a] - w[l * r + a])
        for m in range(L):
            if m == l or out.jacobian.shape[0] > 0:
                _fill_jacobian(l, m, metric, inverse, product)
        for a in range(r):
            for b in range(r):  # −∂g_l/∂ω_l = V_l⁻¹ (1 − ∂z_l/∂ω_l)
                acc = metric.inverse[l, a, b]
                for c in range(r):
                    acc -= metric.inverse[l, a, c] * product[l * r + c, l * r + b]
                out.response[mu, l, a, b] = acc
    out.loss[mu] = value - quadratic
    if out.jacobian.shape[0] > 0:
        for i in range(k):
            for j in range(k):
                out.jacobian[mu, i, j] = product[i, j]


@inline_kernel
def _invert_factor(chol, inverse):
    """Fill the lower triangle of inverse (k, k) with the inverse F of the lower triangular factor chol."""
    k = chol.shape[0]
    for i in range(k):
        for j in range(i):
            inverse[i, j] = 0.0
        for m in range(i):
            c = chol[i, m]
            for j in range(m + 1):
                inverse[i, j] -= c * inverse[m, j]
        c = 1.0 / chol[i, i]
        for j in range(i):
            inverse[i, j] *= c
        inverse[i, i] = c


@inline_kernel
def _fill_jacobian(l, n, metric, factor, product):
    """Fill the block of product (k, k) with ∂z_l/∂ω_n, from the inverse factor F of V⁻¹ + H = (FᵀF)⁻¹."""
    r, k = metric.inverse.shape[1], factor.shape[0]
    for a in range(r):
        for b in range(r):
            product[l * r + a, n * r + b] = 0.0
    for a in range(r):
        for c in range(r):
            i, j = l * r + a, n * r + c
            acc = 0.0
            for m in range(max(i, j), k):
                acc += factor[m, i] * factor[m, j]
            for b in range(r):
                product[i, n * r + b] += acc * metric.inverse[n, c, b]
