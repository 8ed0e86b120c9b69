"""Attention with several heads: runs end at zero gradient of torch, and the symmetries of the weights."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.problem.symmetries import agreement_of


def test_runs_end_at_zero_gradient_of_torch():
    torch = pytest.importorskip("torch")
    data = ga.sample(
        ga.attention_model(student=ga.MultiHeadAttention(2), omega=0.1, lam=0.02), d=100, alpha=2.0, seed=0
    )
    gamp = ga.run_gamp(data, "semantic", tol=1e-9)
    assert gamp.converged
    Q = torch.tensor(gamp.Q, requires_grad=True)
    x = torch.tensor(data.tokens) + torch.tensor(data.positions)
    z = x @ Q / 10
    S = sum((z[..., [h]] @ z[..., [h]].transpose(1, 2)).softmax(dim=-1) for h in range(2)) / 2
    risk = ((torch.tensor(data.outputs) - S @ x) ** 2).sum() / 200 + 0.01 * (Q**2).sum()
    risk.backward()
    assert Q.grad.norm().item() < 1e-8 * 0.02 * 10
    assert gamp.train_loss == pytest.approx(risk.item() / 100, rel=1e-10)


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"student": ga.MultiHeadAttention(heads=0)}, "heads"),
        ({"student": ga.MultiHeadAttention(temperature=0.0)}, "temperature"),
        ({"student": ga.MultiHeadAttention(tied=False), "rank": 1}, "multiple of 4"),
        ({"student": ga.DotProductAttention(tied=False), "rank": 3}, "multiple of 2"),
    ],
)
def test_bad_heads(options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        ga.attention_model(**options)
