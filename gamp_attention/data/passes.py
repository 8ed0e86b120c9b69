"""The samples' half of an iteration of message passing, which reads the tokens; those of parts of the data add up."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gamp_attention.data.pass_kernels import PassData, grouped_pass
from gamp_attention.denoisers.output import Denoised
from gamp_attention.models.sources import Group, by_group, summed

Memory = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float], np.ndarray]


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


class HalfStep(NamedTuple):
    """Sums, and what each sample keeps, as arrays (n, L, r) or as handles of arrays that are elsewhere.

    Attributes
    ----------
    sums : over all samples.
    z : minimisers of the proximal step.
    remember : the Onsager memory D of the next iteration, from the averaged V, W, the damping and a rule.
    omega, denoised : centres and answer of the proximal step; None where they are elsewhere.
    """

    sums: Sums
    z: Any
    remember: Callable[[np.ndarray, np.ndarray, float, Memory], Any]
    omega: np.ndarray | None = None
    denoised: Denoised | None = None


class Evaluation(NamedTuple):
    """A risk without its penalty: Σ_μ ℓ_μ, X̃ᵀ∇ℓ (d, r), and a function that gives the fields (n, L, r)."""

    loss: float
    smooth: np.ndarray
    fields: Callable[[], np.ndarray]


def half_step(
    data: PassData, risk: str, Q: np.ndarray, D: np.ndarray, V: np.ndarray, z: np.ndarray | None, hold: bool
) -> HalfStep:
    """The half of samples that this process holds, from minimisers z of the last iteration."""
    terms = data.terms(risk)
    seen = grouped_pass(data, terms.params, Q, D, V, z, hold=hold)
    out = seen.denoised
    loss = float(np.sum(seen.losses + terms.constant))
    sums = Sums(loss, seen.force, seen.smooth, summed(data.groups, data.n_sources, out.response))

    def remember(V: np.ndarray, W: np.ndarray, damping: float, memory: Memory) -> np.ndarray:
        return remembered(data.groups, D, V, W, out.g, damping, memory)

    return HalfStep(sums, out.z, remember, seen.omega, out)


def remembered(
    groups: tuple[Group, ...], D: np.ndarray, V: np.ndarray, W: np.ndarray, g: np.ndarray, damping: float,
    memory: Memory,
) -> np.ndarray:  # fmt: skip
    """The next Onsager memory by a rule that is asked for each group by itself."""

    def of_group(rows: slice, sources: np.ndarray) -> np.ndarray:
        before = D[rows]
        after = memory(before, V[sources], W[sources], g[rows], damping)
        if np.shape(after) != before.shape:
            raise ValueError(f"memory: needs to return shape {before.shape}, got shape {np.shape(after)}")
        return after

    return by_group(groups, of_group)


def evaluate(data: PassData, risk: str, Q: np.ndarray) -> Evaluation:
    """A risk of samples that this process holds, in the same pass as message passing makes."""
    terms, (n, L, _), r = data.terms(risk), data.tokens.shape, Q.shape[1]
    V = np.tile(np.eye(r), (data.n_sources, 1, 1))
    seen = grouped_pass(data, terms.params, Q, np.zeros((n, L, r)), V, proximal=False)
    return Evaluation(float(np.sum(seen.losses + terms.constant)), seen.smooth, lambda: seen.omega)
