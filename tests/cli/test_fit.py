"""The command `fit`: files of every kind, what is said of them, results, held-out errors, pictures."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.cli.main import main
from tests.conftest import layer_gradient_norm


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "mine.npz"
    data = ga.sample(ga.paper_model(), 60, 1.5, seed=0)
    np.savez(path, tokens=data.tokens, outputs=data.outputs, positions=data.positions)
    return path, data


def test_fit_writes_a_critical_point(arrays, capsys):
    path, data = arrays
    assert main(["fit", str(path), "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["gradient_norm"] <= 1e-8
    with np.load(path.with_name("mine.fit.npz"), allow_pickle=False) as stored:
        Q, attention = stored["Q"], stored["attention"]
        assert set(stored) >= {"Q", "q", "m", "V", "train_loss", "gradient_norm", "attention", "status"}
    assert layer_gradient_norm(data, Q, "exact") < 1.2e-8
    assert attention.shape == (90, 2, 2)
    assert np.allclose(attention.sum(axis=2), 1)
    assert report["train_loss"] == pytest.approx(ga.train_loss(data, Q, "exact"))


def test_fit_that_does_not_converge_ends_with_1(arrays, tmp_path):
    path, _ = arrays
    out = tmp_path / "fit.npz"
    assert main(["fit", str(path), "--max-iter", "2", "--out", str(out)]) == 1
    assert str(np.load(out)["status"]) == "max_iter"


def test_fit_goes_on_from_a_checkpoint(arrays, tmp_path, capsys):
    path, _ = arrays
    file = tmp_path / "run.npz"
    assert main(["fit", str(path), "--checkpoint", str(tmp_path / "none" / "run.npz")]) == 2
    assert "checkpoint: needs a file in a folder that exists" in capsys.readouterr().err
    outs = [tmp_path / name for name in ("whole.npz", "cut.npz")]
    assert main(["fit", str(path), "--out", str(outs[0])]) == 0
    there = ["fit", str(path), "--checkpoint", str(file), "--checkpoint-every", "0", "--out", str(outs[1])]
    assert main([*there, "--max-iter", "7"]) == 1
    assert file.exists()
    assert main(there) == 0
    assert np.array_equal(np.load(outs[0])["Q"], np.load(outs[1])["Q"])


@pytest.fixture
def fit(tmp_path, monkeypatch, capsys):
    """Runs `fit` on a file and returns its exit status, report, words and result file."""
    monkeypatch.chdir(tmp_path)

    def run(path, *flags):
        status = main(["fit", str(path), *flags, "--json", "-"])
        out, words = capsys.readouterr()
        report = json.loads(out)
        with np.load(report["result"]) as stored:
            return status, report, words, dict(stored)

    return run


def sentences(n=60, L=2, d=20, seed=0):
    """Tokens and a task that attention can learn: they change places."""
    x = np.random.default_rng(seed).standard_normal((n, L, d))
    return x, x[:, ::-1].copy()


def stored(folder, tokens, outputs, positions=None):
    path = folder / "mine.npz"
    np.savez(path, tokens=tokens, outputs=outputs, **({} if positions is None else {"positions": positions}))
    return path


def test_positions_in_the_tokens_give_the_layer_of_positions_beside_them(arrays, tmp_path, fit):
    path, data = arrays
    _, beside, words, first = fit(path, "--out", "beside.npz")
    assert "positions: as given" in words
    within = stored(tmp_path, data.tokens + data.positions, data.outputs)
    _, inside, words, second = fit(within)
    assert "positions: none given; the means of the tokens" in words
    assert (beside["positions"], inside["positions"]) == ("given", "in the tokens")
    assert inside["train_loss"] == pytest.approx(beside["train_loss"], rel=1e-9)
    assert np.allclose(first["attention"], second["attention"], atol=1e-6)
    assert np.array_equal(first["positions"], data.positions)
    assert not second["positions"].any()


def test_the_manual_shows_what_the_command_says(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "own_data.md").read_text()
    program, command, shown = (
        re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1] for kind in ("python", "bash", "text")
    )
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    assert main(command.split()[1:]) == 0

    def without_numbers(text):
        return re.sub(r"[\d.]+(e-\d+)?(\(\d+\))?", "#", text)

    assert without_numbers(capsys.readouterr().out) == without_numbers(shown)


@pytest.mark.parametrize("kind", ["folder", "torch"])
def test_other_files_give_the_same(kind, tmp_path, fit):
    x, y = sentences()
    _, whole, _, _ = fit(stored(tmp_path, x, y))
    if kind == "folder":
        path = tmp_path / "folder"
        path.mkdir()
        np.save(path / "tokens.npy", x)
        np.save(path / "outputs.npy", y)
    else:
        torch = pytest.importorskip("torch")
        path = tmp_path / "mine.pt"
        torch.save({"tokens": torch.tensor(x), "outputs": torch.tensor(y)}, path)
    status, report, _, found = fit(path)
    assert status == 0
    assert report["train_loss"] == pytest.approx(whole["train_loss"], rel=1e-9)
    assert found["errors"].shape == (60,)


def test_standardised_data_do_not_depend_on_units(tmp_path, fit):
    x, y = sentences()
    _, plain, words, _ = fit(stored(tmp_path, x, y))
    assert "not standardised" in words
    _, first, words, one = fit(stored(tmp_path, x, y), "--standardise")
    assert "standardised: tokens and outputs less the mean of each coordinate" in words
    scale, shift = np.linspace(1, 9, 20), np.linspace(-50, 50, 20)
    _, second, _, other = fit(stored(tmp_path, x * scale + shift, y * scale + shift), "--standardise")
    assert second["train_loss"] == pytest.approx(first["train_loss"], rel=1e-8)
    assert second["train_loss"] != pytest.approx(plain["train_loss"], rel=1e-3)
    assert np.allclose(other["attention"], one["attention"], atol=1e-6)
    assert np.allclose(other["scale"], one["scale"] * scale)


def test_held_out_samples_are_not_trained_on(tmp_path, fit):
    x, y = sentences(80)
    path = stored(tmp_path, x, y)
    _, report, words, found = fit(path, "--held-out", "0.25", "--seed", "3")
    test = found["held_out"]
    assert len(test) == report["held_out"]["samples"] == 20
    assert "20 held out (seed 3)" in words
    assert report["held_out"]["test_error"] == pytest.approx(found["errors"][test].mean())
    error = found["errors"][test].std(ddof=1) / np.sqrt(20)
    assert report["held_out"]["test_error_error"] == pytest.approx(error)
    assert np.allclose(found["errors"], np.mean((y - found["attention"] @ x) ** 2, axis=(1, 2)))
    y[test] += 100.0
    _, _, _, changed = fit(stored(tmp_path, x, y), "--held-out", "0.25", "--seed", "3")
    assert np.array_equal(changed["Q"], found["Q"])
    assert np.array_equal(changed["held_out"], test)
    _, _, _, other = fit(path, "--held-out", "0.25", "--seed", "4")
    assert not np.array_equal(other["held_out"], test)
    # of outputs W x, the linear layer has none
    _, report, _, _ = fit(stored(tmp_path, *sentences(80)), "--held-out", "0.25")
    assert report["held_out"]["linear_test_error"] < 1e-9 < report["held_out"]["test_error"]


def test_the_picture_of_a_fit(arrays, tmp_path, fit):
    path, _ = arrays
    _, _, words, _ = fit(path, "--plot", "fit.png", "--out", "picture.npz")
    assert "picture: fit.png" in words
    assert "the lowest training loss of 8 starts" in words
    assert (tmp_path / "fit.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


DEGENERATE = {
    "fewer samples than dimensions": sentences(10, 2, 60),
    "fewer dimensions than tokens": sentences(20, 4, 3),
    "one dimension": sentences(20, 3, 1),
    "one token": sentences(40, 1, 10),
    "constant rows": tuple(np.repeat(part, 30, axis=0) for part in sentences(1)),
    "duplicate rows": tuple(np.repeat(part, 4, axis=0) for part in sentences(15)),
    "constant coordinate": tuple(np.concatenate([part, np.full((60, 2, 1), 5.0)], axis=2) for part in sentences()),
    "zeros": (np.zeros((30, 2, 20)),) * 2,
    "no outputs": (sentences()[0], np.zeros((60, 2, 20))),
}


@pytest.mark.parametrize("flags", [(), ("--standardise", "--held-out", "0.2")], ids=["raw", "standardised"])
@pytest.mark.parametrize("kind", DEGENERATE)
def test_degenerate_data_have_a_sensible_answer(kind, flags, tmp_path, fit):
    """A critical point of the risk, finite numbers, and words where samples are the same."""
    tokens, outputs = DEGENERATE[kind]
    status, report, words, found = fit(stored(tmp_path, tokens, outputs), "--n-starts", "2", *flags)
    assert status == 0
    assert report["gradient_norm"] <= 1e-8
    assert np.isfinite(found["Q"]).all()
    assert np.isfinite(found["errors"]).all()
    assert np.allclose(found["attention"].sum(axis=2), 1)
    repeated = {"constant rows": 29, "duplicate rows": 45, "zeros": 29}.get(kind)
    assert (f"{repeated} samples have the tokens of another one" in words) == (repeated is not None)
    assert ("but 1 that are constant" in words) == (kind == "constant coordinate" and bool(flags))


def test_one_sample_needs_positions(tmp_path, capsys, fit):
    x, y = sentences(1)
    assert main(["fit", str(stored(tmp_path, x, y))]) == 2
    assert "positions: needs an array (L, d), or zeros if there are none" in capsys.readouterr().err
    status, _, words, _ = fit(stored(tmp_path, x, y, np.zeros((2, 20))))
    assert status == 0
    assert words.startswith("1 sample of 2 tokens")


def test_the_test_error_is_estimated_from_training_data(arrays, tmp_path, fit):
    path, data = arrays
    _, report, words, found = fit(path)
    own = ga.Dataset(data.tokens, data.outputs, data.positions)
    loo = ga.leave_one_out(own, ga.run_gamp(own, found["Q"]))
    estimate = report["leave_one_out"]
    assert estimate["test_error"] == pytest.approx(loo.test_error, rel=1e-6)
    assert estimate["test_error_error"] == pytest.approx(loo.test_error_error, rel=1e-6)
    assert estimate["trusted"] == loo.trusted
    assert np.allclose(found["errors_left_out"], loo.errors, rtol=1e-5)
    assert "by leaving samples out (standard error)" in words
    assert estimate["test_error"] > found["errors"].mean()


def test_the_estimate_is_in_the_units_of_the_file(arrays, tmp_path, fit):
    _, data = arrays
    scale, x, y = np.linspace(1, 3, 60), data.tokens + data.positions, data.outputs
    one = fit(stored(tmp_path, x, y), "--standardise")
    other = fit(stored(tmp_path, scale * x, scale * y), "--standardise")
    for _, report, _, found in (one, other):
        assert np.mean(found["errors_left_out"]) == pytest.approx(report["leave_one_out"]["test_error"])
    ratio = [np.mean(found["errors_left_out"]) / np.mean(found["errors"]) for *_, found in (one, other)]
    assert 1.2 < ratio[0] < 5
    assert ratio[1] == pytest.approx(ratio[0], rel=0.1)
    assert np.mean(other[3]["errors_left_out"]) > 2 * np.mean(one[3]["errors_left_out"])


def test_a_path_chooses_the_penalty(arrays, tmp_path, fit):
    path, _ = arrays
    status, report, words, found = fit(path, "--path", "0.01", "0.1:1:2", "--n-starts", "2", "--plot", "fit.png")
    assert status == 0
    assert report["path"]["lam"] == [0.01, 0.1, 1.0]
    best = report["path"]["lam"][report["path"]["best"]]
    assert report["lam"] == best == found["lam"]
    assert report["leave_one_out"]["test_error"] == pytest.approx(
        report["path"]["test_error"][report["path"]["best"]], rel=0.15
    )
    assert "RegularizationPath: 3 values" in words
    assert "picture: fit.path.png" in words
    assert (tmp_path / "fit.path.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    status, report, _, _ = fit(path, "--path", "--n-starts", "1")
    assert len(report["path"]["lam"]) == 20
    assert report["path"]["lam"][0] == pytest.approx(0.01 / 30)
