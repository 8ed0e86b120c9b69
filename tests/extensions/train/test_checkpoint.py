"""An interrupted and resumed run makes the same iterations, to the last bit, as an uninterrupted run."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from tests.extensions.train.conftest import train_one


@pytest.fixture(scope="module")
def samples():
    return ga.sample(ga.paper_model(), 120, 1.5, seed=0)


class Interruption(Exception):
    pass


def interrupt_at(*iterations):
    """Return a callback that interrupts the run once at each of the iterations."""
    left = list(iterations)

    def callback(t, state, report):
        if left and t == left[0]:
            left.pop(0)
            raise Interruption

    return callback


def run_in_pieces(data, path, iterations, **options):
    iteration = options.pop("iteration", ga.IterationOptions())
    options["iteration"] = replace(iteration, callback=interrupt_at(*iterations))
    for _ in iterations:
        with pytest.raises(Interruption):
            train_one(data, checkpoint=ga.Checkpoint(path, 0), **options)
    return train_one(data, checkpoint=ga.Checkpoint(path, 1e6), **options)  # writes no file


def check_equal(one, other):
    assert one.status is other.status
    assert one.n_iter == other.n_iter
    for name, values in vars(one.history).items():
        assert np.array_equal(values, getattr(other.history, name)), name
    assert np.array_equal(one.Q, other.Q)
    assert one.message == other.message


@pytest.mark.parametrize("options", [{"init": "positional"}, {"init": "semantic", "tol": 0, "max_iter": 40}])
def test_resumed_runs_equal_uninterrupted_runs(samples, options, tmp_path):
    whole = ga.run_gamp(samples, **options)
    assert whole.n_iter > 30
    check_equal(run_in_pieces(samples, tmp_path / "run.npz", (1, 9, 30), **options), whole)


def test_a_run_may_be_resumed_with_a_larger_max_iter(samples, tmp_path):
    file = ga.Checkpoint(tmp_path / "run.npz", 0)
    train_one(samples, checkpoint=file, max_iter=10, tol=0)
    longer = train_one(samples, checkpoint=file, max_iter=25, tol=0)
    check_equal(longer, ga.run_gamp(samples, tol=0, max_iter=25))
    with pytest.raises(ValueError, match=r"max_iter: needs at least 25, .* got 10"):
        train_one(samples, checkpoint=file, max_iter=10, tol=0)


def test_checkpoints_of_other_runs_and_damaged_files_raise_errors(samples, tmp_path):
    path = tmp_path / "run.npz"
    train_one(samples, checkpoint=ga.Checkpoint(path, 0), tol=0, max_iter=5)
    good = path.read_bytes()
    other = ga.sample(ga.paper_model(), 120, 1.5, seed=1)
    accelerated = {"iteration": ga.IterationOptions(accelerate=True)}
    for data, options in ((other, {}), (samples, accelerated), (samples, {"risk": "asymptotic"})):
        with pytest.raises(ValueError, match=r"checkpoint: .* same data and options"):
            train_one(data, checkpoint=path, tol=0, max_iter=5, **options)
    flipped, middle = bytearray(good), len(good) // 2
    flipped[middle : middle + 64] = bytes(255 - byte for byte in good[middle : middle + 64])  # not only padding
    words = (
        (good[: len(good) // 2], r"checkpoint: .*run.npz, which is a damaged checkpoint; delete it"),
        (bytes(flipped), r"checkpoint: .*run.npz, which is a damaged checkpoint; delete it"),
        (b"nonsense", r"checkpoint: .*run.npz', which this package did not write; choose another name$"),
    )
    for bad, match in words:
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=match):
            train_one(samples, checkpoint=path, tol=0, max_iter=5)
        assert path.read_bytes() == bad
    path.write_bytes(b"")  # as mktemp makes it
    assert train_one(samples, checkpoint=ga.Checkpoint(path, 0), tol=0, max_iter=5).n_iter == 5
    assert path.stat().st_size > 0
    np.save(tmp_path / "one.npy", np.ones(3))
    for where, error in ((tmp_path / "one.npy", ValueError), (tmp_path / "no" / "x.npz", ValueError), (3, TypeError)):
        with pytest.raises(error, match="checkpoint"):
            train_one(samples, checkpoint=where)


def test_checkpoints_of_data_with_equal_labels_and_mean_squares_are_refused(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "run.npz"
    signs, labels = rng.choice([-1.0, 1.0], (60, 1, 12)), rng.standard_normal(60)
    one, other = (ga.LabelledDataset(x, labels, ga.SquaredLoss(), 0.1) for x in (signs, signs[::-1]))
    train_one(one, "random", checkpoint=ga.Checkpoint(path, 0), max_iter=3)
    with pytest.raises(ValueError, match=r"checkpoint: .* same data and options"):
        train_one(other, "random", checkpoint=path, max_iter=3)
    # the digest depends on the numbers, not on the place where they are stored
    np.save(tmp_path / "rows.npy", signs)
    stored = ga.LabelledDataset(np.load(tmp_path / "rows.npy", "r"), labels, ga.SquaredLoss(), 0.1)
    train_one(stored, "random", checkpoint=path, max_iter=5)
