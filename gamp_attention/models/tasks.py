"""Learning tasks: the loss that a teacher's fields imply for the student, and the student's test error."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gamp_attention.losses.attention import RiskTerms, asymptotic_terms
from gamp_attention.models.teachers import Teacher, check_teacher


class Task(Protocol):
    """Interface of a task: loss and test error as functions of teacher fields y (N, L, t) and fields z (N, L, r)."""

    @property
    def attention(self) -> bool:
        """True if an attention layer is learned; the loss is then a smooth function of the teacher's fields."""

    @property
    def jumps(self) -> bool:
        """True if the proximal map may be discontinuous; V̂ is then not the average of its a.e. derivative."""

    @property
    def n_noise(self) -> int:
        """Number of Gaussian random numbers per sample that the labels need in addition to the teacher's fields."""

    def check(self, n_tokens: int, teacher_rank: int) -> None:
        """Raise TypeError or ValueError unless the teacher accepts a small input."""

    def terms(self, y: np.ndarray, noise: np.ndarray) -> RiskTerms:
        """Return the loss parameters for teacher fields y, given label noise (N, n_noise)."""

    def errors(self, z: np.ndarray, y: np.ndarray, terms: RiskTerms) -> np.ndarray:
        """Return test errors (N,) in the limit of large d; `terms` are the loss parameters of y."""

    def errors_at(
        self, tokens: np.ndarray, positions: np.ndarray, z: np.ndarray, y: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return test errors (N,) on tokens (N, L, d) whose fields are z and y."""


@dataclass(frozen=True, eq=False)
class AttentionTask:
    """Learning the outputs T[y] x, or (T[y] + s N) x with white noise N (L, L), of an attention layer by another."""

    teacher: Teacher
    student: Any
    trace: np.ndarray  # (L,) tr Σ_l/d
    noise: float = 0.0  # standard deviation s of the score noise
    attention = True
    jumps = True

    @property
    def n_noise(self) -> int:
        """One number for each entry of the target, if there is noise."""
        return len(self.trace) ** 2 if self.noise else 0

    def check(self, n_tokens: int, teacher_rank: int) -> None:
        """Raise TypeError or ValueError unless the teacher accepts a few fields."""
        check_teacher(self.teacher, n_tokens, teacher_rank)

    def terms(self, y: np.ndarray, noise: np.ndarray) -> RiskTerms:
        """Return the parameters of the asymptotic risk for targets T[y] + s N.

        The sign of N follows the sign of y, so that a sample and its mirror image (all white coordinates negated) have
        the same target.
        """
        return asymptotic_terms(self.targets(y, noise), self.trace[None])

    def targets(self, y: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return targets T[y] + s N, with the sign of N as in `terms`."""
        targets = self.teacher(y)
        if self.noise:
            signed_noise = np.where(y[:, 0, 0] < 0, -self.noise, self.noise)
            targets = targets + signed_noise[:, None, None] * noise.reshape(targets.shape)
        return targets

    def errors(self, z: np.ndarray, y: np.ndarray, terms: RiskTerms) -> np.ndarray:
        """Return (1/L) Tr[(S − T) ρ (S − T)ᵀ] of each sample, equation (10), averaged over its noise."""
        difference = self.student(z) - self.teacher(y)
        return np.einsum("nij,j->n", difference**2, self.trace) / len(self.trace) + self.noise_error

    @property
    def noise_error(self) -> float:
        """Contribution s² Σ_l tr Σ_l/d of the score noise to any test error."""
        return self.noise**2 * float(self.trace.sum())

    def errors_at(
        self, tokens: np.ndarray, positions: np.ndarray, z: np.ndarray, y: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return ‖y − f_Q(x)‖_F²/(dL) of each sample, equation (4), with fresh noise from `rng`."""
        targets = self.teacher(y)
        if self.noise:
            targets = targets + self.noise * rng.standard_normal(targets.shape)
        difference = targets @ tokens - self.student(z) @ (tokens + positions)
        return np.einsum("nld,nld->n", difference, difference) / tokens[0].size
