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
    """An attention layer learns the outputs of another, T[y] x."""

    teacher: Teacher
    student: Any
    trace: np.ndarray  # (L,) of tr Σ_l/d
    attention = True
    jumps = True
    n_noise = 0

    def check(self, n_tokens: int, teacher_rank: int) -> None:
        """Try the teacher on a few fields."""
        check_teacher(self.teacher, n_tokens, teacher_rank)

    def terms(self, y: np.ndarray, noise: np.ndarray) -> RiskTerms:
        """Loss parameters of the asymptotic risk, with targets T[y]."""
        return asymptotic_terms(self.teacher(y), self.trace[None])

    def errors(self, z: np.ndarray, y: np.ndarray, terms: RiskTerms) -> np.ndarray:
        """(1/L) Tr[(S − T) ρ (S − T)ᵀ] of each sample, equation (10)."""
        difference = self.student(z) - self.teacher(y)
        return np.einsum("nij,j->n", difference**2, self.trace) / len(self.trace)

    def errors_at(
        self, tokens: np.ndarray, positions: np.ndarray, z: np.ndarray, y: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """‖y − f_Q(x)‖_F²/(dL) of each sample, equation (4)."""
        difference = self.teacher(y) @ tokens - self.student(z) @ (tokens + positions)
        return np.einsum("nld,nld->n", difference, difference) / tokens[0].size
