"""Replica symmetry breaking for two tokens against brute force, one field, its limits, and stationarity."""

from typing import NamedTuple

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.rsb.lattice import Lattice, average_table, even_ceil, tabulate
from gamp_attention.extensions.rsb.one_field import average_levels, innermost_tables
from gamp_attention.extensions.rsb.solve import LevelPacking, solve_levels
from gamp_attention.extensions.rsb.two_fields import TwoFields
from gamp_attention.extensions.rsb.weights import Levels
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.problem.losses.point import sample_loss
from validation._tools.glasses import amplitude_model

ALPHA, ROUGH = 1.5, -1
SIGNS, BOTH = np.array([1.0, -1.0]), np.ones(2)
PARISI = np.array([739.0])
# Near the solution of the positional branch at ω = 0.3, σ = 0.5, α = 1.5
POSITIONAL = Levels(np.outer([0.04826, 0.04928], BOTH), 0.2552 * SIGNS, 0 * BOTH, 12.80 * BOTH)


@ga.register_loss
class TwoAmplitudes(NamedTuple):
    """ℓ(z) = (|z_1| − p_1)² + (|z_2| − p_2)², a sum of two losses of one field."""

    even = True

    def value(self, p, z):
        return (abs(z[0, 0]) - p[0]) ** 2 + (abs(z[1, 0]) - p[1]) ** 2

    def derivatives(self, p, z, grad, hess):
        total = 0.0
        for l in range(2):
            excess = abs(z[l, 0]) - p[l]
            grad[l] = 2 * excess * (1.0 if z[l, 0] >= 0 else -1.0)
            hess[l, l], hess[l, 1 - l] = 2.0, 0.0
            total += excess**2
        return total

    def floor(self, p):
        return 0.0


def lattice_of(variances, spacing, strides, cut=8.0):
    h = spacing * np.sqrt(variances[-1])
    n = even_ceil((6 * np.sqrt(variances[0]) + cut * np.sqrt(variances[1:].sum())) / h, int(np.prod(strides)))
    return Lattice(h, n, strides)


@pytest.mark.parametrize(
    ("variances", "parisi", "strides"),
    [([0.4, 0.3], [1.5], (1,)), ([0.4, 0.2, 0.1], [0.8, 2.5], (1, 1)), ([0.4, 0.3, 0.06], [1.0, 4.0], (2, 1))],
)
def test_a_sum_of_losses_of_single_fields_gives_the_averages_of_one_field(variances, parisi, strides):
    """Both fields are independent, so that φ_0 is a sum and derivatives agree with the recursion for one field."""
    labels, center, V = np.array([0.9, 0.4]), np.array([0.3, -0.1]), 0.5
    variances, parisi = np.array(variances), np.array(parisi)
    lattice = lattice_of(variances, 0.35, strides)
    table = tabulate(sample_loss(TwoAmplitudes(), 2, 1), labels, 0.0, center, V, lattice, 3)
    two = average_table(table, np.zeros(2), variances, parisi, lattice)
    tables = innermost_tables(amplitude_model(), labels[:, None], center, variances, V, n=8, reach=8.0)
    one = [average_levels(table, c, variances, parisi, 0.2, 8.0) for table, c in zip(tables, center, strict=True)]
    assert np.allclose(two.phi, sum(a.phi for a in one), rtol=1e-3)
    assert np.allclose(two.first, [a.first[0] for a in one], atol=1e-3)
    assert np.allclose(two.bend, [a.bend[0] for a in one], atol=2e-3)
    assert np.allclose(two.slopes, np.hstack([a.slopes for a in one]), rtol=2e-3)
    assert np.allclose(two.response, [a.response[0] for a in one], atol=1e-3)
    for level in range(len(variances)):
        assert np.allclose(np.diag(two.squares[level]), [a.squares[level, 0, 0] for a in one], rtol=1e-2)
        assert abs(two.squares[level][0, 1]) < 1e-2 * two.squares[level].max()


