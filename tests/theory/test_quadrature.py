"""Averages over the channel: lines against dense grids, rules against each other, symmetries against all points."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention._tools.quadrature import legendre_rule
from gamp_attention._tools.statistics import half_width
from gamp_attention.problem.denoisers.newton import make_metric
from gamp_attention.theory.equations.channel import Channel
from gamp_attention.theory.fixed_points.observables import deterministic_test_error, predicted_test_error, replicon
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.models.model import asymptotic_terms
from gamp_attention.theory.rules import lines
from gamp_attention.theory.rules.panels import PanelRule
from gamp_attention.theory.rules.sobol import SobolRule
from tests.conftest import make_overlaps

SEMANTIC, POSITIONAL = make_overlaps(0.094, 0, 0.1345, 16.0), make_overlaps(0.0495, 0.2547, 0, 13.6)


def test_line_averages_equal_sums_over_a_dense_grid(model):
    """The line average equals a trapezoidal sum over 40 001 points, up to the error of the sum at jumps."""
    rng = np.random.default_rng(1)
    y = rng.normal(size=(10, 2, 1)) * 0.8
    terms = asymptotic_terms(model.teacher(y), model.coordinates.trace[None])
    centers, u = rng.normal(size=(10, 2, 1)) * 0.2, np.array([[0.15], [-0.15]])
    V = np.full((2, 1, 1), 14.0)
    averages = lines.line_averages(
        model.loss, terms.params, centers, u, make_metric(V), np.linspace(-7, 7, 5), legendre_rule(12),
        np.full(10, 1e-9), np.full(10, 1e-6), np.full(10, 1e-10),
    )  # fmt: skip
    n_jumps = averages.scalars[:, lines.N_JUMPS]
    assert np.array_equal(np.isfinite(averages.scalars[:, lines.JUMP]), n_jumps > 0)
    assert set(n_jumps) == {0, 1}  # some lines jump, some do not
    e = np.linspace(-7, 7, 40_001)
    weight = np.exp(-0.5 * e**2) / np.sqrt(2 * np.pi) * (e[1] - e[0])
    for i in range(10):
        fields = centers[i] + e[:, None, None] * u
        out = ga.denoise(model.loss, np.tile(terms.params[i], (len(e), 1)), fields, V)
        assert out.solved.all()
        atol = 1e-12 + 0.25 * (e[1] - e[0]) * np.abs(np.diff(out.g, axis=0)).max()  # error of half a step at the jump
        powers = weight * e ** np.arange(2)[:, None]
        assert np.allclose(averages.g[i], np.einsum("pn,nla->pla", powers, out.g), atol=atol)
        assert np.allclose(averages.gg[i, 0], np.einsum("n,nla,nlb->lab", weight, out.g, out.g), atol=0.2 * atol)
        assert averages.scalars[i, lines.MOREAU] == pytest.approx(weight @ out.moreau, abs=1e-9)
        assert averages.scalars[i, lines.LOSS] == pytest.approx(weight @ out.loss, abs=0.5 * atol)
        response = np.einsum("n,nlab->lab", weight, out.response)
        assert np.allclose(averages.response[i, 0], response, atol=2e-5)


@pytest.mark.parametrize("V", [10.0, 100.0, 5000.0])
@pytest.mark.parametrize("options", [{"sigma": 3.0}, {"student": 0.2}, {"student": 3.0}], ids=str)
def test_lines_find_minima_at_least_as_low_as_searches_from_400_starts(options, V):
    rng = np.random.default_rng(3)
    temperature = options.get("student")
    students = {} if temperature is None else {"student": ga.DotProductAttention(temperature)}
    model = ga.attention_model(2, sigma=options.get("sigma", 0.5), **students)
    trace = model.coordinates.trace
    y = rng.normal(size=(150, 2, 1)) * np.sqrt(trace)[:, None]
    terms = asymptotic_terms(model.teacher(y), trace[None])
    fields, metric = 3 * rng.normal(size=(150, 2, 1)), make_metric(np.full((2, 1, 1), V))
    no_move, grid, tol = np.array([[1e-9], [-1e-9]]), np.linspace(-7, 7, 3), np.full(150, np.inf)
    found = lines.line_averages(
        model.loss, terms.params, fields, no_move, metric, grid, legendre_rule(30), tol, tol, np.full(150, 1e-10)
    ).scalars[:, lines.MOREAU]
    best = ga.denoise(model.loss, terms.params, fields, np.full((2, 1, 1), V), max_starts=400).moreau
    higher = found > best + 1e-7 * (1 + np.abs(best))
    assert not higher.any()


@pytest.mark.parametrize("at", [SEMANTIC, POSITIONAL], ids=["semantic", "positional"])
def test_split_rule_agrees_with_random_points(model, at):
    """Every moment agrees within five standard errors with plain randomized points, which ignore jumps."""
    one = PanelRule(level=1).moments(Channel(model, at))[0]
    many = SobolRule(4096, 16, seed=(3,)).moments(Channel(model, at), squares=True)
    for name in ("with_noise", "with_teacher", "gg", "moreau", "loss", "response"):
        values = np.array([getattr(sample, name) for sample in many])
        error = values.std(axis=0, ddof=1) / 4
        exact_zero = name == "with_teacher" and not at.theta.any()
        if not exact_zero:
            assert np.all(
                np.abs(values.mean(axis=0) - getattr(one, name)) <= 5 * error + 1e-4 * np.abs(values.mean())
            ), name


def test_mirror_images_can_be_left_out(model):
    """Overlaps at a distance of 1e-7 from symmetry require all nodes, and have the same averages."""
    at = POSITIONAL
    moved = replace(at, m=at.m + np.array([[1e-7], [2e-7]]), theta=at.theta + np.array([[[1e-7]], [[3e-7]]]))
    few, all_nodes = (PanelRule(level=1).moments(Channel(model, o))[0] for o in (at, moved))
    for name in ("g", "with_noise", "with_teacher", "gg", "moreau", "response"):
        a, b = np.asarray(getattr(few, name)), np.asarray(getattr(all_nodes, name))
        if name in ("g", "with_teacher") and not (at.m if name == "g" else at.theta).any():
            a = np.zeros_like(b)
        size = max(np.abs(b).max(), 0.05 * np.sqrt(all_nodes.gg.max()))
        # half of the tolerance of the level for the derivative, which is large near onsets of jumps
        assert np.allclose(a, b, atol=(5e-4 if name == "response" else 5e-5) * size), name


def test_squares_of_the_derivative_converge_at_onsets_of_jumps(model):
    """They diverge like an inverse square root; without cuts the replicon varied between 0.5 and 1.6."""
    F = OverlapMap(model, 1.5, PanelRule())
    values = [
        replicon(model, F.on(PanelRule(level=k)).images(POSITIONAL, squares=True)[0].hats, "stein") for k in (1, 2)
    ]
    assert abs(values[0] - 0.532) < 0.05
    assert abs(values[1] - 0.532) < 0.02


@pytest.mark.parametrize("sigma", [0.5, 1.5])
@pytest.mark.parametrize("family", ["semantic", "positional"])
def test_the_series_of_the_test_error_is_its_average_over_random_points(sigma, family):
    at, model = SEMANTIC if family == "semantic" else POSITIONAL, ga.paper_model(0.3, sigma=sigma)
    at = replace(at, q=9 * at.q, theta=7 * at.theta) if sigma > 1 else at
    value, error = deterministic_test_error(model, at, 1e-6)
    assert error <= 1e-7 * value
    points = predicted_test_error(model, at, SobolRule(2**13, 8, seed=(1,)))
    assert abs(points.mean() - value) <= half_width(points) + 1e-6 * value
