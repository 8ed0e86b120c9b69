"""Teachers of correlated tokens, or tokens with means, written as teachers of uncorrelated, centred tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention.losses.turned_attention import TurnedAttention
from gamp_attention.models.labels import LabelTeacher
from gamp_attention.models.teachers import Teacher


@dataclass(frozen=True, eq=False)
class TurnedTeacher:
    """Teacher T[H u] H of decorrelated tokens u, for tokens x = H u; the counterpart of `TurnedAttention`."""

    teacher: Teacher
    mixing: np.ndarray  # H (L, L), the symmetric square root of the token covariances tr Σ_ll'/d

    @property
    def even(self) -> bool:
        """True if T[−u] = T[u] for all u."""
        return self.teacher.even

    def __call__(self, u: np.ndarray) -> np.ndarray:
        """Return target matrices (..., L, L) for teacher fields (..., L, t)."""
        return self.teacher(self.mixing @ u) @ self.mixing


def turned_student(student: Any, mixing: np.ndarray) -> TurnedAttention:
    """Return the student's attention map S[H z] H on decorrelated tokens."""
    return TurnedAttention(student, tuple(map(float, mixing.ravel())))


@dataclass(frozen=True)
class ShiftedLabels:
    """Label model as a function of the fields minus their means."""

    teacher: LabelTeacher
    shift: np.ndarray  # (L, t) means of the fields, added before labels are drawn
    even = False

    def n_noise(self, n_tokens: int, rank: int) -> int:
        """Return the number of random numbers per sample, as of the wrapped label model."""
        return self.teacher.n_noise(n_tokens, rank)

    def __call__(self, u: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return labels (N, P) for centred fields u (N, L, t)."""
        return self.teacher(u + self.shift, noise)
