"""An interrupted and resumed run makes the same iterations, to the last bit, as an uninterrupted run."""

import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.train import survey as surveys
from tests.conftest import draw_planted
from tests.extensions.train.conftest import train_one


@pytest.fixture(scope="module")
def samples():
    return ga.sample(ga.paper_model(), 120, 1.5, seed=0)


class Interruption(Exception):
    pass


def run_and_count(monkeypatch, data, stop=None, **options):
    """Return a result, and the number of iterations of surveys and of message passing; interrupt the run at `stop`."""
    calls, step = [], surveys.survey_step

    def tick(*_):
        calls.append(1)
        if len(calls) == stop:
            raise Interruption

    def counted_step(*arguments):
        tick()
        return step(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(surveys, "survey_step", counted_step)
        return train_one(data, **options, iteration=ga.IterationOptions(callback=tick)), len(calls)


HARD = ga.paper_model(omega=0.2, sigma=0.8)
RUNS = {  # data, options, and fractions of the run at which it is interrupted
    "cycle": (lambda: ga.sample(ga.paper_model(), 120, 1.5, seed=0), {"init": "positional"}, (0.02, 0.5)),
    "fixed": (lambda: ga.sample(HARD, 60, 1.5, seed=0), {"init": "semantic", "tol": 0, "max_iter": 40}, (0.8,)),
    "saddle": (lambda: ga.sample(HARD, 60, 1.5, seed=0), {"init": np.zeros((60, 1)), "escape": True}, (0.3,)),
    "several starts": (
        lambda: ga.sample(HARD, 60, 1.5, seed=0), {"init": "spectral", "n_starts": 5, "seed": 3}, (0.03, 0.2, 0.9)
    ),
    "descents agree": (lambda: draw_planted(60, 3, 30, 2, seed=2), {"init": "random", "n_starts": 4}, (0.4,)),
    "descents differ": (lambda: draw_planted(20, 3, 30, 1, seed=2), {"init": "random", "n_starts": 4}, (0.01, 0.9)),
    "given surveys": (
        lambda: ga.sample(HARD, 40, 0.3, seed=0), {"init": "random", "survey": 0.01, "n_starts": 2}, (0.4, 0.9)
    ),
    "refined surveys": (lambda: ga.sample(HARD, 40, 0.3, seed=0), {"init": "random", "survey": True}, (0.8,)),
    "automatic surveys": (
        lambda: ga.sample(HARD, 100, 0.8, seed=2), {"init": "spectral", "n_starts": 8, "survey": "auto"}, (0.9,)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_interrupted_runs_resume_to_the_last_bit(name, tmp_path, monkeypatch):
    make, options, fractions = RUNS[name]
    data, every = make(), 0.1 if "surveys" in name else 0  # seconds; large checkpoints at every iteration take long
    whole, n_calls = run_and_count(monkeypatch, data, **options)
    file = ga.Checkpoint(tmp_path / "run.npz", every)
    for earlier, fraction in zip((0.0, *fractions), fractions, strict=False):
        stop = max(int((fraction - earlier) * n_calls), 1)
        with pytest.raises(Interruption):
            run_and_count(monkeypatch, data, stop, checkpoint=file, **options)
    resumed, n_later = run_and_count(monkeypatch, data, checkpoint=file, **options)
    assert n_later < n_calls or every
    assert (resumed.status, resumed.n_iter, resumed.n_escapes) == (whole.status, whole.n_iter, whole.n_escapes)
    assert resumed.message == whole.message
    for key, values in vars(resumed.history).items():
        assert np.array_equal(values, getattr(whole.history, key), equal_nan=True), key
    for one, other in zip(resumed.starts + resumed.surveys, whole.starts + whole.surveys, strict=True):
        assert one.to_dict() == other.to_dict()
        assert np.array_equal(one.Q, other.Q)
    assert np.array_equal(resumed.Q, whole.Q)


def test_a_run_may_be_resumed_with_a_larger_max_iter(samples, tmp_path):
    file = ga.Checkpoint(tmp_path / "run.npz", 0)
    train_one(samples, checkpoint=file, max_iter=10, tol=0)
    longer = train_one(samples, checkpoint=file, max_iter=25, tol=0)
    assert np.array_equal(longer.Q, ga.run_gamp(samples, tol=0, max_iter=25).Q)
    with pytest.raises(ValueError, match=r"max_iter: needs at least 25, .* got 10"):
        train_one(samples, checkpoint=file, max_iter=10, tol=0)


def test_checkpoints_of_other_runs_and_damaged_files_raise_errors(samples, tmp_path):
    path = tmp_path / "run.npz"
    train_one(samples, checkpoint=ga.Checkpoint(path, 0), tol=0, max_iter=5)
    good = path.read_bytes()
    other = ga.sample(ga.paper_model(), 120, 1.5, seed=1)
    changes = [{"iteration": ga.IterationOptions(accelerate=True)}, {"risk": "asymptotic"}, {"survey": True}]
    for data, options in [(other, {}), *((samples, change) for change in [*changes, {"n_starts": 2}])]:
        with pytest.raises(ValueError, match=r"checkpoint: .* same data and options"):
            train_one(data, checkpoint=path, tol=0, max_iter=5, **options)
    flipped, middle = bytearray(good), len(good) // 2
    flipped[middle : middle + 64] = bytes(255 - byte for byte in good[middle : middle + 64])  # not only padding
    words = (
        (good[: len(good) // 2], r"checkpoint: .*run.npz, which is a damaged checkpoint; delete it"),
        (bytes(flipped), r"checkpoint: .*run.npz, which is a damaged checkpoint; delete it"),
        (b"nonsense", r"checkpoint: .*run.npz', which this package did not write, .*; choose another name$"),
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


def test_a_run_goes_on_if_its_checkpoint_can_no_longer_be_written(samples, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    options = {"checkpoint": ga.Checkpoint(folder / "run.npz", 0), "tol": 0, "max_iter": 3}
    lose = ga.IterationOptions(callback=lambda *_: shutil.rmtree(folder, ignore_errors=True))
    with pytest.warns(RuntimeWarning, match=r"checkpoint: .*run.npz cannot be written: No such file or directory"):
        assert train_one(samples, **options, iteration=lose).n_iter == 3


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, in which no user can write files")
def test_a_checkpoint_needs_a_folder_in_which_files_can_be_written():
    with pytest.raises(ValueError, match=r"checkpoint: '/proc/run\.npz' cannot be written"):
        ga.Checkpoint("/proc/run.npz")


def test_a_run_that_is_interrupted_early_resumes(samples, tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    with pytest.raises(Interruption):
        run_and_count(monkeypatch, samples, 9, checkpoint=path)
    whole, calls = run_and_count(monkeypatch, samples)
    resumed, later = run_and_count(monkeypatch, samples, checkpoint=path)
    assert later < calls
    assert np.array_equal(resumed.Q, whole.Q)


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


def make_loss(factor):
    """Return a loss with an outer value, which stands for an edit of its class."""

    @ga.register_loss
    class Scaled(NamedTuple):
        convex = True

        def value(self, p, z):
            return factor * (p[0] - z[0, 0]) ** 2

    return Scaled()


def test_a_checkpoint_of_another_loss_of_the_same_name_is_refused(tmp_path):
    x = np.random.default_rng(0).standard_normal((60, 1, 12))
    checkpoint = ga.Checkpoint(tmp_path / "run.npz", 0)
    train_one(ga.LabelledDataset(x, x[:, 0, :1], make_loss(1.0), 0.1), "random", checkpoint=checkpoint, max_iter=3)
    with pytest.raises(ValueError, match=r"checkpoint: .* same data and options"):
        train_one(ga.LabelledDataset(x, x[:, 0, :1], make_loss(2.0), 0.1), "random", checkpoint=checkpoint, max_iter=3)
