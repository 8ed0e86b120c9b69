"""Hessian products in one pass: agreement with separate functions, and the same bits for every thread count."""

import numba
import numpy as np
import pytest

import gamp_attention as ga


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("L", "r", "n"), [(2, 1, 61), (2, 1, 1), (3, 1, 50), (2, 2, 33), (5, 3, 9)])
def test_a_product_equals_the_separate_functions(L, r, n, dtype, monkeypatch):
    data, rng = ga.sample(ga.attention_model(L, r, 1), 70, n / 70, seed=1, dtype=dtype), np.random.default_rng(0)
    P, H = rng.normal(size=(70, r)), rng.normal(size=(n, L * r, L * r))
    u = data.matrix.fields(P).reshape(n, L * r)
    expected = data.matrix.back_project(np.einsum("nij,nj->ni", H, u).reshape(n, L, r))
    products = []
    for threads in (1, 3):
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
        products.append(data.matrix.hessian_product(H, P))
    assert np.allclose(products[0], expected, rtol=0, atol=1e-13 * n)
    assert np.array_equal(*products)


def test_a_product_with_tokens_on_disk_equals_the_product_in_memory(tmp_path):
    data = ga.sample(ga.paper_model(), 50, 3.0, seed=0)
    np.save(tmp_path / "tokens.npy", data.tokens)
    mapped, rng = np.load(tmp_path / "tokens.npy", mmap_mode="r"), np.random.default_rng(0)
    stored = ga.Dataset(mapped, data.outputs, data.positions)
    P, H = rng.normal(size=(50, 1)), rng.normal(size=(150, 2, 2))
    product = stored.matrix.hessian_product(H, P)
    assert np.allclose(product, data.matrix.hessian_product(H, P), rtol=0, atol=1e-11)
