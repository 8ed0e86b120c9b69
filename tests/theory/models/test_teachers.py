"""Teacher maps: user-defined callables, temperature, causal masks, and errors for invalid teachers."""

import numpy as np
import pytest

import gamp_attention as ga


class UserDefinedTeacher:
    """Teacher of the paper's model, as a user-defined class."""

    even = True

    def __call__(self, u):
        scores = np.exp(np.einsum("...lt,...kt->...lk", u, u))
        return 0.7 * scores / scores.sum(axis=-1, keepdims=True) + 0.3 * np.array([[0.6, 0.4], [0.4, 0.6]])


def test_user_defined_teacher_agrees_with_softmax_teacher(model):
    own = ga.attention_model(teacher=UserDefinedTeacher())
    one, two = (ga.run_gamp(ga.sample(each, 60, 1.5, 0), "semantic", tol=0, max_iter=10) for each in (model, own))
    assert np.allclose(one.Q, two.Q, atol=1e-10)
    one, two = (ga.solve_state_evolution(each, 1.5, rtol=1e-2, stability=False) for each in (model, own))
    assert np.allclose(one.overlaps.q, two.overlaps.q, rtol=1e-8)
    one, two = (ga.linear_baseline(each) for each in (model, own))
    assert np.allclose(one.weights, two.weights, atol=1e-8)


def test_temperature_and_mask_act_on_the_teachers_scores():
    A = np.array([[0.6, 0.4], [0.4, 0.6]])
    u = np.random.default_rng(0).normal(size=(5, 2, 1))
    hot = ga.SoftmaxTeacher(0.3, A, ga.DotProductAttention(temperature=4.0))
    assert np.allclose(hot(u), ga.SoftmaxTeacher(0.3, A)(u / 2))
    causal = ga.SoftmaxTeacher(0.0, A, ga.DotProductAttention(causal=True))
    assert np.array_equal(causal(u)[:, 0], np.tile([1.0, 0.0], (5, 1)))


def make_teacher(function, even=True):
    """Return a teacher that evaluates a function."""
    return type("Made", (), {"even": even, "__call__": lambda self, u: function(u)})()


def identity(u):
    return np.broadcast_to(np.eye(2), (*u.shape[:-2], 2, 2))


CASES = {
    "not callable": (0.3, "teacher.*callable"),
    "no property even": (identity, "teacher.*`even`"),
    "even not boolean": (make_teacher(identity, even="yes"), "teacher.*`even`.*'yes'"),
    "wrong shape": (make_teacher(lambda u: u), r"teacher\(u\).*needs shape \(3, 2, 2\).*\(3, 2, 1\)"),
    "NaN": (make_teacher(lambda u: np.nan * identity(u)), r"teacher\(u\).*finite"),
    "NaN at zero fields": (make_teacher(lambda u: identity(u) * (u / u).sum()), r"teacher"),
    "only arrays of fields": (make_teacher(lambda u: np.einsum("nlt,nkt->nlk", u, u)), "teacher.*map of fields"),
    "raises": (make_teacher(lambda u: u.no_such_thing), "teacher.*no_such_thing"),
    "mixes samples": (make_teacher(lambda u: identity(u) * (u**2).mean()), "teacher.*same matrix for one sample"),
    "not even though it says so": (make_teacher(lambda u: identity(u) * u[..., :1, :1]), r"teacher.*T\[-u\]"),
}


@pytest.mark.parametrize("name", CASES)
def test_invalid_teachers_raise_named_errors(name):
    teacher, message = CASES[name]
    with pytest.raises((ValueError, TypeError), match=message), np.errstate(all="ignore"):
        ga.attention_model(teacher=teacher)
