"""Long samples and high rank: bounded searches, and Ctrl-C at any time."""

import signal
import time

import numpy as np
import pytest

import gamp_attention as ga
from tests.conftest import draw_planted, layer_gradient_norm

torch = pytest.importorskip("torch")


def draw_two_heads(n, L, d, rank, seed=0):
    """Return samples of a torch layer with two heads, value and output matrices."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    layer = torch.nn.MultiheadAttention(d, 2, batch_first=True).double()
    x = rng.standard_normal((n, L, d)) + 0.5 * rng.standard_normal((L, d))
    with torch.no_grad():
        layer.in_proj_weight *= 2
        y = layer(torch.tensor(x), torch.tensor(x), torch.tensor(x), need_weights=False)[0].numpy()
    return ga.Dataset(x, y, rank=rank)


SCRIPT = """
import time
import numpy as np
import gamp_attention as ga

rng = np.random.default_rng(0)
data = ga.Dataset(rng.standard_normal((400, 8, 16)), rng.standard_normal((400, 8, 16)), rank=4)
params = data.terms("exact").params[:40]
small = ga.Dataset(data.tokens[:2, :3], data.outputs[:2, :3], rank=1)
ga.run_gamp(small, "random", tol=0, max_iter=2)
try:
    print("begins", flush=True)
    ga.denoise(data.loss, params, 3 * rng.standard_normal((40, 8, 4)), np.tile(40 * np.eye(4), (8, 1, 1)))
except KeyboardInterrupt:
    print(time.time(), flush=True)
"""


def test_ctrl_c_ends_long_searches(start):
    process = start("-c", SCRIPT)
    assert process.stdout.readline().strip() == "begins"
    time.sleep(0.5)  # so that the search has probably begun
    process.send_signal(signal.SIGINT)
    assert float(process.stdout.readline()) > 0  # the time of the interrupt


@pytest.mark.parametrize(("n", "L", "d", "rank"), [(60, 5, 20, 3), (10, 16, 20, 8)])
def test_trained_layers_end_at_critical_points(n, L, d, rank):
    data = draw_two_heads(n, L, d, rank)
    result = ga.run_gamp(data, "spectral")
    assert result.converged
    assert result.is_minimum
    assert result.fixed_point
    assert layer_gradient_norm(data, result.Q, "exact") <= 1.001e-8


def test_runs_with_zero_tolerance_take_global_minima():
    """State evolution describes runs with tol=0: each proximal step finds the lowest minimum of all starts."""
    data, seen = draw_planted(40, 3, 20, 2), []
    iteration = ga.IterationOptions(callback=lambda t, state, report: seen.append((state, report)))
    ga.run_gamp(data, "random", tol=0, max_iter=3, iteration=iteration)
    params, rng = data.terms("exact").params, np.random.default_rng(0)
    assert len(seen) == 4
    for state, report in seen:
        omega = report.omega.copy()  # for read-only arrays all kernels would be compiled again
        for _ in range(10):
            start = omega + 3 * rng.standard_normal(omega.shape)
            local = ga.denoise(data.loss, params, omega, state.V, start, hold=True)
            assert (local.moreau >= report.denoised.moreau - 1e-9)[local.solved].all()


def test_bounded_searches_lie_between_the_local_and_the_global_minimum():
    data, rng = draw_planted(60, 4, 30, 2), np.random.default_rng(0)
    params, omega, V = data.terms("exact").params, rng.standard_normal((60, 4, 2)), np.tile(20 * np.eye(2), (4, 1, 1))
    local, none, two, full = (
        ga.denoise(data.loss, params, omega, V, -omega, **options)
        for options in ({"hold": True}, {"max_starts": 0}, {"max_starts": 2}, {})
    )
    np.testing.assert_array_equal(none.moreau, local.moreau)
    assert (two.moreau <= local.moreau + 1e-12).all()
    assert (full.moreau <= two.moreau + 1e-12).all()
    assert local.moreau.mean() > two.moreau.mean() > full.moreau.mean() - 1e-12
    assert (local.n_hessians <= two.n_hessians).all()
    assert two.n_hessians.mean() < 0.5 * full.n_hessians.mean()


def test_ranks_above_the_dimension_raise_errors():
    x = np.random.default_rng(0).standard_normal((40, 2, 12))
    untied = ga.DotProductAttention(tied=False)
    assert ga.Dataset(x, x, rank=24, student=untied).rank == 24
    for rank, student, most in ((13, None, 12), (26, untied, 24)):
        with pytest.raises(ValueError, match=f"rank: needs at most {most}, .* got {rank}"):
            ga.Dataset(x, x, rank=rank, student=student)