def test_averages_of_a_label_agree_with_a_plain_grid():
    """φ_0 and its averages by Gaussian matrices on a fine grid along the axes, with a global search at each node."""
    model = ga.paper_model()
    u = np.array([[0.9, -0.4]])
    terms = model.task.terms(u[:, :, None], np.zeros((1, 0)))
    params, constant = terms.params[0], float(terms.constant[0])
    center, V, y, variances = 0.2552 * SIGNS, 12.8, 400.0, np.array([0.02, 0.004])
    lattice = lattice_of(variances, 0.8, (1,), cut=9.0)
    table = tabulate(model.loss, params, constant, center, V, lattice, 1)
    label = average_table(table, np.zeros(2), variances, np.array([y]), lattice)
    x = np.linspace(-1.3, 1.3, 105)
    fields = center + np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)
    out = denoise(model.loss, np.tile(params, (len(fields), 1)), fields[:, :, None], np.full((2, 1, 1), V))
    phi, g = -(out.moreau + constant).reshape(105, 105), out.g.reshape(105, 105, 2)
    kernel = np.exp(-0.5 * (x[:, None] - x) ** 2 / variances[1])
    kernel /= kernel.sum(axis=1, keepdims=True)
    weight = np.exp(y * (phi - phi.max()))
    norm = kernel @ weight @ kernel.T
    outer = np.exp(-0.5 * x**2 / variances[0])
    outer = np.outer(outer, outer) / outer.sum() ** 2
    mean_g = np.einsum("ai,ijl,cj->acl", kernel, weight[..., None] * g, kernel, optimize=True) / norm[..., None]
    mean_gg = np.einsum("ai,ijl,cj->acl", kernel, weight[..., None] * g**2, kernel, optimize=True) / norm[..., None]
    phi_0 = np.log(norm) / y + phi.max()
    scale = float(np.sqrt(label.slopes.max()))
    assert abs(label.phi[0] - np.sum(outer * phi_0)) < 2e-4 * abs(label.phi[0])
    assert np.allclose(label.first, np.einsum("ac,acl->l", outer, mean_g), atol=5e-3 * scale)
    assert np.allclose(label.slopes[0], np.einsum("ac,acl->l", outer, mean_g**2), rtol=1e-2)
    assert np.allclose(label.slopes[1], np.einsum("ac,acl->l", outer, mean_gg), rtol=1e-2)


def test_levels_with_equal_parisi_parameters_are_one_level():
    """Two levels with y_1 = y_2 are the same as one level: two Gaussian convolutions of one exponential are one."""
    problem, middle = TwoFields(ga.paper_model(), ALPHA), 0.04880
    one = problem.hats(POSITIONAL, PARISI, 0)
    split = POSITIONAL._replace(q=np.outer([POSITIONAL.q[0, 0], middle, POSITIONAL.q[1, 0]], BOTH))
    two = problem.hats(split, np.repeat(PARISI, 2), 0)
    assert np.allclose(two.phi[[0, 2]], one.phi, rtol=1e-6)
    assert np.allclose(two.q[[0, 2]], one.q, rtol=1e-4)
    assert np.allclose(two.m, one.m, rtol=1e-4)
    assert np.allclose(two.V, one.V, rtol=1e-3)
    assert one.q[0, 0] < two.q[1, 0] < one.q[1, 0]
    energies = [
        problem.weights.free_energy(levels, hats, parisi)
        for levels, hats, parisi in ((POSITIONAL, one, PARISI), (split, two, np.repeat(PARISI, 2)))
    ]
    assert abs(energies[1] / energies[0] - 1) < 1e-6


# Near the solution with two steps on the coarsest grids; errors of the coarsest grids are a few per cent
TWO_STEPS = Levels(np.outer([0.04809087, 0.04898677, 0.0492013], BOTH), 0.25517 * SIGNS, 0 * BOTH, 12.7243 * BOTH)


@pytest.mark.parametrize(
    ("start", "parisi"),
    [(POSITIONAL, PARISI), pytest.param(TWO_STEPS, np.array([539.54, 1601.38]), marks=pytest.mark.slow)],
)
def test_free_energy_is_stationary_in_every_parameter(start, parisi):
    """∂F/∂(V, q_0, …, q_k, m) by central differences vanishes, and ∂F/∂y_j are the slopes of the complexity.

    The conjugates are fixed: of the channel's averages, only α E φ_0 changes with overlaps and Parisi parameters.
    """
    problem, k = TwoFields(ga.paper_model(), ALPHA).with_fixed_grids(start, parisi, ROUGH), len(parisi)
    fixed, free = LevelPacking(SIGNS, k, True, False, parisi), LevelPacking(SIGNS, k, True, False)
    x, _, residual, *_ = solve_levels(problem, fixed, fixed.pack(start, parisi), 1e-6, ROUGH)
    assert residual < 1e-6
    levels, _ = fixed.unpack(x)
    hats = problem.hats(levels, parisi, ROUGH)

    def free_energy(at):
        moved, new = free.unpack(at)
        return problem.weights.free_energy(moved, hats._replace(phi=problem.hats(moved, new, ROUGH).phi), new)

    def differences(step):
        return np.array([free_energy(x + shift) - free_energy(x - shift) for shift in step * np.eye(len(x))]) / (
            2 * step
        )

    x = free.pack(levels, parisi)
    slopes = (4 * differences(0.015) - differences(0.03)) / 3  # at smaller steps few nodes of the lattice pass a jump
    energy = problem.weights.free_energy(levels, hats, parisi)
    assert np.abs(slopes[:-k]).max() < 6e-5 * energy  # the coarsest lattice; terms of F are 0.1 to 1 times F
    expected = parisi * problem.weights.parisi_slopes(levels, hats, parisi)
    assert np.abs(slopes[-k:] - expected).max() < 3e-6 * energy


