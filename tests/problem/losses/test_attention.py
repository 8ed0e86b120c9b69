"""Attention maps: derivatives compared with torch, masks, and relations of tied, untied, causal and linear maps."""

import numpy as np
import pytest
import torch

import gamp_attention as ga
from gamp_attention.problem.losses.attention import pack_attention_parameters
from gamp_attention.problem.losses.point import sample_derivatives

MAPS = [  # temperature, tied, causal, softmax, heads
    ga.DotProductAttention(1.0, True, False, True),
    ga.DotProductAttention(0.7, False, False, True),
    ga.DotProductAttention(1.5, True, True, True),
    ga.DotProductAttention(1.0, True, False, False),
    ga.DotProductAttention(2.0, False, True, False),
    ga.MultiHeadAttention(2, 0.7),
    ga.MultiHeadAttention(3, 1.0, tied=False, causal=True),
]


def draw_parameters(rng, n, L):
    x = rng.normal(size=(n, L, 12))
    y = rng.normal(size=(n, L, 12))
    return pack_attention_parameters(x @ x.transpose(0, 2, 1) / 12, x @ y.transpose(0, 2, 1) / 12)


@pytest.mark.parametrize("student", MAPS, ids=str)
@pytest.mark.parametrize("L", [1, 3, 6])
def test_derivatives_agree_with_autograd(student, L):
    """Six tokens are more than `FEW_TOKENS`."""
    rng, r = np.random.default_rng(L), 2 * student.parts * student.heads
    params, z = draw_parameters(rng, 4, L), rng.normal(size=(4, L, r))
    value, grad, hess = sample_derivatives(ga.AttentionLoss(student, L, r), params, z)
    for mu in range(4):
        G, M = (torch.tensor(block.reshape(L, L)) for block in np.split(params[mu], 2))

        def torch_loss(flat, G=G, M=M):
            S = student(flat.reshape(L, r))
            return 0.5 * torch.trace(S @ G @ S.T) - torch.trace(S @ M)

        at = torch.tensor(z[mu].ravel())
        assert student(z[mu]) == pytest.approx(student(torch.tensor(z[mu])).numpy(), abs=1e-14)
        assert value[mu] == pytest.approx(float(torch_loss(at)), rel=1e-12)
        assert grad[mu].ravel() == pytest.approx(
            torch.autograd.functional.jacobian(torch_loss, at).numpy(), rel=1e-10, abs=1e-12
        )
        assert hess[mu] == pytest.approx(torch.autograd.functional.hessian(torch_loss, at).numpy(), rel=1e-9, abs=1e-11)


def test_a_causal_token_does_not_attend_to_later_tokens():
    z = np.random.default_rng(1).normal(size=(4, 2))
    S = ga.DotProductAttention(causal=True)(z)
    assert np.array_equal(S != 0, np.tri(4, dtype=bool))
    assert S.sum(axis=1) == pytest.approx(np.ones(4))
    changed = z.copy()
    changed[3] += 1.0
    assert np.array_equal(ga.DotProductAttention(causal=True)(changed)[:3], S[:3])


def test_untied_attention_with_equal_weights_equals_tied_attention():
    """Value and gradient of the risk; by the chain rule gradients in queries and keys add up to the tied gradient."""
    data = ga.sample(ga.paper_model(), 60, 1.5, 0)
    twice = ga.Dataset(
        data.tokens, data.outputs, data.positions, data.lam, rank=2, student=ga.DotProductAttention(tied=False)
    )
    Q = np.random.default_rng(2).normal(size=(60, 1))
    both = np.concatenate([Q, Q], axis=1)
    ridge = 0.5 * data.lam * np.sum(Q**2)
    assert ga.train_loss(twice, both) - ga.train_loss(data, Q, "exact") == pytest.approx(ridge / 60, rel=1e-9)
    halves = ga.gradient(twice, both) - data.lam * both
    assert halves.sum(axis=1, keepdims=True) == pytest.approx(ga.gradient(data, Q) - data.lam * Q, rel=1e-9)
