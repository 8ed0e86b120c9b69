"""State evolution at all times: the law of every iterate of damped GAMP, not only of its fixed points.

The weights depend on the start, the positions, the teacher and the Gaussian noises ζ_s of the iterations,

    x^{t+1} = (1−β) x^t + β η(h_t + ζ_t, A_t),   cov(ζ_s, ζ_t) = Σ_l γ_l q̂_l^{s,t},

(`weight_paths`), which gives the overlaps q^{s,t} between any two times. The fields ω̃^0, ω̃^1, … and y are sampled
as paths with those covariances (`field_paths`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention import _validation as check
from gamp_attention.gamp_control import Damping
from gamp_attention.models import Model, require_model
from gamp_attention.penalties import Ridge
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.channel import Hats, average, conjugates, denoise_fields
from gamp_attention.state_evolution.field_paths import FieldPaths
from gamp_attention.state_evolution.start_law import StartLaw, start_law
from gamp_attention.state_evolution.weight_paths import LinearWeights, SampledWeights

WEIGHTS_PER_PATH = 4  # sampled coordinates, which are cheap, for each sampled path of the fields


@dataclass(frozen=True, eq=False)
class Trajectory(Overlaps):
    """Overlaps predicted at every iteration, entry 0 being the start: means over independent replicas.

    Attributes
    ----------
    q, m, theta, V : with an axis of time (T + 1) in front.
    error : standard errors of the four, over replicas.
    V_hat : (T, L, r, r) responses V̂_t in Stein's form, which `run_gamp(onsager=...)` accepts.
    jump_mass : (T, L, r, r) V̂_Stein − V̂_derivative.
    jump_mass_error : its standard error.
    """

    error: Overlaps
    V_hat: np.ndarray
    jump_mass: np.ndarray
    jump_mass_error: np.ndarray


def follow(
    model: Model, alpha: float, start: StartLaw, damping: Any, n_iter: int, n_paths: int, rng: np.random.Generator
) -> tuple[list[Overlaps], list[Hats]]:
    """Overlaps at every iteration, and hats at all but the last, on one set of sampled paths."""
    step = Damping(damping)
    weights: LinearWeights | SampledWeights
    if type(model.penalty) is Ridge:
        weights = LinearWeights(model, start, n_iter)
    else:
        weights = SampledWeights(model, start, n_iter, WEIGHTS_PER_PATH * n_paths, rng)
    paths = FieldPaths(model, n_paths, rng)
    states, all_hats, g, z = [weights.overlaps()], [], [], None
    for t in range(n_iter):
        now = states[-1]
        fields = paths.draw(now, weights.covariances())
        out = denoise_fields(model, now, fields, paths.terms, z)
        here = conjugates(model, alpha, now, average(paths.y, fields, paths.terms, out, now.V))
        z = out.z
        g.append(out.g)
        weights.step(here, [alpha * np.einsum("nla,nlb->lab", s, out.g) / n_paths for s in g], step(t))
        states.append(weights.overlaps())
        all_hats.append(here)
    return states, all_hats


def trajectory(
    model: Model,
    alpha: float,
    init: Any = "semantic",
    *,
    damping: Any = 0.5,
    n_iter: int = 20,
    n_paths: int = 4096,
    n_replicas: int = 8,
    seed: Any = 0,
) -> Trajectory:
    """Predict the overlaps of damped GAMP at every iteration, in the limit d → ∞.

    Parameters
    ----------
    model : the problem.
    alpha : sample complexity, > 0.
    init : "semantic", "positional", "random", or the Overlaps of the start (V included).
    damping : the step β of GAMP in (0, 1], or a sequence with one for each iteration.
    n_iter : iterations to follow.
    n_paths : sampled paths of each replica, even.
    n_replicas : independent replicas, at least 2; their spread gives the standard errors.
    seed : an integer or a numpy Generator.

    Returns
    -------
    Trajectory

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> path = ga.trajectory(ga.paper_model(), alpha=1.5, init="semantic", damping=0.5, n_iter=5, n_paths=512)
    >>> path.q.shape, path.V_hat.shape
    ((6, 2, 1, 1), (5, 2, 1, 1))
    """
    require_model(model)
    alpha = check.real("alpha", alpha, low=0, strict=True)
    n_iter = check.integer("n_iter", n_iter, low=1)
    n_paths = check.integer("n_paths", n_paths, low=64)
    n_replicas = check.integer("n_replicas", n_replicas, low=2)
    least = 4 * model.n_tokens * (model.teacher_rank + model.rank * (n_iter + 1))
    if n_paths % 2 or n_paths < least:
        raise check.fail("n_paths", n_paths, f"an even number of at least {least} for {n_iter} iterations")
    Damping(damping)
    start, rng = start_law(model, init), check.generator(seed)
    runs = [follow(model, alpha, start, damping, n_iter, n_paths, rng) for _ in range(n_replicas)]
    share = 1 / np.sqrt(n_replicas)
    stacks = {
        name: np.array([[state.arrays()[name] for state in states] for states, _ in runs])
        for name in runs[0][0][0].arrays()
    }
    jumps = np.array([[hats.jump_mass for hats in all_hats] for _, all_hats in runs])
    return Trajectory(
        **{name: values.mean(axis=0) for name, values in stacks.items()},
        error=Overlaps(**{name: values.std(axis=0, ddof=1) * share for name, values in stacks.items()}),
        V_hat=np.array([[hats.V for hats in all_hats] for _, all_hats in runs]).mean(axis=0),
        jump_mass=jumps.mean(axis=0),
        jump_mass_error=jumps.std(axis=0, ddof=1) * share,
    )
