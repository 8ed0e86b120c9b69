"""Symmetries of the problem are symmetries of complete runs."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

import gamp_attention as ga
from gamp_attention.problem.dataset import Dataset
from gamp_attention.sampling.draw import teacher_dataset
from tests.conftest import examples

seeds = st.integers(0, 2**32 - 1)


def draw_rotation(rng, size):
    q, r = np.linalg.qr(rng.normal(size=(size, size)))
    return q * np.sign(np.diag(r))


def run(data, Q, risk="exact", steps=25):
    """Return the weights after some iterations, and the converged loss."""
    followed = ga.run_gamp(data, Q, risk, damping=0.4, tol=0, max_iter=steps)
    return followed.Q, ga.run_gamp(data, followed.Q, risk, damping=0.3, max_iter=1500)


def make(seed, rank=1):
    rng = np.random.default_rng(seed)
    model = ga.attention_model(2, rank, 1, omega=rng.uniform(), lam=0.05)
    data = ga.sample(model, 40, 1.5, rng)
    return rng, data, 0.5 * rng.normal(size=(40, rank))


@examples(8)
@given(seeds)
def test_weights_rotate_with_the_tokens_whatever_the_order_of_samples(seed):
    rng, data, Q = make(seed)
    order, O = rng.permutation(data.n_samples), draw_rotation(rng, data.dim)
    arrays = data.tokens[order] @ O, data.outputs[order] @ O, data.positions @ O
    turned = Dataset(*arrays, data.lam, spectra=data.spectra)
    own = Dataset(data.tokens, data.outputs, data.positions, data.lam, spectra=data.spectra)
    assert np.allclose(run(own, Q)[0], O @ run(turned, O.T @ Q)[0], atol=1e-7)


@examples(8)
@given(seeds, st.sampled_from(["exact", "asymptotic"]))
def test_opposite_starts_end_at_opposite_weights(seed, risk):
    _, data, Q = make(seed)
    assert np.allclose(run(data, Q, risk)[0], -run(data, -Q, risk)[0], atol=1e-7)


@examples(8)
@given(seeds)
def test_runs_rotate_with_the_columns(seed):
    """Q → QO changes neither the tied map nor the first V, a multiple of 1, so all iterates are rotated."""
    rng, data, Q = make(seed, rank=2)
    O = draw_rotation(rng, 2)
    here, there = run(data, Q, steps=8), run(data, Q @ O, steps=8)
    assert np.allclose(here[0] @ O, there[0], atol=1e-6)
    if here[1].converged and there[1].converged and np.linalg.norm(here[1].Q @ O - there[1].Q) < 1e-3:
        assert here[1].train_loss == pytest.approx(there[1].train_loss, rel=1e-9)


@examples(8)
@given(seeds, st.permutations(range(3)))
def test_order_of_tokens_does_not_matter(seed, order):
    """A permutation of tokens, positions, covariances and the teacher's matrix A does not change the weights."""
    rng = np.random.default_rng(seed)
    order = np.array(order)
    A, sigma, tau = rng.dirichlet(np.ones(3), size=3), rng.uniform(0.3, 0.7, 3), rng.normal(size=3)
    model = ga.attention_model(3, omega=rng.uniform(), sigma=sigma, tau=tau, A=A, lam=0.05)
    permuted = ga.attention_model(
        3, omega=model.teacher.omega, sigma=sigma[order], tau=tau[order], A=A[np.ix_(order, order)], lam=0.05
    )
    data, Q = ga.sample(model, 30, 1.5, rng), 0.5 * rng.normal(size=(30, 1))
    there = teacher_dataset(
        permuted, np.ascontiguousarray(data.tokens[:, order]), data.positions[order], data.Q_star, data.spectra[order]
    )
    for risk in ("exact", "asymptotic"):  # few iterations: far from a minimum, each may amplify rounding errors
        here, other = ga.run_gamp(data, Q, risk, tol=0, max_iter=3), ga.run_gamp(there, Q, risk, tol=0, max_iter=3)
        assert pytest.approx(here.Q, abs=1e-7) == other.Q
        slope = model.lam * here.gradient_norm / np.sqrt(30)  # slope of the loss if a run is far from its minimum
        room = 1e-12 + 2 * slope * np.linalg.norm(here.Q - other.Q)
        assert other.train_loss == pytest.approx(here.train_loss, abs=room)
        for name, values in here.overlaps.arrays().items():
            assert other.overlaps.arrays()[name] == pytest.approx(values[order], abs=1e-6)
