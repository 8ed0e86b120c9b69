"""The output denoiser on arrays of samples: z, g = V⁻¹(z − ω), its derivative and the Moreau envelope."""

from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.compiled import inner_kernel, kernel, over_blocks, sample_kernel
from gamp_attention._core.overflow import quiet
from gamp_attention.denoisers.newton import END, cholesky_solve, make_metric, make_workspace, minimise_from
from gamp_attention.denoisers.prox import SEARCH, factor_hessian, minimise_globally, search_points
from gamp_attention.losses.attention import AttentionLoss
from gamp_attention.losses.point import for_kernels
from gamp_attention.results import shown


@shown
class Denoised(NamedTuple):
    """What the denoiser returns for n samples.

    Attributes
    ----------
    z : (n, L, r) minimiser of the proximal objective.
    g : (n, L, r) V⁻¹(z − ω) = −∇ℓ(z).
    response : (n, L, r, r) −∂g_l/∂ω_l, the a.e. derivative within each token.
    jacobian : (n, L r, L r) ∂z/∂ω, or (0, L r, L r) where it was not asked for.
    moreau : (n,) the Moreau envelope, the proximal objective at z.
    loss : (n,) ℓ(z).
    gap : (n,) by how much the next minimum found is higher; inf where there is none or the minimum was held.
    solved : (n,) whether the minimisation reached a stationary point.
    """

    z: np.ndarray
    g: np.ndarray
    response: np.ndarray
    jacobian: np.ndarray
    moreau: np.ndarray
    loss: np.ndarray
    gap: np.ndarray
    solved: np.ndarray


@quiet
def denoise(
    loss: Any,
    params: np.ndarray,
    omega: np.ndarray,
    V: np.ndarray,
    start: np.ndarray | None = None,
    *,
    hold: bool = False,
    jacobian: bool = False,
) -> Denoised:
    """Apply the proximal denoiser to n samples (theory: the output channel of GAMP and of state evolution).

    Eq. :eq:`prox`, :eq:`force`, :eq:`jacobian`.

    Parameters
    ----------
    loss : the per-sample loss ℓ_μ.
    params : (n, P) its parameters, one row a sample.
    omega : (n, L, r) centres ω.
    V : (L, r, r) symmetric positive definite blocks.
    start : (n, L, r) where to begin each minimisation, counted as one start; ω if not given.
    hold : keep the local minimum that the start leads to, instead of searching for the global one.
    jacobian : also return the full ∂z/∂ω.

    Returns
    -------
    Denoised

    Raises
    ------
    TypeError, ValueError : naming the argument that has another shape or type; if V is not positive definite.

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
    n, L, r = _checked_shapes(loss, params, omega, V, start)
    hold, jacobian = check.flag("hold", hold), check.flag("jacobian", jacobian)
    metric, params = make_metric(V), np.ascontiguousarray(params, dtype=float)
    flat = np.ascontiguousarray(omega, dtype=float).reshape(n, L * r)
    out = empty_answer(flat if start is None else np.reshape(start, flat.shape), r, jacobian)
    loss, points = for_kernels(loss), search_points(L * r)
    over_blocks(lambda first, last: _denoise_block(first, last, loss, params, flat, metric, hold, points, out), n, 128)
    return finished(out)


def _checked_shapes(loss: Any, params: Any, omega: Any, V: Any, start: Any) -> tuple[int, int, int]:
    """The shape of omega. Compiled code does not look whether it reads beyond its arrays."""
    if not hasattr(loss, "n_tokens") or not hasattr(loss, "rank"):
        raise check.fail("loss", loss, "the loss of a model or dataset", TypeError)
    L, r = loss.n_tokens, loss.rank
    n = len(omega) if check.ndim("omega", omega) else 0
    rows = check.ndim("params", params) == 2
    width = 2 * L * L if isinstance(loss, AttentionLoss) else np.shape(params)[-1] if rows else "P"
    wanted = {"params": (n, width), "omega": (n, L, r), "V": (L, r, r), "start": (n, L, r)}
    for (name, shape), given in zip(wanted.items(), (params, omega, V, start), strict=True):
        if not (name == "start" and start is None):
            check.shaped(name, given, shape)
    return n, L, r


class Scratch(NamedTuple):
    """Scratch of one thread for `denoise_sample`."""

    newton: Any
    inverse: np.ndarray  # (k, k)
    product: np.ndarray  # (k, k)


def empty_answer(start: np.ndarray, r: int, jacobian: bool = False) -> Denoised:
    """What kernels fill for n samples: z, the fields (n, L r) that they start from, and g are flat."""
    n, k = start.shape
    return Denoised(
        z=np.array(start, dtype=float), g=np.empty((n, k)), response=np.empty((n, k // r, r, r)),
        jacobian=np.empty((n if jacobian else 0, k, k)), moreau=np.empty(n), loss=np.empty(n), gap=np.empty(n),
        solved=np.empty(n, dtype=np.bool_),
    )  # fmt: skip


def finished(out: Denoised) -> Denoised:
    """With z and g of shape (n, L, r), and samples that have no finite answer as not solved."""
    shape = out.response.shape[:3]
    solved = out.solved & np.isfinite(out.moreau) & np.isfinite(out.g).all(axis=1)
    return out._replace(z=out.z.reshape(shape), g=out.g.reshape(shape), solved=solved)


@inner_kernel
def make_scratch(loss, k):
    """Allocate the scratch of one thread."""
    return Scratch(make_workspace(loss, k), np.empty((k, k)), np.empty((k, k)))


@kernel
def _denoise_block(first, last, loss, params, omega, metric, hold, points, out):
    _denoise_rows(first, last, loss, params, omega, metric, hold, points, make_scratch(loss, omega.shape[1]), out)


@sample_kernel
def _denoise_rows(first, last, loss, params, omega, metric, hold, points, scratch, out):
    for mu in range(first, last):
        denoise_sample(mu, loss, params[mu], omega[mu], metric, hold, points, scratch, out)


@sample_kernel
def denoise_sample(mu, loss, p, w, metric, hold, points, scratch, out):
    """Fill row mu of the answer for the centre w (k,); z starts from what is there."""
    k = w.shape[0]
    L, r = metric.inverse.shape[0], metric.inverse.shape[1]
    ws, inverse, product = scratch.newton, scratch.inverse, scratch.product
    x = out.z[mu]
    if hold:
        value, status = minimise_from(loss, p, w, metric, x, ws, 0)
        out.gap[mu] = np.inf
    else:
        value, out.gap[mu], status = minimise_globally(loss, p, w, metric, x, SEARCH.max_starts, points, ws)
    out.moreau[mu] = value
    out.solved[mu] = status == END.solved
    factor_hessian(metric, ws)
    for j in range(k):
        for i in range(k):
            ws.step[i] = 1.0 if i == j else 0.0
        cholesky_solve(ws.chol, ws.step)
        for i in range(k):
            inverse[i, j] = ws.step[i]
    for i in range(k):  # ∂z/∂ω = (V⁻¹ + H)⁻¹ V⁻¹
        for l in range(L):
            for b in range(r):
                acc = 0.0
                for c in range(r):
                    acc += inverse[i, l * r + c] * metric.inverse[l, c, b]
                product[i, l * r + b] = acc
    quadratic = 0.0
    for l in range(L):
        for a in range(r):
            acc = 0.0
            for b in range(r):
                acc += metric.inverse[l, a, b] * (x[l * r + b] - w[l * r + b])
            out.g[mu, l * r + a] = acc
            quadratic += 0.5 * acc * (x[l * r + a] - w[l * r + a])
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
