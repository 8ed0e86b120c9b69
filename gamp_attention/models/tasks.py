"""What a student learns from a teacher: the loss that the teacher's fields imply, and the student's test error."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gamp_attention.losses.terms import RiskTerms, asymptotic_terms
from gamp_attention.models.teachers import Teacher, check_teacher


class Task(Protocol):
    """What the algorithms ask of teacher and student together, at teacher fields y (N, L, t) and fields z (N, L, r)."""

    @property
    def attention(self) -> bool:
        """Whether an attention layer is learnt; then the loss is a smooth function of the teacher's fields."""

    @property
    def jumps(self) -> bool:
        """Whether the proximal map may jump, so that the average of its a.e. derivative is not the whole response."""

    @property
    def n_noise(self) -> int:
        """Gaussian numbers that the labels of a sample are drawn with, beside the teacher's fields."""

    def check(self, n_tokens: int, teacher_rank: int) -> None:
        """Try the teacher on a small input."""

    def terms(self, y: np.ndarray, noise: np.ndarray) -> RiskTerms:
        """Loss parameters for teacher fields, given label noise (N, n_noise)."""

    def errors(self, z: np.ndarray, y: np.ndarray, terms: RiskTerms) -> np.ndarray:
        """Test errors (N,) in the limit of large d, where `terms` are those of y."""

    def errors_at(
        self, tokens: np.ndarray, positions: np.ndarray, z: np.ndarray, y: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Test errors (N,) of given tokens (N, L, d), which have the fields z and y."""


@dataclass(frozen=True, eq=False)
class AttentionTask:
    """An attention layer learns the outputs of another, T[y] x, or (T[y] + s N) x with white noise N (L, L)."""

    teacher: Teacher
    student: Any
    trace: np.ndarray  # (L,) of tr Σ_l/d
    noise: float = 0.0  # s
    attention = True
    jumps = True

    @property
    def n_noise(self) -> int:
        """One for each entry of the target, if there is noise."""
        return len(self.trace) ** 2 if self.noise else 0

    def check(self, n_tokens: int, teacher_rank: int) -> None:
        """Try the teacher on a few fields."""
        check_teacher(self.teacher, n_tokens, teacher_rank)

    def terms(self, y: np.ndarray, noise: np.ndarray) -> RiskTerms:
        """Loss parameters of the asymptotic risk, with targets T[y] + s N.

        N is turned with the sign of y, so that mirror images of all white coordinates have the same target.
        """
        return asymptotic_terms(self.targets(y, noise), self.trace[None])

    def targets(self, y: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """T[y] + s N."""
        targets = self.teacher(y)
        if self.noise:
            turned = np.where(y[:, 0, 0] < 0, -self.noise, self.noise)
            targets = targets + turned[:, None, None] * noise.reshape(targets.shape)
        return targets

    def errors(self, z: np.ndarray, y: np.ndarray, terms: RiskTerms) -> np.ndarray:
        """(1/L) Tr[(S − T) ρ (S − T)ᵀ] of each sample, equation (10), averaged over its noise."""
        difference = self.student(z) - self.teacher(y)
        return np.einsum("nij,j->n", difference**2, self.trace) / len(self.trace) + self.noise_error

    @property
    def noise_error(self) -> float:
        """What noise adds to any test error, s² Σ_l tr Σ_l/d."""
        return self.noise**2 * float(self.trace.sum())

    def errors_at(
        self, tokens: np.ndarray, positions: np.ndarray, z: np.ndarray, y: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """‖y − f_Q(x)‖_F²/(dL) of each sample, equation (4)."""
        targets = self.teacher(y)
        if self.noise:
            targets = targets + self.noise * rng.standard_normal(targets.shape)
        difference = targets @ tokens - self.student(z) @ (tokens + positions)
        return np.einsum("nld,nld->n", difference, difference) / tokens[0].size
