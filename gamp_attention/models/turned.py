"""Teachers of tokens that are correlated, or have means, as teachers of uncorrelated and centred ones."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention.losses.turned_attention import TurnedAttention
from gamp_attention.models.labels import LabelTeacher
from gamp_attention.models.teachers import Teacher


@dataclass(frozen=True, eq=False)
class TurnedTeacher:
    """T[H u] H, for tokens x = H u of uncorrelated u; what attention weights become in `TurnedAttention`."""

    teacher: Teacher
    mixing: np.ndarray  # H (L, L)

    @property
    def even(self) -> bool:
        """T[−u] = T[u]."""
        return self.teacher.even

    def __call__(self, u: np.ndarray) -> np.ndarray:
        """Target matrices (..., L, L) of teacher fields (..., L, t)."""
        return self.teacher(self.mixing @ u) @ self.mixing


def turned_student(student: Any, mixing: np.ndarray) -> TurnedAttention:
    """S[H z] H."""
    return TurnedAttention(student, tuple(map(float, mixing.ravel())))


@dataclass(frozen=True)
class ShiftedLabels:
    """Labels at fields that have means, as labels of these fields less their means."""

    teacher: LabelTeacher
    shift: np.ndarray  # (L, t)
    even = False

    def n_noise(self, n_tokens: int, rank: int) -> int:
        """Those of the teacher."""
        return self.teacher.n_noise(n_tokens, rank)

    def __call__(self, u: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Labels (N, P)."""
        return self.teacher(u + self.shift, noise)
