"""State evolution at all times: the law of every iterate of damped GAMP, not only of its fixed points.

The weights depend on the start, the positions, the teacher and the Gaussian noises ζ_s of the iterations,

    x^{t+1} = (1−β) x^t + β η(h_t + ζ_t, A_t),   cov(ζ_s, ζ_t) = Σ_l γ_l q̂_l^{s,t},

(`weight_paths`), which gives the overlaps q^{s,t} between any two times. The fields ω̃^0, ω̃^1, … and y are sampled
as paths with those covariances (`field_paths`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.overflow import quiet
from gamp_attention._core.seeds import generator
from gamp_attention.damping import Damping
from gamp_attention.denoisers.output import denoise
from gamp_attention.models.model import Component, Model, require_model
from gamp_attention.results import Overlaps, stacked
from gamp_attention.state_evolution.dynamics.field_paths import FieldPaths
from gamp_attention.state_evolution.dynamics.start_law import StartLaw, start_law
from gamp_attention.state_evolution.dynamics.weight_paths import LinearWeights, SampledWeights
from gamp_attention.state_evolution.equations.channel import Hats, Moments, average, conjugates
from gamp_attention.state_evolution.equations.components import restricted, scattered
from gamp_attention.state_evolution.rules.sobol import points_of


@dataclass(frozen=True, eq=False)
class Trajectory(Overlaps):
    """Overlaps predicted at every iteration, entry 0 being the start: means over independent replicas.

    Attributes
    ----------
    q, m, theta, V : with an axis of time (T + 1) in front.
    error : standard errors of the four, over replicas.
    V_hat : (T, L, r, r) responses V̂_t in Stein's form, which `run_gamp(onsager=...)` accepts.
    jump_mass : (T, L, r, r) V̂_Stein − V̂_derivative, at most 0 but for numerical errors.
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
    if model.penalty.quadratic:
        weights = LinearWeights(model, start, n_iter)
    else:
        weights = SampledWeights(model, start, n_iter, 4 * n_paths, rng)  # more coordinates than paths: they are cheap
    paths = [ComponentPaths(component, n_paths, n_iter, rng) for component in model.components]
    states, all_hats = [weights.overlaps()], []
    for t in range(n_iter):
        now, q = states[-1], weights.covariances()
        here = conjugates(model, alpha, now, scattered(model.components, [path.advance(now, q) for path in paths]))
        q_hats = [np.zeros_like(now.q) for _ in range(t + 1)]
        for path in paths:
            for q_hat, block in zip(q_hats, path.q_hats(alpha), strict=True):
                q_hat[path.sources] += path.share * block
        weights.step(here, q_hats, step(t))
        states.append(weights.overlaps())
        all_hats.append(here)
    return states, all_hats


class ComponentPaths:
    """Paths of the fields in one component of a mixture, and the denoiser's answers to them."""

    def __init__(self, component: Component, n_paths: int, n_iter: int, rng: np.random.Generator) -> None:
        self.share, self.sources, self._model = component
        few = min_paths(self._model, n_iter)
        self._n = points_of(n_paths, self.share, few) if self.share < 1 else n_paths
        self._paths = FieldPaths(self._model, self._n, rng)
        self._g: list[np.ndarray] = []
        self._z: np.ndarray | None = None

    def advance(self, overlaps: Overlaps, covariances: list[np.ndarray]) -> Moments:
        """The moments at the next time, given the overlaps and q^{s,t} of all sources with every s <= t."""
        now, paths = restricted(overlaps, self.sources), self._paths
        fields = paths.draw(now, [each[self.sources] for each in covariances])
        out = denoise(self._model.loss, paths.terms.params, fields + now.m, now.V, self._z)
        self._z = out.z
        self._g.append(out.g)
        return average(paths.y, fields, paths.terms, out, now.V)

    def q_hats(self, alpha: float) -> list[np.ndarray]:
        """α E[g^s g^tᵀ] (L, r, r) for the latest t and every s <= t."""
        return [alpha * np.einsum("nla,nlb->lab", each, self._g[-1]) / self._n for each in self._g]


def min_paths(model: Model, n_iter: int) -> int:
    """Paths that the covariances between all times can be told with."""
    return 4 * model.n_tokens * (model.teacher_rank + model.rank * (n_iter + 1))


@quiet
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

    Eq. :eq:`iterates`.

    Parameters
    ----------
    model : the problem.
    alpha : sample complexity, > 0.
    init : "semantic", "positional", "random", or the Overlaps of the start (V included).
    damping : the step β of GAMP in (0, 1], or a sequence with one for each iteration, its last entry being repeated;
        "adaptive" stands for the first step of adaptive damping, 0.3.
    n_iter : iterations to follow.
    n_paths : sampled paths of each replica, even; in mixtures each pattern of classes has its share of them, if that is
        enough.
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
    enough = min_paths(model, n_iter)
    if n_paths % 2 or n_paths < enough:
        raise check.fail("n_paths", n_paths, f"an even number of at least {enough} for {n_iter} iterations")
    check.fits("n_paths, n_iter", n_paths, enough // 4)
    check.fits("n_replicas, n_iter", n_replicas, n_iter + 1, 4 * model.n_sources * model.rank)
    Damping(damping)
    start, rng = start_law(model, init), generator(seed)
    runs = [follow(model, alpha, start, damping, n_iter, n_paths, rng) for _ in range(n_replicas)]
    share = 1 / np.sqrt(n_replicas)
    stacks = stacked([Overlaps(**stacked(states)) for states, _ in runs])
    jumps = np.array([[hats.jump_mass for hats in all_hats] for _, all_hats in runs])
    return Trajectory(
        **{name: values.mean(axis=0) for name, values in stacks.items()},
        error=Overlaps(**{name: values.std(axis=0, ddof=1) * share for name, values in stacks.items()}),
        V_hat=np.array([[hats.V for hats in all_hats] for _, all_hats in runs]).mean(axis=0),
        jump_mass=jumps.mean(axis=0),
        jump_mass_error=jumps.std(axis=0, ddof=1) * share,
    )
