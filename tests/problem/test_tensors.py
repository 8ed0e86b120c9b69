"""Torch tensors as arguments: their current values are used, also if they require gradients."""

import numpy as np
import pytest

import gamp_attention as ga

torch = pytest.importorskip("torch")


def as_tensor(values, **options):
    return torch.tensor(np.asarray(values), requires_grad=True, **options)


@pytest.fixture(scope="module")
def arrays(data):
    return {"tokens": data.tokens[:60], "outputs": data.outputs[:60], "positions": data.positions}


def test_datasets_of_tensors_equal_datasets_of_arrays(arrays):
    plain = ga.Dataset(**arrays, lam=0.1)
    for name in arrays:
        for wrapped in (as_tensor(arrays[name]), 1 * as_tensor(arrays[name])):
            again = ga.Dataset(**arrays | {name: wrapped}, lam=0.1)
            assert np.array_equal(getattr(again, name), getattr(plain, name))
    single = ga.Dataset(as_tensor(arrays["tokens"], dtype=torch.float32), arrays["outputs"], arrays["positions"])
    assert single.tokens.dtype == np.float32


def test_weights_and_starts_may_be_tensors(data):
    Q = as_tensor(data.Q_star)
    assert np.array_equal(ga.gradient(data, Q), ga.gradient(data, data.Q_star))
    assert ga.train_loss(data, Q) == ga.train_loss(data, data.Q_star)
    assert np.array_equal(data.fields(Q), data.fields(data.Q_star))
    options = {"tol": 0, "max_iter": 3}
    V = 2 * np.ones((2, 1, 1))
    one = ga.run_gamp(data, data.Q_star, iteration=ga.IterationOptions(V=V), **options)
    two = ga.run_gamp(data, Q, iteration=ga.IterationOptions(V=as_tensor(V)), **options)
    assert np.array_equal(one.Q, two.Q)
    one, two = (ga.minimize_risk(data, start, **options) for start in (data.Q_star, Q))
    assert np.array_equal(one.Q, two.Q)
    assert Q.grad is None


def test_callbacks_and_memory_rules_may_use_tensors(data):
    seen = []

    def callback(t, state, report):
        weights = torch.tensor(state.Q, requires_grad=True)
        (weights**2).sum().backward()
        seen.append(float(weights.grad.abs().max()))

    def memory(D, Vg, Wg, beta):
        return (1 - beta) * torch.tensor(D, requires_grad=True) + beta * torch.tensor(Wg)

    options = {"damping": 0.5, "tol": 0, "max_iter": 3}
    plain = ga.run_gamp(data, **options)
    watched = ga.run_gamp(data, **options, iteration=ga.IterationOptions(memory=memory, callback=callback))
    assert len(seen) == 4
    assert np.allclose(watched.Q, plain.Q, rtol=1e-12, atol=1e-14)


def test_states_of_tensors_and_complex_numbers_raise_named_errors(data):
    state = ga.initial_state(data, data.Q_star)
    for bad in (as_tensor(state.D), 1j * state.D):
        with pytest.raises(TypeError, match=r"state.D: needs an array of real numbers"):
            ga.gamp_step(data, "exact", ga.GampState(state.Q, state.V, bad), 0.5)
    with pytest.raises(TypeError, match=r"omega: needs an array of real numbers, got .*complex128"):
        ga.denoise(data.loss, data.terms("exact").params, 1j * state.D, state.V)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_floats_are_converted_exactly(arrays, dtype):
    """Tensors of bfloat16, which numpy lacks, are converted to equal numbers in single precision."""
    short = {name: torch.tensor(values).to(dtype) for name, values in arrays.items()}
    wide = {name: values.to(torch.float64).numpy() for name, values in short.items()}
    one, two = ga.Dataset(**short, lam=0.1), ga.Dataset(**wide, lam=0.1)
    assert all(np.array_equal(getattr(one, name), getattr(two, name)) for name in arrays)
    assert one.positions.dtype == np.float64


def test_sparse_complex_and_remote_tensors_raise_named_errors(arrays, data):
    x, y = torch.tensor(arrays["tokens"]), torch.tensor(arrays["outputs"])
    for call, words in (
        (lambda: ga.LabelledDataset(x[:, 0].to_sparse(), np.ones(60), ga.SquaredLoss()), r"pass tokens.to_dense\(\)"),
        (lambda: ga.Dataset(x.to_sparse(), y), "tokens: needs a dense array, got a sparse Tensor"),
        (lambda: ga.Dataset(x, 1j * y), "outputs: needs a real array .* got a tensor of torch.complex128 on cpu"),
        (lambda: ga.Dataset(torch.empty(x.shape, device="meta"), y), "tokens: .* torch.float32 on meta"),
        (lambda: ga.gradient(data, torch.ones(3, 3, dtype=torch.complex64)), "Q: needs a real array"),
        (lambda: ga.gradient(data, torch.ones(2, 2).to_sparse()), "Q: needs a dense array"),
    ):
        with pytest.raises(TypeError, match=words):
            call()
