"""State evolution at one time: fixed points of eq. (7)-(9), with sampling errors."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention import _validation as check
from gamp_attention.channel import (
    Hats,
    average,
    denoise_fields,
    generalisation_error,
    psd_root,
    student_noise,
    teacher_fields,
)
from gamp_attention.gaussian_points import gaussian_points
from gamp_attention.input_denoiser import prior_response
from gamp_attention.models import Model, require_model
from gamp_attention.newton import NotPositiveDefinite
from gamp_attention.results import Overlaps, Status, finish
from gamp_attention.start_law import start_law
from gamp_attention.trajectory import follow

MIXING, MEAN_MIXING = 0.5, 0.2
WARM_UP, WARM_UP_DAMPING = 25, 0.3  # iterations of damped GAMP that a named start is followed for


@dataclass(frozen=True, eq=False)
class StateEvolutionHistory(Overlaps):
    """Overlaps along the iteration of the first replica, entry 0 being the start."""


@dataclass(frozen=True, eq=False)
class StateEvolutionResult:
    """A fixed point of state evolution.

    Attributes
    ----------
    status, converged, n_iter, residual, history : as for every solver; the residual is the largest relative
        change of an overlap in a full step, over all replicas.
    overlaps, train_loss, test_error : means over replicas with independent point sets; eq. (7), (14), (10).
    overlaps_error, train_loss_error, test_error_error : their standard errors.
    jump_mass : (L, r, r) V̂_Stein − V̂_derivative; where it is not small, the proximal map jumps and the
        replica-symmetric prediction is an approximation.
    V_hat : (L, r, r) V̂ in Stein's form.
    """

    status: Status
    n_iter: int
    residual: float
    history: StateEvolutionHistory
    overlaps: Overlaps
    overlaps_error: Overlaps
    train_loss: float
    train_loss_error: float
    test_error: float
    test_error_error: float
    jump_mass: np.ndarray
    V_hat: np.ndarray

    @property
    def converged(self) -> bool:
        """Whether every replica met the tolerance."""
        return self.status.converged


def weights_step(model: Model, hats: Hats) -> tuple[Overlaps, float]:
    """New overlaps, and ‖Q‖²/d, of x = (λ + A)⁻¹ b with b ~ N(h, N), averaged over the coordinates."""
    law = model.coordinates
    L, w, gamma = model.n_tokens, law.weight, law.gamma
    _, C, V = prior_response(gamma.T, model.lam, hats.V, w)
    # x = C (H (τ, π) + ζ), ζ ~ N(0, N)
    H = np.concatenate(
        [np.broadcast_to(hats.m.T, (len(w), *hats.m.T.shape)), np.einsum("kl,lrt->krt", gamma, hats.theta)], axis=2
    )
    noise = np.einsum("kl,lab->kab", gamma, hats.q)
    first = C @ H @ law.moments  # E[x (τ, π)ᵀ]
    second = first @ np.swapaxes(C @ H, 1, 2) + C @ noise @ C
    return Overlaps(
        q=np.einsum("k,kl,kab->lab", w, gamma, second),
        m=np.einsum("k,kal->la", w, first[:, :, :L]),
        theta=np.einsum("k,kl,kat->lat", w, gamma, first[:, :, L:]),
        V=V,
    ), float(np.einsum("k,kaa->", w, second))


@dataclass(frozen=True, eq=False)
class _End:
    """What one replica contributes to the result."""

    overlaps: Overlaps
    train_loss: float
    test_error: float
    jump_mass: np.ndarray
    V_hat: np.ndarray


class _Replica:
    """Iteration of state evolution on one point set."""

    def __init__(self, model: Model, alpha: float, n_points: int, rng: np.random.Generator) -> None:
        self.model, self.alpha = model, alpha
        L, t, r = model.n_tokens, model.teacher_rank, model.rank
        white = gaussian_points(n_points, L * (t + r), rng)
        self._student = white[:, L * t :].reshape(n_points, L, r)
        self._y, self._terms = teacher_fields(model, white[:, : L * t].reshape(n_points, L, t))
        self._z: np.ndarray | None = None

    def step(self, overlaps: Overlaps) -> tuple[Overlaps, Hats, float]:
        """One full step: the new overlaps, the hats at the old ones, and the new ‖Q‖²/d."""
        noise = student_noise(self.model, overlaps, self._y, self._student)
        out = denoise_fields(self.model, overlaps, noise, self._terms, self._z)
        self._z = out.z
        hats = average(self.model, self.alpha, overlaps, self._y, noise, self._terms, out)
        after, norm = weights_step(self.model, hats)
        return after, hats, norm

    def iterate(self, state: Overlaps, tol: float, max_iter: int) -> tuple[list[Overlaps], float]:
        """Damped iteration: the overlaps visited, and the last relative change; NaN where it broke down."""
        path = [state]
        while True:
            try:
                after, _, _ = self.step(path[-1])
            except (NotPositiveDefinite, np.linalg.LinAlgError):
                return path, np.nan
            change = _change(path[-1], after)
            if not change > tol or len(path) > max_iter:
                return path, change
            path.append(_mix(path[-1], after))

    def end(self, overlaps: Overlaps) -> _End:
        """Losses at a fixed point: ε_t by the Moreau route of eq. (14), ε_g of eq. (10)."""
        _, hats, norm = self.step(overlaps)
        train = hats.moreau - 0.5 * np.einsum("lab,lba->", hats.q, overlaps.V) + 0.5 * self.model.lam * norm
        noise = student_noise(self.model, overlaps, self._y, self._student)
        test = generalisation_error(self.model, overlaps, self._y, noise)
        return _End(overlaps, float(train), test, hats.jump_mass, hats.V)


def _mix(old: Overlaps, new: Overlaps) -> Overlaps:
    """Average two overlaps. The mean direction overshoots most and is moved least; q by its square root, as where
    weights, not their squares, are averaged."""

    def between(a: np.ndarray, b: np.ndarray, share: float = MIXING) -> np.ndarray:
        return (1 - share) * a + share * b

    root = between(psd_root(old.q), psd_root(new.q))
    return Overlaps(
        q=root @ root,
        m=between(old.m, new.m, MEAN_MIXING),
        theta=between(old.theta, new.theta),
        V=between(old.V, new.V),
    )


def _change(old: Overlaps, new: Overlaps) -> float:
    """Largest change of an overlap, each family relative to its size; m and θ relative to √q, √(qρ) scales."""
    size = np.sqrt(np.abs(new.q).max())
    scales = {"q": np.abs(new.q).max(), "m": size, "theta": size, "V": np.abs(new.V).max()}
    a, b = old.arrays(), new.arrays()
    return max(float(np.abs(a[name] - b[name]).max() / scales[name]) for name in a)


def solve_state_evolution(
    model: Model,
    alpha: float,
    init: Any = "semantic",
    *,
    tol: float = 1e-5,
    max_iter: int = 300,
    n_points: int = 16384,
    n_replicas: int = 8,
    seed: Any = 0,
    raise_on_failure: bool = False,
) -> StateEvolutionResult:
    """Solve the state evolution of eq. (7)-(9) by damped iteration on randomised symmetric point sets.

    Every replica has an independent scrambled point set; the spread of their fixed points is the sampling
    error that is reported.

    Parameters
    ----------
    model : the problem.
    alpha : sample complexity, > 0.
    init : "semantic", "positional", "random", followed for some steps of damped GAMP; or Overlaps to start from.
    tol : bound on the largest relative change of an overlap in a full step.
    max_iter : bound on the iterations of each replica.
    n_points : points of each replica, even.
    n_replicas : independent replicas, at least 2.
    seed : an integer or a numpy Generator.
    raise_on_failure : raise ConvergenceError instead of returning a result that did not converge.

    Returns
    -------
    StateEvolutionResult

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> se = ga.solve_state_evolution(ga.paper_model(), alpha=1.5, n_points=2048)
    >>> f"{se.status.value}, q = {se.overlaps.q[0, 0, 0]:.2f}"
    'converged, q = 0.09'
    """
    require_model(model)
    alpha = check.real("alpha", alpha, low=0, strict=True)
    tol = check.real("tol", tol, low=0, strict=True)
    max_iter = check.integer("max_iter", max_iter, low=1)
    n_points = check.integer("n_points", n_points, low=64)
    n_replicas = check.integer("n_replicas", n_replicas, low=2)
    if n_points % 2:
        raise check.fail("n_points", n_points, "an even number")
    rng = check.generator(seed)
    start = init
    if not isinstance(init, Overlaps):  # go where damped GAMP goes from there
        start = follow(model, alpha, start_law(model, init), WARM_UP_DAMPING, WARM_UP, n_points, rng)[0][-1]
    status, n_iter, residual = Status.CONVERGED, 0, 0.0
    ends: list[_End] = []
    paths: list[list[Overlaps]] = []
    for _ in range(n_replicas):
        replica = _Replica(model, alpha, n_points, rng)
        path, change = replica.iterate(ends[0].overlaps if ends else start, tol, max_iter)
        paths.append(path)
        n_iter, residual = n_iter + len(path) - 1, max(residual, change)
        if not np.isfinite(change):
            status, residual = Status.NONFINITE, np.inf
            break
        if change > tol:
            status = Status.MAX_ITER
        ends.append(replica.end(path[-1]))
    if status is Status.NONFINITE:
        ends = [_nowhere(paths[0][0])] * 2

    overlaps, overlaps_error = _mean_and_error([end.overlaps for end in ends])
    share = 1 / np.sqrt(len(ends))
    train, test = np.array([end.train_loss for end in ends]), np.array([end.test_error for end in ends])
    result = StateEvolutionResult(
        status=status,
        n_iter=n_iter,
        residual=residual,
        history=StateEvolutionHistory(
            **{name: np.stack([o.arrays()[name] for o in paths[0]]) for name in paths[0][0].arrays()}
        ),
        overlaps=overlaps,
        overlaps_error=overlaps_error,
        train_loss=float(train.mean()),
        train_loss_error=float(train.std(ddof=1) * share),
        test_error=float(test.mean()),
        test_error_error=float(test.std(ddof=1) * share),
        jump_mass=np.mean([end.jump_mass for end in ends], axis=0),
        V_hat=np.mean([end.V_hat for end in ends], axis=0),
    )
    return finish(result, raise_on_failure, "solve_state_evolution")


def _nowhere(like: Overlaps) -> _End:
    """The end of an iteration that broke down."""
    lost = {name: np.full_like(values, np.nan) for name, values in like.arrays().items()}
    return _End(Overlaps(**lost), np.nan, np.nan, lost["V"], lost["V"])


def _mean_and_error(samples: list[Overlaps]) -> tuple[Overlaps, Overlaps]:
    """Mean over replicas and its standard error."""
    stacked = {name: np.stack([sample.arrays()[name] for sample in samples]) for name in samples[0].arrays()}
    share = 1 / np.sqrt(len(samples))
    mean = Overlaps(**{name: values.mean(axis=0) for name, values in stacked.items()})
    return mean, Overlaps(**{name: values.std(axis=0, ddof=1) * share for name, values in stacked.items()})
