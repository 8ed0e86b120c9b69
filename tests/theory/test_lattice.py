"""Averages over lattices against Sobol points, which share neither points nor the way in which labels are averaged."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from scipy.special import ndtri

import gamp_attention as ga
from gamp_attention._tools.statistics import half_width
from gamp_attention.theory.equations.channel import AVERAGES, Channel
from gamp_attention.theory.rules.choice import first_rule
from validation.speed.several_fields import ClassHinge, Errors, HingeOfSum, LargestError, LargestField

CASES = {  # models are made in the tests, because losses are compiled for them
    "larger error": lambda: ga.glm_model(LargestError(), ga.LinearLabels(0.5), rank=2),
    "two tokens": lambda: ga.glm_model(Errors(1.0, 1.0), ga.LinearLabels(0.5), n_tokens=2),
    "sum": lambda: ga.glm_model(HingeOfSum(), ga.LogisticLabels(0.0), rank=2),
    "classes": lambda: ga.glm_model(ClassHinge(), ga.ClassLabels(), rank=3),
    "largest field": lambda: ga.glm_model(ClassHinge(), LargestField(), rank=3),
    "multinomial": lambda: ga.glm_model(ga.MultinomialLoss(), ga.ClassLabels(), rank=3),
}


def draw_overlaps(model):
    """Return overlaps without symmetries."""
    (L, r, t), rng = (model.n_tokens, model.rank, model.teacher_rank), np.random.default_rng(0)
    theta = 0.3 * rng.standard_normal((L, r, t)) + 0.4 * np.eye(r, t)
    parts = 0.3 * rng.standard_normal((2, L, r, r)) + 0.5 * np.eye(r)
    unexplained, V = parts @ np.swapaxes(parts, 2, 3)
    q = theta @ model.coordinates.rho_inverse @ np.swapaxes(theta, 1, 2) + unexplained
    return ga.Overlaps(q=q, m=np.zeros((L, r)), theta=theta, V=V + 0.2 * np.eye(r))


@pytest.mark.parametrize("case", CASES)
def test_averages_are_those_of_sobol_points(case):
    model = CASES[case]().reduced
    channel = Channel(model, draw_overlaps(model))
    numbers = []
    for name, n in (("lattice", 1024), ("sobol", 4096)):
        rule = replace(first_rule(name, model, (1,)), n_points=n)
        assert rule.name == name
        samples = rule.expansion(channel).samples
        values = [{key: np.asarray(getattr(sample, key)) for key in AVERAGES} for sample in samples]
        stacked = {key: np.stack([value[key] for value in values]) for key in AVERAGES}
        numbers.append({key: (part.mean(axis=0), half_width(part)) for key, part in stacked.items()})
    lattice, sobol = numbers
    for key in AVERAGES:
        (value, error), (other, other_error) = lattice[key], sobol[key]
        assert (np.abs(value - other) <= 2 * (error + other_error) + 1e-6).all(), key


@pytest.mark.parametrize("case", ["larger error", "classes", "largest field", "multinomial"])
def test_derivatives_are_differences(case):
    model = CASES[case]().reduced
    at = draw_overlaps(model)
    rule = replace(first_rule("lattice", model, (1,)), n_points=1024)
    expansion = rule.expansion(Channel(model, at))
    rng, step = np.random.default_rng(3), 1e-2
    for name in ("q", "theta", "V"):
        change = 0.3 * rng.standard_normal(getattr(at, name).shape)
        if name != "theta":
            change = change + np.swapaxes(change, 1, 2)
        ahead, behind = (replace(at, **{name: getattr(at, name) + sign * step * change}) for sign in (1, -1))
        moments = [rule.moments(Channel(model, there)) for there in (ahead, behind)]
        for key in ("gg", "with_teacher", "with_noise"):
            first, last = (np.mean([getattr(m, key) for m in samples], axis=0) for samples in moments)
            slope = (getattr(expansion.at(ahead), key) - getattr(expansion.at(behind), key)) / (2 * step)
            assert np.abs((first - last) / (2 * step) - slope).max() <= 0.03 * np.abs(slope).max() + 0.01, (name, key)


def test_smooth_losses_converge_exponentially():
    model = CASES["multinomial"]()
    coarse, fine = (ga.solve_state_evolution(model, 3.0, rtol=rtol, stability=False) for rtol in (1e-3, 1e-5))
    assert coarse.converged
    assert fine.converged
    assert fine.rule == "lattice"
    assert np.abs(coarse.overlaps.q - fine.overlaps.q).max() <= coarse.overlaps_error.q.max() + 1e-9


def test_other_models_need_another_rule():
    with pytest.raises(ValueError, match="'lattice' needs labels and a convex loss"):
        ga.solve_state_evolution(ga.paper_model(), 1.0, rule="lattice")
    five = ga.glm_model(ga.MultinomialLoss(), ga.ClassLabels(), rank=5)
    with pytest.raises(ValueError, match="rule"):
        ga.solve_state_evolution(five, 1.0, rule="lattice")


@ga.register_loss
class LogisticOfSum(NamedTuple):
    convex = True

    def value(self, p, z):
        w = -p[0] * (z[0, 0] + z[0, 1])
        return max(w, 0.0) + np.log1p(np.exp(-abs(w)))


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_errors_of_smooth_losses_are_true(temperature):
    """A sum of columns is one column with half the penalty; probabilities of labels are as accurate as averages."""
    labels = ga.LogisticLabels(temperature)
    two = ga.solve_state_evolution(
        ga.glm_model(LogisticOfSum(), labels, rank=2, teacher_rank=1, lam=0.5), 2.0, rtol=1e-6
    )
    one = ga.solve_state_evolution(ga.glm_model(ga.LogisticLoss(), labels, lam=0.25), 2.0, rtol=1e-8)
    assert two.converged
    error = 4 * two.overlaps_error.q + one.overlaps_error.q
    assert (np.abs(4 * two.overlaps.q - one.overlaps.q) <= error).all()
    assert abs(two.train_loss - one.train_loss) <= two.train_loss_error + one.train_loss_error


class RareThird(ga.ClassLabels):
    """Labels 0 and 1 by the sign of a field, and 2 for one sample in a hundred."""

    def n_noise(self, n_tokens, rank):
        return 1

    def outcomes(self, u):
        signs = np.stack([u[:, 0, 0] <= 0, u[:, 0, 0] > 0], axis=1)
        return np.arange(3.0)[:, None], np.column_stack([0.99 * signs, np.full(len(u), 0.01)])

    def __call__(self, u, noise):
        return np.where(noise > ndtri(0.99), 2.0, u[:, 0, :1] > 0)


@ga.register_loss
class OneColumnEach(NamedTuple):
    convex = True

    def value(self, p, z):
        return 0.5 * (3.0 - z[0, 1]) ** 2 if p[0] == 2.0 else 0.5 * (p[0] - z[0, 0]) ** 2


def test_directions_of_rare_labels_are_seen():
    """The second column solves a ridge regression of the samples with the rare label: one hundredth of the data."""
    model = ga.glm_model(OneColumnEach(), RareThird(), rank=2, teacher_rank=1, lam=0.01)
    both = ga.solve_state_evolution(model, 8.0, rtol=1e-3, stability=False)
    q, V = both.overlaps.q[0, 1, 1], both.overlaps.V[0, 1, 1]
    V_hat = 0.08 / (1 + V)
    assert abs(V - 1 / (0.01 + V_hat)) < 1e-3 * V
    assert abs(q - 0.08 * (9 + q) / (1 + V) ** 2 * V**2) < 5e-3 * q
