"""What needs all samples: the output step of message passing, and the sums that a risk is made of.

Both read the tokens once. Where several processes hold samples, their sums are added.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.read_only import read_only
from gamp_attention.data.pass_kernels import Part, grouped_pass
from gamp_attention.denoisers.output import Denoised
from gamp_attention.models.sources import Group, summed, weighted

Memory = Callable[[np.ndarray, np.ndarray, np.ndarray, float], np.ndarray]  # D of (D, V g, W g, β)


class Sums(NamedTuple):
    """What samples add to an iteration.

    Attributes
    ----------
    loss : Σ_μ ℓ_μ at the fields X̃Q, constants included.
    force, smooth : (d, r) X̃ᵀg, and X̃ᵀ∇ℓ.
    response : (S, r, r) −Σ_μ ∂g_l/∂ω_l over the tokens of each source.
    """

    loss: float
    force: np.ndarray
    smooth: np.ndarray
    response: np.ndarray


class OutputStep(NamedTuple):
    """Sums, and what each sample keeps, as arrays (n, L, r) or as handles of arrays that are elsewhere.

    Attributes
    ----------
    sums : over all samples.
    z : minimisers of the proximal step.
    remember : the memory D of the next iteration, from a rule, the new V, W and the step β.
    omega, denoised : centres and answer of the proximal step; None where they are elsewhere.
    """

    sums: Sums
    z: Any
    remember: Callable[[Memory, np.ndarray, np.ndarray, float], Any]
    omega: np.ndarray | None = None
    denoised: Denoised | None = None


class RiskSums(NamedTuple):
    """A risk without its penalty: Σ_μ ℓ_μ, X̃ᵀ∇ℓ (d, r), and a function that gives the fields (n, L, r)."""

    loss: float
    smooth: np.ndarray
    fields: Callable[[], np.ndarray]


def output_step(
    data: Part, risk: str, Q: np.ndarray, D: np.ndarray, V: np.ndarray, z: np.ndarray | None, most: int
) -> OutputStep:
    """ω = X̃Q − D, z = prox(ω; V) and g = V⁻¹(z − ω) of the samples in this process, with the sums over them.

    Proximal steps start from the minimisers z of the last iteration, where there are any; `most` bounds the further
    starts of each search for a lower minimum.
    """
    terms = data.risks[risk]
    seen = grouped_pass(data, terms.params, Q, D, V, z, most=most)
    out = seen.denoised
    loss = float(np.sum(seen.losses + terms.constant))
    sums = Sums(loss, seen.force, seen.smooth, summed(data.groups, data.n_sources, out.response))
    return OutputStep(sums, out.z, partial(next_memory, data.groups, D, out.g), seen.omega, out)


def next_memory(
    groups: tuple[Group, ...], D: np.ndarray, g: np.ndarray, rule: Memory, V: np.ndarray, W: np.ndarray, beta: float
) -> np.ndarray:
    """The Onsager memory D of the next iteration by a rule, with V and W of the source of each token."""
    after = check.plain(rule(read_only(D), weighted(groups, V, g), weighted(groups, W, g), beta))
    if np.shape(after) != D.shape:
        raise ValueError(f"memory: needs to return shape {D.shape}, got shape {np.shape(after)}")
    after = np.asarray(after, dtype=float)
    return after if after.flags.writeable else after.copy()


def sum_risk(data: Part, risk: str, Q: np.ndarray) -> RiskSums:
    """A risk of the samples in this process, in the same pass as message passing makes."""
    terms, (n, L, _), r = data.risks[risk], data.tokens.shape, Q.shape[1]
    V = np.tile(np.eye(r), (data.n_sources, 1, 1))
    seen = grouped_pass(data, terms.params, Q, np.zeros((n, L, r)), V, proximal=False)
    return RiskSums(float(np.sum(seen.losses + terms.constant)), seen.smooth, lambda: seen.omega)
