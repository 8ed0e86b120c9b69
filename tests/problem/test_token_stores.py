"""Tokens on disk, or drawn again at every pass: they equal tokens in memory, and lead to the same fixed points."""

import pickle
import tracemalloc

import h5py
import numpy as np
import pytest
import zarr

import gamp_attention as ga
from gamp_attention.problem import stores as token_stores
from gamp_attention.problem.stores import FileTokens, TokenStore, token_blocks

MIXTURE = ga.mixture_model(np.array([[0.5, 0.1], [0.1, 0.3]]), means=0.4 * np.array([[1.0, -1.0], [1.0, -1.0]]))
MODELS = {"paper": ga.paper_model(), "mixture": MIXTURE, "glm": ga.glm_model(ga.SquaredLoss(), ga.LinearLabels())}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Reduce blocks to a few dozen samples, so that every pass reads many blocks."""
    monkeypatch.setattr(token_stores, "BLOCK_BYTES", 50_000)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_regenerated_tokens_have_the_bits_of_stored_tokens(name, dtype, tmp_path):
    stored = ga.sample(MODELS[name], 150, 1.5, seed=3, dtype=dtype)
    for storage in ("none", tmp_path / "tokens.npy"):
        other = ga.sample(MODELS[name], 150, 1.5, seed=3, dtype=dtype, storage=storage)
        assert isinstance(other.tokens, TokenStore)
        assert len(list(token_blocks(other.tokens, other.groups))) >= 3
        for _ in range(2):
            assert np.array_equal(np.asarray(other.tokens), stored.tokens)
        part = np.empty((20, *other.tokens.shape[1:]), dtype)
        other.tokens.fill(slice(50, 70), part)
        assert np.array_equal(part, stored.tokens[50:70])
        assert np.array_equal(other.Q_star, stored.Q_star)
        assert np.allclose(other.terms("exact").params, stored.terms("exact").params, rtol=1e-13, atol=1e-14)
    assert np.array_equal(np.load(tmp_path / "tokens.npy"), stored.tokens)


def test_a_given_generator_advances_equally_for_all_storages():
    after = []
    for storage in ("memory", "none"):
        rng = np.random.Generator(np.random.Philox(5))
        ga.sample(ga.paper_model(), 40, 1.0, seed=rng, storage=storage)
        after.append(rng.standard_normal())
    assert after[0] == after[1]


@pytest.mark.parametrize("name", MODELS)
def test_message_passing_ends_at_the_same_weights(name):
    stored, again = (ga.sample(MODELS[name], 120, 1.5, seed=1, storage=storage) for storage in ("memory", "none"))
    runs = [ga.run_gamp(data, damping=0.5, seed=2) for data in (stored, again)]
    assert runs[0].converged
    assert runs[1].status is runs[0].status
    assert abs(runs[0].Q - runs[1].Q).max() < 1e-9
    z = [data.matrix.fields(data.Q_star) for data in (stored, again)]
    assert np.allclose(z[0], z[1], rtol=0, atol=1e-13)
    back = [data.matrix.back_project(z[0]) for data in (stored, again)]
    assert np.allclose(back[0], back[1], rtol=0, atol=1e-11)


def iterate_sources(data, folder):
    """Write tokens and outputs to three kinds of files; yield the kind and the open arrays."""
    np.save(folder / "x.npy", data.tokens)
    np.save(folder / "y.npy", data.outputs)
    yield "npy", np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "y.npy", mmap_mode="r")
    with h5py.File(folder / "data.h5", "w") as file:
        yield "h5py", file.create_dataset("x", data=data.tokens), file.create_dataset("y", data=data.outputs)
    chunks = (7, *data.tokens.shape[1:])
    arrays = []
    for name, values in (("x", data.tokens), ("y", data.outputs)):
        arrays.append(zarr.create_array(folder / f"{name}.zarr", shape=values.shape, chunks=chunks, dtype="f8"))
        arrays[-1][...] = values
    yield "zarr", *arrays


def test_files_are_read_block_by_block_and_give_the_fit_of_arrays(tmp_path):
    data = ga.sample(ga.paper_model(), 100, 1.5, seed=0)
    given = ga.Dataset(data.tokens, data.outputs, data.positions)
    expected = ga.run_gamp(given, data.Q_star, damping=0.5)
    kinds = []
    for kind, tokens, outputs in iterate_sources(data, tmp_path):
        mapped_data = ga.Dataset(tokens, outputs, data.positions)
        assert isinstance(mapped_data.tokens, TokenStore)
        assert isinstance(mapped_data.tokens, FileTokens) == (kind == "npy")
        assert np.array_equal(mapped_data.outputs, data.outputs)
        result = ga.run_gamp(mapped_data, data.Q_star, damping=0.5)
        assert result.status is expected.status
        assert abs(result.Q - expected.Q).max() < 1e-9
        kinds.append(kind)
    assert kinds == ["npy", "h5py", "zarr"]


def test_slices_of_mapped_files_and_other_dtypes_are_read(tmp_path):
    values = np.arange(60 * 2 * 30).reshape(60, 2, 30)
    np.save(tmp_path / "x.npy", values)
    mapped, changed = (np.load(tmp_path / "x.npy", mmap_mode=mode) for mode in "rc")
    changed[5] = -1  # in memory only
    for source in (mapped, mapped[10:40:2], changed):
        tokens = token_stores.as_tokens("tokens", source)
        assert tokens.dtype == np.float64
        assert np.array_equal(np.concatenate([block.tokens.copy() for block in token_blocks(tokens)]), source)


def test_descent_reads_stores_into_memory():
    data = ga.sample(ga.paper_model(), 60, 1.5, seed=0, storage="none")
    assert ga.minimize_risk(data, method="lbfgs").converged
    assert ga.fit_linear_baseline(data).status.converged


def test_bad_stores_raise_named_errors(tmp_path):
    x = np.ones((5, 2, 30))
    x[3, 1, 4] = np.nan
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    with pytest.raises(ValueError, match=r"tokens: needs finite numbers, got 1 .* index \(3, 1, 4\)"):
        ga.Dataset(mapped, np.ones((5, 2, 30)), np.ones((2, 30)))
    with pytest.raises(ValueError, match=r"outputs: needs shape \(5, 2, 30\), got shape \(4, 2, 30\)"):
        ga.Dataset(np.ones((5, 2, 30)), np.ones((4, 2, 30)), np.ones((2, 30)))
    with pytest.raises(ValueError, match=r"tokens: needs shape \(n, L, d\), got shape \(5, 60\)"):
        ga.Dataset(zarr.zeros((5, 60)), np.ones((5, 2, 30)), np.ones((2, 30)))
    with pytest.raises(ValueError, match=r"tokens: .* bytes for shape \(6, 2, 30\)"):
        FileTokens(tmp_path / "x.npy", mapped.offset, (6, 2, 30), "f8")
    for storage, error in (
        ("disk", ValueError),
        (tmp_path / "no" / "x.npy", ValueError),
        (3, TypeError),
        (np.ones(3), TypeError),
    ):
        with pytest.raises(error, match="storage: needs"):
            ga.sample(ga.paper_model(), 20, 1.0, storage=storage)


class Lazy:
    """Array that is not in memory, as a netCDF variable or a dask array; `stated` replaces attributes."""

    def __init__(self, array, **stated):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        vars(self).update(stated)

    def __getitem__(self, rows):
        return self.array[rows]


def test_chunked_arrays_of_any_kind_are_read():
    x = np.random.default_rng(0).normal(size=(9, 2, 4))
    for chunks in (None, (4, 2, 4), ((4, 4, 1), (2,), (4,)), "auto", (), lambda: None):
        data = ga.Dataset(Lazy(x, chunks=chunks), Lazy(x, chunks=chunks))
        assert np.array_equal(data.tokens, x)
        assert data.tokens.grain == (4 if isinstance(chunks, tuple) and chunks else 1)
    row, weight = Lazy(x[:, 0]), Lazy(np.ones(9))
    labelled = ga.LabelledDataset(row, Lazy(x[:, 1, 0]), ga.SquaredLoss(), sample_weight=weight)
    assert np.array_equal(labelled.tokens[:, 0], x[:, 0])


NUMBERS = np.ones((9, 2, 4))
HIDDEN = np.ma.masked_array(NUMBERS, np.arange(72).reshape(9, 2, 4) == 60)
GAP = np.where(HIDDEN.mask, np.nan, 1.0)


@pytest.mark.parametrize(
    ("lazy", "words"),
    [
        (Lazy(HIDDEN), r"needs an array without masked entries"),
        (Lazy(GAP), r"needs finite numbers, got 1 NaN or infinite, the first at index \(7, 1, 0\)"),
        (Lazy(NUMBERS[:, :, :1], shape=(9, 2, 4)), r"shape \(9, 2, 4\)"),
        (Lazy(NUMBERS + 1j, dtype=np.dtype(float)), "real numbers"),
        (Lazy(NUMBERS, shape=(np.nan, 2, 4)), "known sizes"),
        (Lazy(NUMBERS, dtype="float"), "real numbers"),
    ],
)
def test_lazy_arrays_that_are_not_what_they_seem(lazy, words):
    for positions in (None, np.ones((2, 4))):
        with pytest.raises((TypeError, ValueError), match=rf"^tokens.*: .*{words}"):
            ga.Dataset(lazy, NUMBERS, positions)
        with pytest.raises((TypeError, ValueError), match=rf"^outputs.*: .*{words}"):
            ga.Dataset(NUMBERS, lazy, positions)


@pytest.mark.extensions
def test_masked_vectors_are_refused():
    masked = np.ma.masked_array(np.ones(9), np.arange(9) == 2)
    for given in (masked, Lazy(masked)):
        with pytest.raises(TypeError, match=r"^sample_weight: .*masked"):
            ga.Dataset(NUMBERS, NUMBERS, sample_weight=given)
        with pytest.raises(TypeError, match=r"^sample_weight: .*masked"):
            ga.GampAttention().fit(NUMBERS, NUMBERS, given)
        with pytest.raises(TypeError, match=r"^labels: .*masked"):
            ga.LabelledDataset(NUMBERS[:, 0], given, ga.SquaredLoss())


def test_a_file_that_is_truncated_during_a_run_raises_a_named_error(tmp_path):
    data = ga.sample(ga.paper_model(), 60, 1.5, seed=0, storage=tmp_path / "x.npy")
    with open(tmp_path / "x.npy", "r+b") as file:
        file.truncate(5000)
    with pytest.raises(ValueError, match=r"tokens: .*x.npy ends \d+ bytes too early"):
        ga.gradient(data, data.Q_star)


def test_a_file_that_was_replaced_raises_a_named_error(tmp_path):
    """A second sample may have the name of the first; the first dataset does not use its tokens."""
    path = tmp_path / "tokens.npy"
    first = ga.sample(ga.paper_model(), 40, 1.5, seed=0, storage=path)
    copied = pickle.loads(pickle.dumps(first.tokens))
    second = ga.sample(ga.paper_model(), 40, 1.5, seed=1, storage=path)
    with pytest.raises(ValueError, match=r"tokens: needs the file from .*tokens.npy, which was replaced since"):
        ga.train_loss(first, first.Q_star)
    assert np.isfinite(ga.train_loss(second, second.Q_star))
    assert np.array_equal(np.asarray(copied), np.asarray(second.tokens))  # on another machine the file is a copy


def test_the_memory_of_a_pass_does_not_grow_with_the_number_of_blocks(tmp_path):
    data = ga.sample(ga.paper_model(), 2000, 0.1, seed=0, storage=tmp_path / "x.npy")
    assert len(list(token_blocks(data.tokens))) == 200
    ga.gradient(data, data.Q_star)
    tracemalloc.start()
    ga.gradient(data, data.Q_star)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * 8 * data.dim  # storing the sums of all blocks would take 400 arrays of size d
