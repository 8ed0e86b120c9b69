"""User-defined losses and attention maps: complete runs, and messages about errors in their code."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import gamp_attention as ga
from docs.examples.huber_loss import PseudoHuber
from docs.examples.sigmoid_attention import SigmoidAttention
from gamp_attention.problem.losses.point import sample_derivatives, sample_loss
from gamp_attention.problem.losses.registration import check_loss


@ga.register_attention
class TiedSoftmax(NamedTuple):
    """The attention map of eq. (15) of Cui et al. (2024), as a user would write it."""

    even = True
    rotations = True
    bounded = True

    def attend(self, z, S):
        for i in range(z.shape[0]):
            total = 0.0
            for j in range(z.shape[0]):
                S[i, j] = np.exp(np.sum(z[i] * z[j]))
                total += S[i, j]
            for j in range(z.shape[0]):
                S[i, j] /= total


def test_derivatives_of_a_user_defined_map_equal_the_built_in_derivatives():
    data = ga.sample(ga.attention_model(3, 2, 1), d=60, alpha=0.5, seed=0)
    z = np.random.default_rng(1).standard_normal((data.n_samples, 3, 2))
    params = data.terms("exact").params
    built_in = sample_derivatives(sample_loss(ga.DotProductAttention(), 3, 2), params, z)
    user_defined = sample_derivatives(sample_loss(TiedSoftmax(), 3, 2), params, z)
    for wanted, computed, error in zip(built_in, user_defined, (1e-13, 1e-10, 1e-6), strict=True):
        assert computed == pytest.approx(wanted, abs=error)


def test_runs_with_a_user_defined_map_have_zero_gradient_by_torch():
    torch = pytest.importorskip("torch")
    from gamp_attention.descent.torch_risk import TorchRisk

    data = ga.sample(ga.attention_model(student=SigmoidAttention(2.0), lam=0.02), d=100, alpha=3.0, seed=0)
    run = ga.run_gamp(data, tol=1e-7)
    assert run.converged
    Q = torch.tensor(run.Q, requires_grad=True)
    TorchRisk(data, "exact", "cpu")(Q).backward()
    assert np.linalg.norm(Q.grad.numpy()) / (data.lam * np.sqrt(data.dim)) < 1e-6


class Unregistered(NamedTuple):
    width: float = 1.0


@ga.register_loss
class WrongLoss(NamedTuple):
    """Loss with an error that a flag selects."""

    flag: int

    convex = True

    def value(self, p, z):
        if self.flag == 1:
            return np.nan
        if self.flag == 2:
            return -np.sum(z * z)
        return 0.5 * np.sum(z * z)

    def derivatives(self, p, z, grad, hess):
        k = 1.0 if self.flag < 3 else 2.0
        for i in range(z.size):
            grad[i] = k * z[i // z.shape[1], i % z.shape[1]] if self.flag != 4 else np.nan
            for j in range(z.size):
                hess[i, j] = k if i == j else 0.0
        return 0.5 * np.sum(z * z)


WORDS = {1: "finite number, got nan", 2: "its value is", 3: "differences of value", 4: "not filled or are NaN"}


@pytest.mark.parametrize("flag", WORDS)
def test_wrong_losses_raise_errors_that_name_the_fault(flag):
    with pytest.raises((TypeError, ValueError), match=WORDS[flag]):
        check_loss(sample_loss(WrongLoss(flag), 2, 1), np.zeros((1, 1)))


@ga.register_loss
class FaultyLoss(NamedTuple):
    """A user's loss; the tests replace a method by a faulty method."""

    convex = True

    def value(self, p, z):
        return 0.5 * np.sum(z * z)


def gradient_in_the_shape_of_z(self, p, z, grad, hess):
    grad[:] = z
    return 0.5 * np.sum(z * z)


def unknown_function(self, p, z):
    return np.no_such_function(z)


def unknown_attribute(self, z, S):
    S[:] = z.no_such_attribute


def get_message_of_dataset(**methods):
    """Return the message of the error that a dataset raises for a loss with faulty methods."""
    faulty = ga.register_loss(type("Faulty", (FaultyLoss,), {"convex": True, "value": FaultyLoss.value, **methods}))
    tokens = np.random.default_rng(0).standard_normal((8, 2, 5))
    with pytest.raises(TypeError) as caught:
        ga.LabelledDataset(tokens, np.zeros((8, 1)), loss=faulty(), rank=1, lam=0.1)
    return str(caught.value)


def describe_line_of(function):
    """Return the words for the line after the `def` of a function of this file."""
    return f"(line {function.__code__.co_firstlineno + 1} of {Path(__file__).name})"


def test_a_value_that_numba_cannot_compile_raises_with_its_method_cause_and_line():
    message = get_message_of_dataset(value=unknown_function)
    assert message.startswith("Faulty.value: needs code that numba compiles, got")
    assert "module 'numpy' has no attribute 'no_such_function'" in message
    assert describe_line_of(unknown_function) in message
    assert "\n" not in message


def test_derivatives_of_wrong_shape_raise_with_the_shapes_of_grad_and_hess():
    message = get_message_of_dataset(derivatives=gradient_in_the_shape_of_z)
    assert message.startswith("Faulty.derivatives: needs ")
    assert "cannot assign slice of shape (2,) from input of shape (2, 1)" in message
    assert "z has shape (L, r) = (2, 1), grad has shape (L r,) = (2,) and hess has shape (L r, L r) = (2, 2)" in message


