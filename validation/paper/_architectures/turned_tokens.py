"""Two correlated tokens, E[x_1 x_2ᵀ] = c σ² I, as two independent ones: the problem in turned tokens u = R x.

R turns them to sum and difference, of variances (1 ± c) σ², and R² = 1. As ‖T x − S (x + p)‖ is the norm of
R T R u − R S R (u + R p), the problem is one of the package's general models: uncorrelated tokens, teacher R T[R y] R
and attention map R S[R z] R, with the same weights Q. So message passing and state evolution cover it exactly.
"""

from dataclasses import dataclass
from math import exp, sqrt
from typing import NamedTuple

import numpy as np

import gamp_attention as ga

CORRELATION = 0.3  # c
HALF = sqrt(0.5)
R = np.array([[HALF, HALF], [HALF, -HALF]])


@ga.register_attention
class TurnedSoftmax(NamedTuple):
    """R S[R z] R, with S the tied softmax of two tokens."""

    even = True
    rotations = True

    def attend(self, z, S):
        """Fill S (2, 2) from fields z (2, r)."""
        first = second = cross = 0.0
        for a in range(z.shape[1]):
            u, v = HALF * (z[0, a] + z[1, a]), HALF * (z[0, a] - z[1, a])
            first += u * u
            second += v * v
            cross += u * v
        to_second, to_first = 1 / (1 + exp(first - cross)), 1 / (1 + exp(second - cross))  # of tokens 1 and 2
        S[0, 0] = 1.0
        S[0, 1] = to_first - to_second
        S[1, 0] = 0.0
        S[1, 1] = 1 - to_first - to_second


@dataclass(frozen=True)
class TurnedTeacher:
    """R T[R y] R, for the teacher T of eq. (16)."""

    teacher: ga.SoftmaxTeacher
    even = True

    def __call__(self, u):
        """Matrices (..., 2, 2) of teacher fields (..., 2, t)."""
        return R @ self.teacher(R @ u) @ R


def correlated_model(omega, sigma=0.5):
    """The paper's model with correlated tokens, in turned tokens."""
    plain = ga.paper_model(omega, sigma)
    return ga.attention_model(
        sigma=sigma * np.sqrt([1 + CORRELATION, 1 - CORRELATION]), tau=R @ plain.coordinates.tau[0],
        teacher=TurnedTeacher(plain.teacher), student=TurnedSoftmax(),
    )  # fmt: skip


def turned_back(data):
    """The same samples as own arrays of the correlated tokens, for the ordinary layer."""
    tokens = np.einsum("lk,nkd->nld", R, data.tokens)
    outputs = np.einsum("lk,nkd->nld", R, data.outputs)
    return ga.Dataset(tokens, outputs, R @ data.positions, data.lam)
