"""Tokens in memory-mapped files: they lead to the bits of tokens in memory, and are read in blocks."""

import tracemalloc

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.problem import stores
from gamp_attention.problem.stores import as_tokens, token_blocks


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Reduce blocks to a few dozen samples, so that every pass that copies tokens reads many blocks."""
    monkeypatch.setattr(stores, "BLOCK_BYTES", 50_000)


def save(path, array):
    np.save(path, array)
    return np.load(path, mmap_mode="r")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_runs_on_files_have_the_bits_of_runs_in_memory(dtype, tmp_path):
    data = ga.sample(ga.paper_model(), 100, 1.5, seed=0, dtype=dtype)
    arrays = data.tokens, data.outputs, data.positions
    files = save(tmp_path / "x.npy", arrays[0]), save(tmp_path / "y.npy", arrays[1]), arrays[2]
    given, mapped = ga.Dataset(*arrays), ga.Dataset(*files)
    assert isinstance(mapped.tokens, np.memmap)
    assert len(list(token_blocks(mapped.tokens))) >= 3
    assert np.allclose(mapped.spectra, given.spectra, rtol=1e-13)
    mapped = mapped.copy_with(spectra=given.spectra)  # sums over blocks are rounded differently
    ends = [ga.run_gamp(each, data.Q_star, damping=0.5) for each in (given, mapped)]
    assert ends[0].converged
    assert np.array_equal(ends[0].Q, ends[1].Q)
    assert np.array_equal(mapped.outputs, data.outputs)
    assert np.array_equal(ends[0].predict(arrays[0]), ends[1].predict(files[0]))


def test_slices_of_files_and_other_dtypes_are_read(tmp_path):
    values = np.arange(60 * 2 * 30).reshape(60, 2, 30)
    mapped, floats = save(tmp_path / "x.npy", values), save(tmp_path / "f.npy", values.astype(float))
    changed = np.load(tmp_path / "f.npy", mmap_mode="c")
    changed[5] = -1  # in memory only
    for source in (mapped, floats[10:40], floats[10:40:2], changed):
        tokens = as_tokens("tokens", source)
        assert tokens.dtype == np.float64
        assert np.array_equal(np.concatenate([x for _, _, x in token_blocks(tokens)]), source)
    assert isinstance(as_tokens("tokens", floats[10:40]), np.memmap)
    assert not isinstance(as_tokens("tokens", floats[10:40:2]), np.memmap)


def test_bad_files_raise_named_errors(tmp_path):
    x, y, p = np.ones((5, 2, 30)), np.ones((5, 2, 30)), np.ones((2, 30))
    x[3, 1, 4] = np.nan
    mapped = save(tmp_path / "x.npy", x)
    for positions in (p, None):
        with pytest.raises(ValueError, match=r"tokens: needs finite numbers, got 1 .* index \(3, 1, 4\)"):
            ga.Dataset(mapped, y, positions)
        with pytest.raises(ValueError, match=r"outputs: needs finite numbers, got 1 .* index \(3, 1, 4\)"):
            ga.Dataset(y, mapped, positions)
    with pytest.raises(ValueError, match=r"outputs: needs shape \(5, 2, 30\), got shape \(4, 2, 30\)"):
        ga.Dataset(y, save(tmp_path / "y.npy", y[:4]), p)
    with pytest.raises(ValueError, match=r"tokens: needs shape \(n, L, d\), got shape \(5, 60\)"):
        ga.Dataset(save(tmp_path / "z.npy", np.zeros((5, 60))), y, p)


def test_a_pass_over_a_file_needs_little_memory(tmp_path):
    sampled = ga.sample(ga.paper_model(), 2000, 0.1, seed=0)
    data = ga.Dataset(save(tmp_path / "x.npy", sampled.tokens), sampled.outputs, sampled.positions)
    ga.gradient(data, sampled.Q_star)
    tracemalloc.start()
    ga.gradient(data, sampled.Q_star)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * 8 * data.dim
