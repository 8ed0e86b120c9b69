"""Attention with several heads: runs end at zero gradient of torch, and the symmetries of the weights."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.problem.symmetries import agreement_of
from tests.conftest import layer_risk


def test_runs_end_at_zero_gradient_of_torch():
    pytest.importorskip("torch")
    data = ga.sample(
        ga.attention_model(student=ga.MultiHeadAttention(2), omega=0.1, lam=0.02), d=100, alpha=2.0, seed=0
    )
    gamp = ga.run_gamp(data, "semantic", tol=1e-9)
    assert gamp.converged
    risk, gradient = layer_risk(data, gamp.Q, "exact")
    assert np.linalg.norm(gradient) < 1e-8 * 0.02 * 10
    assert gamp.train_loss == pytest.approx(risk / 100, rel=1e-10)


@pytest.mark.parametrize(("rank", "tied"), [(1, True), (2, True), (2, False)])
def test_agreement_ignores_order_of_heads_and_rotations_within(rank, tied):
    model = ga.attention_model(rank=rank, student=ga.MultiHeadAttention(3, tied=tied))
    data, rng = ga.sample(model, d=30, alpha=2.0), np.random.default_rng(0)
    Q = rng.normal(size=(30, model.rank))
    layout = data.student.head_layout(model.rank)
    changed = np.empty_like(Q)
    for h, other in enumerate((2, 0, 1)):
        rotation = np.linalg.qr(rng.normal(size=(layout.size, layout.size)))[0]
        for ours, theirs in zip(layout.scores(h), layout.scores(other), strict=True):
            changed[:, ours] = Q[:, theirs] @ rotation
    assert ga.train_loss(data, changed) == pytest.approx(ga.train_loss(data, Q), rel=1e-12)
    assert agreement_of(data, Q, changed) == pytest.approx(1.0)
    mixed = Q @ np.linalg.qr(rng.normal(size=(model.rank, model.rank)))[0]  # this layer differs: heads are mixed
    assert agreement_of(data, Q, mixed) < 0.95


@pytest.mark.parametrize(("loss", "agreement"), [(ga.SquaredLoss(), 0.0), (ga.PhaseRetrievalLoss(), 1.0)])
def test_opposite_weights_agree_only_if_their_sign_does_not_change_the_risk(loss, agreement):
    rng = np.random.default_rng(0)
    data, Q = ga.LabelledDataset(rng.normal(size=(20, 6)), np.ones(20), loss), rng.normal(size=(6, 1))
    assert agreement_of(data, Q, -Q) == pytest.approx(agreement)


def test_heads_with_different_penalties_are_not_exchanged():
    model = ga.attention_model(student=ga.MultiHeadAttention(2), lam=[0.1, 0.2])
    data, Q = ga.sample(model, d=30, alpha=2.0), np.random.default_rng(0).normal(size=(30, 2))
    assert agreement_of(data, Q, -Q) == pytest.approx(1.0)
    assert agreement_of(data, Q, Q[:, ::-1]) < 0.9
