"""The pass over the data: agreement with separate functions, memory, and independence of the number of threads."""

import tracemalloc

import numpy as np
import pytest

import gamp_attention as ga
from docs.examples.sigmoid_attention import SigmoidAttention
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.problem.passes import data_pass


def draw_arguments(data, seed=0):
    rng = np.random.default_rng(seed)
    n, L, d, r = data.n_samples, data.n_tokens, data.dim, data.rank
    A = rng.normal(size=(L, r, r))
    return 0.5 * rng.normal(size=(d, r)), 0.1 * rng.normal(size=(n, L, r)), A @ A.transpose(0, 2, 1) + 3 * np.eye(r)


def list_problems():
    yield "paper", ga.paper_model(), 61
    yield "three tokens", ga.attention_model(3, 1, 1), 50
    yield "two columns", ga.attention_model(2, 2, 2), 33
    yield "causal", ga.attention_model(2, 1, 1, student=ga.DotProductAttention(causal=True)), 30
    yield "five tokens", ga.attention_model(5, 2, 1), 9
    yield "one sample", ga.attention_model(2, 1, 1), 1
    yield "user-defined map", ga.attention_model(2, 1, 1, student=SigmoidAttention()), 20


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("model", "n"), [pytest.param(m, n, id=name) for name, m, n in list_problems()])
def test_a_pass_equals_the_separate_functions(model, n, dtype):
    data = ga.sample(model, 40, n / 40, seed=1, dtype=dtype)
    assert data.tokens.dtype == dtype
    Q, D, V = draw_arguments(data)
    params = data.terms("exact").params
    z = data.matrix.fields(Q)
    value, slope, _ = sample_derivatives(data.loss, params, z)
    for hold in (False, True):
        result = data_pass(data.matrix, Q, D, V, data.loss, params, max_starts=0 if hold else 400)
        out = ga.denoise(data.loss, params, z - D, V, hold=hold)
        assert np.allclose(result.omega, z - D, rtol=0, atol=1e-13)
        for name in ("z", "g", "response", "moreau", "loss"):
            assert np.allclose(getattr(result.denoised, name), getattr(out, name), rtol=1e-7, atol=1e-9), name
        assert np.allclose(result.losses, value, rtol=0, atol=1e-13)
        force = data.matrix.back_project(result.denoised.g)
        assert np.allclose(result.force, force, rtol=0, atol=1e-13)
        assert np.allclose(result.smooth, data.matrix.back_project(slope), rtol=0, atol=1e-12)


def test_the_code_for_two_tokens_agrees_with_the_general_code():
    """A second column of zeros changes nothing, but takes the general code."""
    rng = np.random.default_rng(0)
    A, z = rng.normal(size=(300, 2, 2)), 2 * rng.normal(size=(300, 2, 1))
    params = np.concatenate([(A @ A.transpose(0, 2, 1)).reshape(300, 4), rng.normal(size=(300, 4))], axis=1)
    wide = np.concatenate([z, 0 * z], axis=2)
    for temperature in (1.0, 0.6):
        student = ga.DotProductAttention(temperature)
        value, grad, hess = sample_derivatives(ga.AttentionLoss(student, 2, 1), params, z)
        other = sample_derivatives(ga.AttentionLoss(student, 2, 2), params, wide)
        assert np.allclose(value, other[0], rtol=1e-13, atol=1e-13)
        assert np.allclose(grad[:, :, 0], other[1][:, :, 0], rtol=1e-12, atol=1e-12)
        assert np.allclose(hess, other[2][:, ::2, ::2], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_results_have_the_same_bits_for_every_thread_count(model, dtype, by_threads):
    data = ga.sample(model, 100, 2.03, seed=0, dtype=dtype)
    arguments = *draw_arguments(data), data.loss, data.terms("exact").params
    results = by_threads(lambda: data_pass(data.matrix, *arguments), (1, 2, 5))
    first, *others = ((result.force, result.smooth, result.omega, result.denoised.g) for result in results)
    for other in others:
        assert all(map(np.array_equal, first, other))


def test_an_iteration_needs_little_memory_in_addition_to_the_data(model):
    data = ga.sample(model, 600, 1.5, seed=0)
    state = ga.initial_state(data, data.Q_star)
    ga.gamp_step(data, "asymptotic", state, 0.3)  # compile the kernels
    tracemalloc.start()
    ga.gamp_step(data, "asymptotic", state, 0.3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    per_sample = 8 * data.n_samples * (12 * data.n_tokens + 4)  # omega, z, g, D, responses, losses
    assert peak < 0.1 * data.tokens.nbytes + per_sample + 200 * data.dim


def test_single_precision_data_converge_to_zero_gradient(model):
    data = ga.sample(model, 200, 1.5, seed=0, dtype=np.float32)
    double = ga.Dataset(data.tokens.astype(float), data.outputs, data.positions, data.lam)
    assert double.tokens.dtype == np.float64
    single = ga.Dataset(data.tokens, data.outputs, data.positions, data.lam)
    assert single.tokens.dtype == np.float32
    for dataset in (data, single):
        result = ga.run_gamp(dataset, data.Q_star, "exact", damping=0.5)
        assert result.status is ga.Status.CONVERGED
        assert np.linalg.norm(ga.gradient(double, result.Q)) / (data.lam * np.sqrt(data.dim)) < 1.1e-8
    with pytest.raises(ValueError, match="dtype: needs float64 or float32"):
        ga.sample(model, 20, 1.0, dtype=int)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("L", "r", "n"), [(2, 1, 61), (2, 1, 1), (3, 1, 50), (2, 2, 33), (5, 3, 9)])
def test_a_hessian_product_equals_the_separate_functions(L, r, n, dtype, by_threads):
    data, rng = ga.sample(ga.attention_model(L, r, 1), 70, n / 70, seed=1, dtype=dtype), np.random.default_rng(0)
    P, H = rng.normal(size=(70, r)), rng.normal(size=(n, L * r, L * r))
    u = data.matrix.fields(P).reshape(n, L * r)
    expected = data.matrix.back_project(np.einsum("nij,nj->ni", H, u).reshape(n, L, r))
    products = by_threads(lambda: data.matrix.hessian_product(H, P), (1, 3))
    assert np.allclose(products[0], expected, rtol=0, atol=1e-13 * n)
    assert np.array_equal(*products)
