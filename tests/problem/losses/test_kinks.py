"""Attention maps with kinks: a warning at first use, and runs that end with a status in reasonable time."""

import warnings
from typing import NamedTuple

import numpy as np
import pytest

import gamp_attention as ga
from docs.examples.sigmoid_attention import SigmoidAttention


@ga.register_attention
class KnownKinks(NamedTuple):
    """Rows of relu(z zᵀ) + ε, divided by their sums: a map with kinks."""

    eps: float = 0.1
    even = bounded = rotations = True
    smooth = False

    def attend(self, z, S):
        for i in range(z.shape[0]):
            total = 0.0
            for j in range(z.shape[0]):
                S[i, j] = max(np.sum(z[i] * z[j]), 0.0) + self.eps
                total += S[i, j]
            for j in range(z.shape[0]):
                S[i, j] /= total


@ga.register_attention
class ReluRows(NamedTuple):
    """The map of `KnownKinks`, which does not declare its kinks."""

    eps: float = 0.1
    even = bounded = rotations = True
    attend = KnownKinks.attend


@ga.register_attention
class Clipped(NamedTuple):
    """Linear attention with weights clipped far from zero."""

    even = rotations = True

    def attend(self, z, S):
        for i in range(z.shape[0]):
            for j in range(z.shape[0]):
                S[i, j] = min(max(np.sum(z[i] * z[j]), -2.0), 2.0)


@ga.register_attention
class HardMaximum(NamedTuple):
    """All attention to the token with the largest score, so that S itself jumps."""

    even = bounded = rotations = True

    def attend(self, z, S):
        S[:] = 0.0
        for i in range(z.shape[0]):
            best = 0
            for j in range(z.shape[0]):
                if np.sum(z[i] * z[j]) > np.sum(z[i] * z[best]):
                    best = j
            S[i, best] = 1.0


@pytest.mark.parametrize("student", [ReluRows(), ReluRows(0.3), Clipped(), HardMaximum()])
@pytest.mark.parametrize("rank", [1, 2])
def test_kinks_cause_a_warning_at_first_use(student, rank):
    with pytest.warns(ga.KinkWarning, match=f"{type(student).__name__}.attend has kinks: its slope jumps by"):
        ga.attention_model(2, rank, 1, student=student)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the warning is given only once
        ga.attention_model(2, rank, 1, student=student)


@pytest.mark.parametrize("student", [KnownKinks(), SigmoidAttention(), SigmoidAttention(30.0), SigmoidAttention(1e-3)])
def test_smooth_maps_and_declared_kinks_cause_no_warning(student):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for L, r in ((2, 1), (4, 2)):
            ga.attention_model(L, r, 1, student=student)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("init", ["semantic", "random"])
def test_a_run_with_kinks_reports_its_gradient_norm(init):
    data = ga.sample(ga.attention_model(student=KnownKinks(), lam=0.01), 200, 1.5, seed=0)
    result = ga.run_gamp(data, init)
    norm = np.linalg.norm(ga.gradient(data, result.Q)) / (data.lam * np.sqrt(data.dim))
    assert norm == pytest.approx(result.gradient_norm, rel=1e-6, abs=1e-12)
    assert result.converged == (norm <= 1e-8)
    assert result.converged or "continues from these weights" in result.message
