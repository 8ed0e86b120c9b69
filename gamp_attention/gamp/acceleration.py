"""Guarded Anderson acceleration of message passing.

With u_k the states (Q, D, V) and f_k = G(u_k) − u_k the moves of the damped iteration G, the next state is
G(u) − Σ_j c_j (Δu_j + Δf_j), in which Δ are differences between consecutive iterations and c minimizes
‖f − Σ_j c_j Δf_j‖ (Anderson, 1965; Walker and Ni, 2011). This leaves the fixed points of G unchanged, at which D = V g,
but state evolution describes only the fixed point and no longer the iterates.

Extrapolation may diverge, or converge to an unstable fixed point. So the gradient norm is monitored: if it rises, the
run returns to the damped successor of its best state, and makes some damped iterations before it extrapolates again.
"""

import numpy as np

from gamp_attention._tools.checkpoints import Resumable
from gamp_attention.gamp.step import GampState

DEPTH = 15  # maximum number of differences Δf in the least-squares problem
WARM_UP = 3  # damped iterations before the first extrapolation, and after the state was changed from outside
MAX_RISE = 2.0  # an extrapolation is undone if the gradient norm exceeds its minimum by this factor
PAUSE = 5  # after the k-th undone extrapolation, PAUSE · k damped iterations follow
MIN_VARIANCE = 0.1  # smallest accepted eigenvalue of the extrapolated V, in units of the damped V
REGULARIZATION = 1e-14  # relative ridge of the least-squares problem, against rounding


class Acceleration(Resumable):
    """Extrapolation from the last iterations, which returns to damped iterations if the gradient norm rises.

    `wait` damped iterations precede the first extrapolation.
    """

    n_refused: int  # number of extrapolations that were undone
    wait: int  # number of damped iterations before the next extrapolation
    moves: list[np.ndarray]  # differences Δf of (Q, D) between consecutive iterations, as vectors
    steps: list[tuple[np.ndarray, np.ndarray, np.ndarray]]  # the differences Δu + Δf of (Q, D, V) that belong to them
    last: tuple[np.ndarray, GampState] | None  # f and the damped successor of the last iteration
    lowest_norm: float  # minimum of the gradient norm since the last restart
    fallback: GampState | None  # damped successor of the state with this norm

    def __init__(self, wait: int = WARM_UP) -> None:
        self.n_refused, self.wait = 0, wait
        self._forget()

    def _forget(self) -> None:
        self.moves, self.steps, self.last = [], [], None
        self.lowest_norm, self.fallback = np.inf, None

    def __call__(self, state: GampState, after: GampState, norm: float) -> GampState:
        """Return the next state, given a state, its damped successor `after` and the gradient norm at the state."""
        fallback = self.fallback
        if fallback is not None and norm > MAX_RISE * self.lowest_norm:
            self.n_refused += 1
            self.wait = PAUSE * self.n_refused
            self._forget()
            return fallback
        # each part has unit weight per entry, so that neither Q nor D dominates the norm that c minimizes
        changes = after.Q - state.Q, after.D - state.D
        move = np.concatenate([change.ravel() / np.sqrt(change.size) for change in changes])
        if self.last is not None:
            before, reached = self.last
            self.moves = [*self.moves, move - before][-DEPTH:]
            step = after.Q - reached.Q, after.D - reached.D, after.V - reached.V
            self.steps = [*self.steps, step][-DEPTH:]
        self.last = move, after
        if self.wait > 0:  # no check against the smallest norm: damped iterations may pass through larger gradients
            self.wait -= 1
            return after
        if norm < self.lowest_norm:
            self.lowest_norm, self.fallback = norm, after
        return self._extrapolate(after, move)

    def restart(self) -> None:
        """Discard all differences, because the state or the damping was changed from outside."""
        self._forget()
        self.wait = max(self.wait, WARM_UP)

    def _extrapolate(self, after: GampState, move: np.ndarray) -> GampState:
        if not self.moves:
            return after
        moves = np.array(self.moves)
        gram = moves @ moves.T
        scale = np.sqrt(np.diag(gram))
        if not (scale > 0).all():
            return after
        gram = gram / np.outer(scale, scale) + REGULARIZATION * np.eye(len(gram))
        c = np.linalg.lstsq(gram, moves @ move / scale, rcond=None)[0] / scale
        Q, D, V = (
            start - sum(weight * part for weight, part in zip(c, parts, strict=True))
            for start, parts in zip((after.Q, after.D, after.V), zip(*self.steps, strict=True), strict=True)
        )
        if not all(np.isfinite(part).all() for part in (Q, D, V)):
            return after
        if np.linalg.eigvalsh(V).min() < MIN_VARIANCE * np.linalg.eigvalsh(after.V).min():
            V = after.V
        return GampState(Q, V, D, after.z)
