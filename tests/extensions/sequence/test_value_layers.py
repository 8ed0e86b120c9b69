"""Layers with value matrices and a read-out, against torch's MultiheadAttention and plain numpy."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.problem.symmetries import agreement_of
from tests.extensions.estimators.test_attention import torch_outputs

READOUT = [[1.0, 0.5], [-0.5, 1.0]]


def plain_layer(z, heads, size, values, readout, attention):
    """Return the outputs (L, p) of a layer for fields z (L, r), as a sum over heads."""
    outputs, parts = 0.0, attention.parts
    for h in range(heads):
        scores = [z[:, part * heads * size + h * size :][:, :size] for part in range(parts)]
        v = z[:, parts * heads * size + h * values :][:, :values]
        outputs = outputs + attention(np.hstack(scores)) @ v @ readout[h * values : (h + 1) * values]
    return outputs


@pytest.mark.parametrize(("tied", "causal", "size", "values"), [(True, False, 1, 1), (False, True, 1, 2)])
def test_predictions_equal_a_sum_over_heads(tied, causal, size, values):
    rng = np.random.default_rng(0)
    readout = rng.normal(size=(2 * values, 3))
    student = ga.DotProductAttention(0.7, tied, causal)
    rank = size if tied else 2 * size
    model = ga.value_model(
        3, rank, rank, heads=2, values=values, readout=readout, student=student, omega=0.0, tau=[0] * 3
    )
    z = rng.normal(size=(4, 3, model.rank))
    expected = [plain_layer(fields, 2, size, values, readout, student) for fields in z]
    np.testing.assert_allclose(model.predict(z), expected, atol=1e-13)
    data = ga.sample(model, d=40, alpha=1.0)
    u = data.tokens @ data.Q_star / 40**0.5
    np.testing.assert_allclose(data.targets, model.predict(u), atol=1e-12)


def test_targets_are_the_mixture_with_the_positional_matrix():
    A = np.array([[0.3, 0.7], [0.8, 0.2]])
    model = ga.value_model(heads=2, values=1, omega=0.4, A=A)
    data = ga.sample(model, d=30, alpha=1.0)
    u = data.tokens @ data.Q_star / 30**0.5
    by_head = [
        (0.6 * ga.DotProductAttention()(u[..., [h]]) + 0.4 * A) @ u[..., [2 + h]] for h in range(2)
    ]  # the read-out adds the values of the heads
    np.testing.assert_allclose(data.targets, sum(by_head), atol=1e-13)


def test_a_layer_of_torch_lies_in_the_model():
    layer, x, outputs, _, arguments = torch_outputs(20)
    values = arguments.pop("value_rank")
    model = ga.value_model(values=values, teacher_rank=4, tau=[0, 0], intercept=True, **arguments)
    fields = x @ layer.in_proj_weight.detach().numpy().T + layer.in_proj_bias.detach().numpy()
    np.testing.assert_allclose(model.predict(fields), outputs, atol=1e-12)


@pytest.mark.parametrize("readout", [None, READOUT])
def test_agreement_exchanges_heads_only_if_they_have_the_same_readout(readout):
    model = ga.value_model(heads=2, values=1, readout=readout)
    data, Q = ga.sample(model, d=30, alpha=2.0), np.random.default_rng(0).normal(size=(30, 4))
    signs = Q * [-1, 1, 1, 1]  # the sign of a head's scores is free, of its values it is not
    assert agreement_of(data, Q, signs) == pytest.approx(1.0)
    assert agreement_of(data, Q, Q * [1, 1, -1, 1]) < 0.9
    swapped = Q[:, [1, 0, 3, 2]]
    same = abs(ga.train_loss(data, swapped) - ga.train_loss(data, Q)) < 1e-10
    assert same == (readout is None)
    assert (agreement_of(data, Q, swapped) > 1 - 1e-9) == same


def test_bad_layers(named_error):
    for options, words in (
        ({"heads": 2, "readout": np.ones((3, 1))}, "readout"),
        ({"heads": 3, "student": ga.MultiHeadAttention(heads=2)}, "heads: needs 2"),
        ({"values": 0}, "values"),
        ({"student": lambda z: z}, "student"),
        ({"rank": 1, "student": ga.DotProductAttention(tied=False)}, "multiple of 2"),
    ):
        named_error(lambda options=options: ga.value_model(**options), words)