def test_a_map_that_numba_cannot_compile_raises_with_its_method_cause_and_line():
    faulty = ga.register_attention(type("FaultyMap", (Unregistered,), {"attend": unknown_attribute}))
    with pytest.raises(TypeError, match=r"FaultyMap\.attend: needs code that numba compiles, got") as caught:
        ga.attention_model(2, 1, student=faulty())
    assert "Unknown attribute 'no_such_attribute' of type array(float64, 2d, C)" in str(caught.value)
    assert describe_line_of(unknown_attribute) in str(caught.value)
    assert "S has shape (L, L) = (2, 2)" in str(caught.value)


def test_errors_name_missing_methods():
    class Bowl(NamedTuple):
        def value(self, p, z):
            return np.sum(z * z)

    for call, argument, words in (
        (ga.register_loss, Unregistered, "needs a method value"),
        (ga.register_attention, Unregistered, "needs a method attend"),
        (ga.register_loss, int, "derived from typing"),
        (ga.register_loss, Bowl, "floor"),
        (lambda student: ga.attention_model(student=student), Unregistered(), "register_attention"),
    ):
        with pytest.raises(TypeError, match=words):
            call(argument)


@pytest.mark.parametrize("trait", [property(lambda self: False), 1])
def test_compiled_in_traits_must_be_booleans_of_the_class(trait):
    """A property counts as True if it is read from the class, and would certify minima by invalid bounds."""
    loss = type("Bumpy", (PseudoHuber,), {"convex": trait, "value": vars(PseudoHuber)["value"]})
    with pytest.raises(TypeError, match="convex: needs True or False"):
        ga.register_loss(loss)
    attention = type("Steep", (TiedSoftmax,), {"bounded": trait, "attend": vars(TiedSoftmax)["attend"]})
    with pytest.raises(TypeError, match="bounded: needs True or False"):
        ga.register_attention(attention)


def test_indices_outside_of_the_arguments_raise_although_compiled_code_does_not_check_them():
    """Without the check, the compiled loss would read other memory and return any number."""

    class Outside(NamedTuple):
        convex = True

        def value(self, p, z):
            return 0.5 * (z[0, 1] - p[0]) ** 2

    class OutsideMap(NamedTuple):
        def attend(self, z, S):
            S[:] = z[0, 1]

    loss, attention = ga.register_loss(Outside), ga.register_attention(OutsideMap)
    with pytest.raises(ValueError, match=r"Outside\.value: needs indices within its arguments, got index 1 .*\(1, 1\)"):
        ga.LabelledDataset(np.ones((3, 4)), np.ones(3), loss(), 0.1)
    with pytest.raises(ValueError, match=r"OutsideMap\.attend: needs indices within its arguments, got index 1"):
        ga.Dataset(np.ones((3, 2, 4)), np.ones((3, 2, 4)), student=attention())


def test_convexity_is_checked_for_labels_of_every_size():
    """The loss is convex for labels p <= 0 only, and the labels may be sorted."""

    class Double(NamedTuple):
        convex = True

        def value(self, p, z):
            return (z[0, 0] ** 2 - p[0]) ** 2

    loss, tokens = ga.register_loss(Double), np.ones((200, 4))
    labels = np.linspace(-1, 2, 200)
    for order in (labels, labels[::-1], np.roll(labels, 60)):
        with pytest.raises(ValueError, match="Double: convex = True is wrong"):
            ga.LabelledDataset(tokens, order, loss(), 0.1)
    assert ga.LabelledDataset(tokens, -np.abs(labels), loss(), 0.1).n_samples == 200


def test_a_loss_that_changes_its_arguments_raises():
    class Changing(NamedTuple):
        convex = True

        def value(self, p, z):
            z[0, 0] -= p[0]
            return 0.5 * z[0, 0] ** 2

    loss = ga.register_loss(Changing)
    with pytest.raises(ValueError, match=r"Changing\.value, .*: need to leave p and z unchanged"):
        ga.LabelledDataset(np.ones((3, 4)), np.ones(3), loss(), 0.1)


def test_values_that_change_after_a_class_is_compiled_raise():
    """Compiled code contains the values of closures and global variables: runs would continue with the first values."""
    scale, width, table = 1.0, 1.0, np.ones(2)

    class Scaled(NamedTuple):
        width: float = 1.0
        convex = True

        def value(self, p, z):
            return 0.5 * scale * self.width * (z[0, 0] - p[0]) ** 2

    class Table(NamedTuple):
        def attend(self, z, S):
            S[:] = z[0, 0] * table[1]

    class Halved(NamedTuple):
        lam: float = 1.0
        strength = property(lambda self: self.lam)

        def value(self, x):
            return scale * self.lam * x * x / 2

        def slopes(self, x):
            return scale * self.lam * x, scale * self.lam * x

        def prox(self, b, a):
            return b / (a + scale * self.lam), 1 / (a + scale * self.lam)

    loss, attention, penalty = ga.register_loss(Scaled), ga.register_attention(Table), ga.register_penalty(Halved)
    uses = {
        "Scaled: .*'scale'; make it a field": lambda: ga.LabelledDataset(np.ones((3, 4)), np.ones(3), loss(width), 0.1),
        "Table: .*'table'": lambda: ga.Dataset(np.ones((3, 2, 4)), np.ones((3, 2, 4)), student=attention()),
        "Halved: .*'scale'": lambda: ga.paper_model(penalty=penalty()),
    }
    for use in uses.values():
        use()
    width = 2.0  # has the name of a field, but compiled code does not read it
    for use in uses.values():
        use()
    scale, table[1] = 2.0, 3.0
    for words, use in uses.items():
        with pytest.raises(ValueError, match=words):
            use()
