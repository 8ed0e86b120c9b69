"""Attention with several heads: values, derivatives and bounds against torch, and the symmetries of its weights."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.problem.losses.checks import curvature_bound
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.problem.symmetries import agreement_of

CASES = [(2, 1, True, False), (2, 2, False, True), (3, 1, False, False), (1, 2, True, True)]


def random_samples(heads, size, tied, causal, n=3, L=3):
    """Return a loss, its parameters (n, 2 L²) with G ≥ 0, and fields (n, L, r)."""
    rng = np.random.default_rng(0)
    x, rank = rng.normal(size=(n, L, 5)), heads * size * (1 if tied else 2)
    params = np.concatenate([(x @ x.transpose(0, 2, 1) / 5).reshape(n, -1), rng.normal(size=(n, L * L))], axis=1)
    loss = ga.AttentionLoss(ga.MultiHeadAttention(heads, 0.7, tied, causal), L, rank)
    return loss, params, rng.normal(size=(n, L, rank))


@pytest.mark.parametrize("case", CASES)
def test_derivatives_equal_automatic_differentiation(case):
    torch = pytest.importorskip("torch")
    loss, params, z = random_samples(*case)
    values, gradients, hessians = sample_derivatives(loss, params, z)
    for mu in range(len(z)):

        def risk(fields, mu=mu):
            return loss.torch(torch.tensor(params[mu : mu + 1]), fields.reshape(1, *z[mu].shape))[0]

        at = torch.tensor(z[mu].ravel())
        np.testing.assert_allclose(values[mu], risk(at).item(), rtol=1e-13)
        np.testing.assert_allclose(
            gradients[mu].ravel(), torch.autograd.functional.jacobian(risk, at).numpy(), atol=1e-13
        )
        np.testing.assert_allclose(hessians[mu], torch.autograd.functional.hessian(risk, at).numpy(), atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_weights_are_the_mean_of_single_heads(case):
    """The columns are the queries of all heads, one head after the other, and then their keys."""
    heads, size, tied, causal = case
    loss, _, z = random_samples(*case)
    single, half = ga.DotProductAttention(0.7, tied, causal), 0 if tied else heads * size
    maps = []
    for h in range(heads):
        columns = [*range(h * size, (h + 1) * size)]
        maps.append(single(z[..., columns + ([] if tied else [half + a for a in columns])]))
    np.testing.assert_allclose(loss.attention(z), np.mean(maps, axis=0), atol=1e-15)


@pytest.mark.parametrize("case", CASES)
def test_no_eigenvalue_is_below_the_bound_of_the_curvature(case):
    loss, params, z = random_samples(*case)
    for scale in (0.1, 1.0, 3.0):
        fields = scale * z
        lowest = np.linalg.eigvalsh(sample_derivatives(loss, params, fields)[2]).min(axis=1)
        zero = np.zeros(z[0].size)
        for mu in range(len(z)):
            assert curvature_bound(loss, params[mu], zero, float(np.linalg.norm(fields[mu]))) <= lowest[mu]


def test_one_head_is_the_usual_layer():
    plain, heads = (ga.sample(ga.attention_model(rank=2, student=s), d=60, alpha=2.0, seed=0)
                    for s in (None, ga.MultiHeadAttention(heads=1)))  # fmt: skip
    Q = np.random.default_rng(1).normal(size=(60, 2))
    assert ga.train_loss(heads, Q) == pytest.approx(ga.train_loss(plain, Q), rel=1e-12)
    np.testing.assert_allclose(ga.gradient(heads, Q), ga.gradient(plain, Q), atol=1e-12)


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
    mixed = (
        Q @ np.linalg.qr(rng.normal(size=(model.rank, model.rank)))[0]
    )  # a rotation that mixes heads is another layer
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
    ],
)
def test_bad_heads(options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        ga.attention_model(**options)