@pytest.mark.slow
def test_solutions_at_fixed_parisi_parameters():
    """V at y = 400 as computed before with another implementation: 12.983(10)."""
    se = ga.solve_broken(ga.paper_model(), ALPHA, "positional", parisi=400.0, rtol=1e-2)
    assert se.converged
    assert se.relative_error < 1e-2
    assert abs(se.overlaps.V[0, 0, 0] - 12.983) < 0.010 + se.overlaps_error.V[0, 0, 0]
    assert "one step" in se.validity


OF_TEACHER = [0.0365, 0.0443, 0.001540]  # θ, q and training loss at α = 0.6 with one step, from the teacher's weights


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "exists"), [(0.6, True), (0.35, False)])
def test_branches_that_exist_only_with_breaking_are_found(alpha, exists):
    """With replica symmetry the semantic branch begins at α = 0.719, with one step at 0.41(3)."""
    model = ga.paper_model()
    step = ga.solve_broken(model, alpha, "semantic", rtol=1e-2)
    assert step.status is (ga.Status.CONVERGED if exists else ga.Status.LOST)
    if exists:
        numbers = [step.overlaps.theta.mean(), step.overlaps.q.mean(), step.train_loss]
        assert np.allclose(numbers, OF_TEACHER, rtol=2e-3)
        without = ga.solve_broken(model, alpha, "random", rtol=1e-2)
        assert step.train_loss < without.train_loss - 5 * (step.train_loss_error + without.train_loss_error)
    else:
        assert "theta goes to zero" in step.message


def test_rounding_errors_of_the_start_are_not_a_branch():
    """m and θ of 1e-12 count as zero; they would otherwise end LOST, because they go to zero."""
    tiny = 1e-12 * np.ones((1, 1, 1))
    start = ga.Overlaps(1.355 * np.ones((1, 1, 1)), tiny[0], tiny, 0.4235 * np.ones((1, 1, 1)))
    se = ga.solve_broken(amplitude_model(np.sqrt(0.001)), 3.0, start, parisi=1.8, rtol=3e-2)
    assert se.converged
    assert not se.overlaps.m.any()
    assert not se.overlaps.theta.any()


@pytest.mark.parametrize("model", [ga.paper_model(score_noise=0.1), ga.attention_model(3)])
def test_models_without_implementation_are_refused(model):
    with pytest.raises(ValueError, match="model: needs"):
        ga.solve_broken(model, ALPHA)


@pytest.mark.slow
def test_many_steps_predict_the_response_of_minima():
    """V of GAMP's minima, extrapolated to d → ∞, is 12.55(4); one step has 12.80.

    Levels and Parisi parameters are of three steps, near a solution that was computed more accurately.
    """
    symmetric = ga.solve_state_evolution(ga.paper_model(), ALPHA, "positional", rtol=1e-2, stability=False)
    se = ga.solve_broken(ga.paper_model(), ALPHA, symmetric.overlaps, steps="full", rtol=5e-2)
    three = {  # values of the more accurate solution, and their errors
        "parisi": ([483.985, 999.177, 3273.89], [0.27, 1.5, 13.0]),
        "levels": ([0.0480797, 0.0488841, 0.0492043, 0.0492744], [4e-7, 1.2e-6, 2.2e-6, 2.5e-6]),
    }
    assert se.converged
    assert "extrapolated" in se.validity
    V, error = se.overlaps.V[0, 0, 0], se.overlaps_error.V[0, 0, 0]
    assert 0 < error < 0.1
    assert abs(V - 12.55) < np.hypot(0.04, error)
    assert V < 12.6132 - 0.03
    assert se.train_loss > 0.0032969872 - se.train_loss_error
    for values, errors, name in ((se.parisi, se.parisi_error, "parisi"), (se.levels[:, 0, 0, 0], 0, "levels")):
        expected, stored_error = (np.array(each) for each in three[name])
        assert (np.diff(values) > 0).all()
        assert (np.abs(values - expected) < errors + stored_error + 1e-3 * expected).all()


@pytest.mark.slow
def test_runs_end_on_a_branch_that_exists_only_with_breaking():
    """At α = 0.6, GAMP from the teacher's weights stays at θ > 0; one step predicts θ, q and the training loss."""
    runs = [ga.run_gamp(ga.sample(ga.paper_model(), 1500, 0.6, seed=k), "semantic", risk="exact") for k in range(6)]
    assert all(run.converged and run.is_minimum for run in runs)
    values = np.array([[run.overlaps.theta.mean(), run.overlaps.q.mean(), run.train_loss] for run in runs])
    assert (values[:, 0] > 0.4 * values[:, 1]).all()
    error = values.std(axis=0, ddof=1) / np.sqrt(len(runs))
    assert (np.abs(values.mean(axis=0) - OF_TEACHER) < 3 * error).all()
