"""Message passing that keeps local proximal minima, for d → ∞: the iteration that runs use, with every memory term.

After `hold_after` iterations, each sample of a run keeps the proximal minimum that continues its last minimum, and the
response V̂ is the average of derivatives of samples. The output function then depends on all earlier fields, and its
jumps are not in V̂. Its Onsager terms therefore do not cancel the memory of the data, and state evolution with one
time, or with the covariances between times, does not describe it. The iteration is nevertheless a first-order method,

    Q^{t+1} = Q^t − β C_t (λ Q^t − X̃ᵀg^t),   C_t = (λ + Σ_l γ_l V̂_l^t)⁻¹,

for which the equations of descent hold (Celentano, Cheng and Montanari, 2021), with C_t in place of the step size and g
in place of −∇ℓ. Along a path, z^t = X̃Q^t = m^t + ω̃^t + h^t with the memory h^t = Σ_s R(t, s) g^s, ω^t = z^t − D^t, and
the proximal step starts from the last minimum of the path. The mean responses of g to earlier fields, including jumps,
follow from Stein's identity (`compressed_descent`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

import gamp_attention as ga
from gamp_attention.denoisers.input import quadratic_response
from gamp_attention.denoisers.output import denoise
from gamp_attention.losses.point import sample_derivatives
from gamp_attention.state_evolution.dynamics.compressed_descent import CompressedPaths, CompressedWeights
from gamp_attention.state_evolution.dynamics.descent_paths import DescentForces
from gamp_attention.state_evolution.dynamics.start_law import start_law
from gamp_attention.state_evolution.equations.symmetry import Symmetry


@dataclass(frozen=True)
class Preconditioner:
    """The step Q ← Q − β C ∇ of message passing, in the form of a method of descent; C has an entry for each class."""

    steps: np.ndarray  # (K,) β C

    def step(self, x: np.ndarray, velocity: np.ndarray, slope: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Return x after a step with the gradient `slope`, both (K, …), and an unused velocity."""
        return x - self.steps.reshape(-1, *[1] * (x.ndim - 1)) * slope, velocity


class HeldPaths(CompressedPaths):
    """Sampled paths of message passing, with the last proximal minimum z and the Onsager memory D of each path."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._z: np.ndarray | None = None
        self._D = np.zeros((self.n, self.model.n_tokens, self.model.rank))
        self._g = np.zeros_like(self._D)
        self.constant = float(self._paths.terms.constant.mean())

    def pass_messages(self, alpha: float, now: ga.Overlaps, hold: bool) -> tuple[DescentForces, np.ndarray]:
        """Return the forces at this time, and V̂ (L, r, r), the average of the derivatives of samples.

        As in `CompressedPaths.evaluate_forces`, the last response is the direct response to the field at this time, −V̂.
        The jumps of g at this field are part of the responses to stored times.
        """
        model, terms = self.model, self._paths.terms
        fields = self.fields + now.m
        z = fields + np.einsum("k,kl,klan->nla", self._weight, self._gamma, self._h)
        out = denoise(model.loss, terms.params, z - self._D, now.V, self._z, hold=hold)
        self._z, self._g, self._force = out.z, out.g, out.g.transpose(1, 2, 0)
        value, _, _ = sample_derivatives(model.loss, terms.params, z)
        r, t, V_hat = model.rank, model.teacher_rank, alpha * out.response.mean(axis=0)
        tokens = enumerate(self._paths.of_token)
        D = np.array([path.slopes(alpha * out.g[:, l] + self.fields[:, l] @ V_hat[l]) for l, path in tokens])
        on_stored = D[:, :, t:].reshape(len(D), r, -1, r).transpose(2, 0, 1, 3)
        forces = DescentForces(
            m=alpha * (np.zeros_like(now.m) if self._even else self._force.mean(axis=2)),
            theta=D[:, :, :t],
            q=np.zeros((0, model.n_tokens, r, r)),
            response=np.concatenate([on_stored, -V_hat[None]]),
            loss=alpha * float(np.mean(value + terms.constant)),
            test_error=float(np.mean(model.task.errors(fields, self._paths.y, terms))),
        )
        return forces, V_hat

    def remember(self, W: np.ndarray, beta: float) -> None:
        """Update the Onsager memory, as runs do."""
        self._D = (1 - beta) * self._D + beta * np.einsum("lab,nlb->nla", W, self._g)


def follow_held_messages(
    model: ga.Model, alpha: float, init: str, beta: float, n_iter: int, hold_after: int, n_paths: int, seed: Any,
    tolerance: float = 1e-3,
) -> dict[str, Any]:  # fmt: skip
    """Return q, m, V of the first token and the training loss at times 0, …, n_iter, stored times, and the constant.

    The entry "constant" is the mean over the paths of the part of the loss that does not depend on the weights.

    Parameters
    ----------
    model : a model without mixtures, with one column of weights, the ridge penalty and no intercept.
    alpha, init, beta : sample complexity, start, and constant step β.
    n_iter, hold_after : number of iterations, and the iteration from which local minima are kept.
    n_paths, seed : number of sampled paths, and their seed.
    tolerance : relative standard deviation of a field that stored times may leave undetermined.
    """
    rng, start, law = np.random.default_rng(seed), start_law(model, init), model.coordinates
    even = Symmetry.of(model, start.overlaps(model)).m_zero
    weights, (component,) = CompressedWeights(model, start), model.components
    paths = HeldPaths(component, model, n_paths, rng, even)
    V, stored = start.V.copy(), []
    numbers: dict[str, Any] = {name: [] for name in ("q", "m", "V", "train_loss")}
    for t in range(n_iter + 1):
        now, covariances = weights.evaluate(paths.noise(alpha))
        now = ga.Overlaps(now.q, now.m, now.theta, V)
        if t == 0 or not paths.project(now, covariances) <= tolerance:
            paths.store(now, covariances, None)
            weights.store()
            stored.append(t)
        forces, V_hat = paths.pass_messages(alpha, now, t >= hold_after)
        for name in ("q", "m", "V"):
            numbers[name].append(float(np.ravel(getattr(now, name))[0]))
        numbers["train_loss"].append(forces.loss + weights.penalty())
        _, C, W = quadratic_response(model.penalty, law.gamma.T, V_hat, None, law.weight)
        method, A = Preconditioner(beta * C[:, 0, 0]), np.einsum("kl,slab->skab", law.gamma, forces.response)
        weights.descend(forces, A, method, t)
        paths.descend(A, weights.strengths, method, t)
        V = (1 - beta) * V + beta * W
        paths.remember(W, beta)
    return numbers | {"stored": stored, "constant": paths.constant}
