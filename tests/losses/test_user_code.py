"""Losses and attention maps of users: they work end to end, and what is wrong with them is told in words."""

import inspect
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import gamp_attention as ga
from docs.examples.huber_loss import PseudoHuber
from docs.examples.sigmoid_attention import SigmoidAttention
from gamp_attention._core.kernel_cache import COMPILED, is_known, user_classes
from gamp_attention.losses.checks import check_loss
from gamp_attention.losses.derivatives import sample_derivatives
from gamp_attention.losses.registration import sample_loss


@ga.register_attention
class TiedSoftmax(NamedTuple):
    """The map of eq. (15), as a user would write it."""

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


def test_a_written_out_map_has_the_derivatives_of_the_built_in_one():
    data = ga.sample(ga.attention_model(3, 2, 1), d=60, alpha=0.5, seed=0)
    z = np.random.default_rng(1).standard_normal((data.n_samples, 3, 2))
    params = data.terms("exact").params
    built_in = sample_derivatives(sample_loss(ga.DotProductAttention(), 3, 2), params, z)
    own = sample_derivatives(sample_loss(TiedSoftmax(), 3, 2), params, z)
    for wanted, found, error in zip(built_in, own, (1e-13, 1e-10, 1e-6), strict=True):
        assert found == pytest.approx(wanted, abs=error)


def test_gamp_with_a_written_out_map_ends_where_the_built_in_one_does():
    ends = []
    for student in (ga.DotProductAttention(), TiedSoftmax()):
        run = ga.run_gamp(ga.sample(ga.attention_model(student=student), d=300, alpha=1.5, seed=0), tol=1e-7)
        assert run.converged
        ends.append(run.Q)
    assert ends[1] == pytest.approx(ends[0], abs=1e-6)


def test_a_map_of_ones_own_has_zero_gradient_by_torch():
    torch = pytest.importorskip("torch")
    from gamp_attention.baselines.descent import TorchRisk

    data = ga.sample(ga.attention_model(student=SigmoidAttention(2.0), lam=0.02), d=100, alpha=3.0, seed=0)
    run = ga.run_gamp(data, tol=1e-7)
    assert run.converged
    Q = torch.tensor(run.Q, requires_grad=True)
    TorchRisk(data, "exact", "cpu")(Q).backward()
    assert np.linalg.norm(Q.grad.numpy()) / (data.lam * np.sqrt(data.dim)) < 1e-6


class Unregistered(NamedTuple):
    width: float = 1.0


@ga.register_loss
class Wrong(NamedTuple):
    """Flags choose what is wrong."""

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


WORDS = {1: "finite number, got nan", 2: "its value is", 3: "differences of value", 4: "left or made NaN"}


@pytest.mark.parametrize("flag", WORDS)
def test_wrong_losses_are_told_in_words(flag):
    with pytest.raises((TypeError, ValueError), match=WORDS[flag]):
        check_loss(sample_loss(Wrong(flag), 2, 1), np.zeros((1, 1)))


def test_what_a_class_lacks_is_told_in_words():
    with pytest.raises(TypeError, match=r"needs a method value"):
        ga.register_loss(Unregistered)
    with pytest.raises(TypeError, match=r"needs a method attend"):
        ga.register_attention(Unregistered)
    with pytest.raises(TypeError, match="derived from typing"):
        ga.register_loss(int)
    with pytest.raises(TypeError, match="register_attention"):
        ga.attention_model(student=Unregistered())
    with pytest.raises(TypeError, match="floor"):

        @ga.register_loss
        class Bowl(NamedTuple):
            def value(self, p, z):
                return np.sum(z * z)


@pytest.mark.parametrize("holds", [property(lambda self: False), 1])
def test_what_is_compiled_in_holds_for_all_instances(holds):
    """A property is no answer for a class: taken for True, it would certify minima by bounds that do not hold."""
    loss = type("Bumpy", (PseudoHuber,), {"convex": holds, "value": vars(PseudoHuber)["value"]})
    with pytest.raises(TypeError, match="convex: needs True or False"):
        ga.register_loss(loss)
    attention = type("Steep", (TiedSoftmax,), {"bounded": holds, "attend": vars(TiedSoftmax)["attend"]})
    with pytest.raises(TypeError, match="bounded: needs True or False"):
        ga.register_attention(attention)


def test_kernels_are_stamped_with_the_sources_of_all_classes_that_they_take_code_from():
    """A file that a loss, a map or a penalty of the package is in must count, though it imports no kernel."""
    for cls in (ga.SquaredLoss, ga.MultinomialLoss, ga.DotProductAttention, ga.ElasticNet, ga.Ridge):
        source = Path(inspect.getsourcefile(cls)).read_bytes()
        assert any(mark in source for mark in COMPILED)


def test_kernels_are_kept_for_importable_classes_alone():
    class Local(NamedTuple):
        width: float

    from numba import typeof

    assert is_known((typeof(PseudoHuber(1.0)),))
    assert not is_known((typeof(Local(1.0)),))
    assert user_classes((typeof(sample_loss(PseudoHuber(1.0), 1, 1)),)) == [PseudoHuber]
    assert user_classes((typeof(ga.SquaredLoss()),)) == []
