"""The command `fit`: files of every kind, their description, results, held-out errors, and pictures."""

import errno
import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.cli.main import main
from gamp_attention.extensions.cli.options import COMMANDS, EXAMPLES, build_parser
from gamp_attention.gamp.step import gamp_step
from tests.conftest import ROOT, layer_gradient_norm


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


def test_fit_resumes_from_a_checkpoint(arrays, tmp_path, capsys):
    path, _ = arrays
    file = tmp_path / "run.npz"
    assert main(["fit", str(path), "--checkpoint", str(tmp_path / "none" / "run.npz")]) == 2
    assert "checkpoint: needs a file in an existing folder" in capsys.readouterr().err
    outs = [tmp_path / name for name in ("whole.npz", "cut.npz")]
    assert main(["fit", str(path), "--out", str(outs[0])]) == 0
    there = ["fit", str(path), "--checkpoint", str(file), "--checkpoint-every", "0", "--out", str(outs[1])]
    assert main([*there, "--max-iter", "7"]) == 1
    assert file.exists()
    assert main(there) == 0
    assert np.array_equal(np.load(outs[0])["Q"], np.load(outs[1])["Q"])


def press_ctrl_c(*_, **__):
    raise KeyboardInterrupt


def test_an_interruption_after_the_training_keeps_the_weights(arrays, tmp_path, monkeypatch, capsys):
    path, data = arrays
    monkeypatch.setattr("gamp_attention.extensions.cli.fit.leave_one_out", press_ctrl_c)
    out = tmp_path / "fit.npz"
    assert main(["fit", str(path), "--n-starts", "1", "--out", str(out)]) == 130
    assert f"interrupted, the weights are trained and in {out}" in capsys.readouterr().err
    with np.load(out) as stored:
        assert layer_gradient_norm(data, stored["Q"], "exact") < 1.2e-8
        assert "errors_left_out" not in stored
    monkeypatch.undo()
    assert main(["fit", str(path), "--init", str(out), "--n-starts", "1", "--out", str(tmp_path / "all.npz")]) == 0
    assert "errors_left_out" in np.load(tmp_path / "all.npz")


def test_results_of_finished_runs_are_kept(arrays, tmp_path, monkeypatch, capsys):
    """Runs that are interrupted or do not converge write files with other names; a run that converges replaces them."""
    monkeypatch.chdir(tmp_path)
    command = ["fit", str(arrays[0]), "--n-starts", "1", "--no-survey", "--out", "a.npz", "--json", "r.json"]
    assert main(command) == 0
    kept = {name: Path(name).read_bytes() for name in ("a.npz", "r.json")}

    def run(status, said, *names, flags=()):
        assert main([*command, *flags]) == status
        assert said in "".join(capsys.readouterr())
        assert {name: Path(name).read_bytes() for name in kept} == kept
        assert {path.name for path in tmp_path.iterdir()} == {*kept, *names}

    first, second, report = "a.unfinished.npz", "a.unfinished-2.npz", "r.unfinished.json"
    with monkeypatch.context() as patch:
        stop_gamp(patch, 6)
        run(130, f"are in {first}, and a.npz, the result of an earlier run, is unchanged: --init {first}", first)
    assert ga.load_result(first).status is ga.Status.INTERRUPTED
    assert ga.load_result(first).predict(arrays[1].tokens).shape == (90, 2, 60)
    unchanged = "a.npz is unchanged: it holds the result of a run that has converged"
    run(1, unchanged, first, report, flags=["--max-iter", "3"])
    assert ga.load_result(first).status is ga.Status.MAX_ITER
    assert json.loads(Path(report).read_text())["result"] == first
    with monkeypatch.context() as patch:
        stop_gamp(patch, 3)  # weights that the command reads are not replaced
        run(130, f"are in {second}", first, second, report, flags=["--init", first])
    with monkeypatch.context() as patch:
        patch.setattr("gamp_attention.extensions.cli.fit.leave_one_out", press_ctrl_c)
        run(130, "trained and in a.unfinished-3.npz", first, second, "a.unfinished-3.npz", report)
    assert ga.load_result("a.unfinished-3.npz").converged
    assert main([*command, "--lam", "0.02"]) == 0
    assert ga.load_result("a.npz").lam == 0.02
    assert json.loads(Path("r.json").read_text())["lam"] == 0.02
    assert not Path("a.unfinished-4.npz").exists()


def stop_gamp(patch, number):
    """Interrupt message passing at its iteration `number`."""
    calls = []

    def step(*args, **options):
        calls.append(1)
        return gamp_step(*args, **options) if len(calls) < number else press_ctrl_c()

    patch.setattr("gamp_attention.gamp.loop.gamp_step", step)


def test_a_full_disk_leaves_the_old_result_and_the_new_weights(arrays, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["fit", str(arrays[0]), "--n-starts", "1", "--no-survey", "--out", "a.npz", "--json", "r.json"]
    assert main(command) == 0
    kept, written, calls = Path("a.npz").read_bytes(), np.savez, []

    def write(file, **contents):  # the disk is full in the middle of the second archive, or of every archive
        calls.append(1)
        if len(calls) not in room:
            file.write(bytes(1000))
            raise OSError(errno.ENOSPC, "No space left on device")
        written(file, **contents)

    monkeypatch.setattr("numpy.savez", write)
    room = [1]
    assert main([*command, "--lam", "0.02"]) == 2
    out, message = capsys.readouterr()
    assert "--out: a.npz cannot be written: No space left on device; free space or choose another folder" in message
    assert "the weights are in a.unfinished.npz, without attention matrices and errors" in message
    assert "The training loss is" in out
    assert "a.npz contains" not in out.rpartition("Test error")[2]
    assert ga.load_result("a.unfinished.npz").lam == 0.02
    assert json.loads(Path("r.unfinished.json").read_text())["result"] == "a.unfinished.npz"
    calls.clear()
    room = []
    assert main([*command, "--lam", "0.03"]) == 2
    assert "the weights are in" not in capsys.readouterr().err
    assert json.loads(Path("r.unfinished.json").read_text())["result"] is None
    assert Path("a.npz").read_bytes() == kept
    names = ["a.npz", "a.unfinished.npz", "r.json", "r.unfinished.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


@pytest.mark.parametrize(
    ("flags", "called", "file"),
    [
        ("--survey", "extensions.train.survey.survey_step", "c.npz"),
        ("--path", "extensions.inference.leave_one_out.LeaveOneOutMethod.estimate", "c.path.npz"),
    ],
)
def test_an_interruption_before_the_training_names_the_checkpoint(
    flags, called, file, arrays, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"gamp_attention.{called}", press_ctrl_c)
    command = ["fit", str(arrays[0]), "--n-starts", "1", "--out", "fit.npz", flags]
    assert main(command) == 130
    assert "interrupted, nothing was written" in capsys.readouterr().err
    assert main([*command, "--checkpoint", "c.npz", "--checkpoint-every", "0"]) == 130
    assert f"interrupted: the same command resumes from {file}" in capsys.readouterr().err


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


def read_sections(words):
    """Return the lines of each section of the output by its title."""
    parts = re.findall(r"^(\S.*)\n((?:  .*\n)*)", words, re.MULTILINE)
    return {title: [line.removeprefix("  ") for line in lines.splitlines()] for title, lines in parts}


def stored(folder, tokens, outputs, positions=None):
    path = folder / "mine.npz"
    np.savez(path, tokens=tokens, outputs=outputs, **({} if positions is None else {"positions": positions}))
    return path


@pytest.mark.parametrize("kind", ["equal", "unequal", "shifted"])
def test_the_command_proposes_to_standardize_arrays_of_mixed_scales(kind, tmp_path, fit):
    x, y = sentences()
    units = {"equal": 1.0, "unequal": np.geomspace(1.0, 100.0, 20), "shifted": 1.0}[kind]
    x, y = (units * part + (5.0 if kind == "shifted" else 0.0) for part in (x, y))
    _, _, words, _ = fit(stored(tmp_path, x, y), "--n-starts", "1", "--max-iter", "20", "--lam", "100")
    assert ("use --standardize" in words) == (kind != "equal")


def test_positions_in_the_tokens_give_the_layer_of_separate_positions(arrays, tmp_path, fit):
    path, data = arrays
    _, beside, words, first = fit(path, "--out", "beside.npz")
    assert "The file contains positions" in words
    within = stored(tmp_path, data.tokens + data.positions, data.outputs)
    _, inside, words, second = fit(within)
    assert "The file contains no positions. The mean token at each index is used instead" in words
    assert (beside["positions"], inside["positions"]) == ("given", "in the tokens")
    assert inside["train_loss"] == pytest.approx(beside["train_loss"], rel=1e-9)
    assert np.allclose(first["attention"], second["attention"], atol=1e-6)
    assert np.array_equal(first["positions"], data.positions)
    assert not second["positions"].any()


def test_the_manual_shows_the_output_of_the_command(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[3] / "docs" / "own_data.md").read_text()
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
def test_other_files_give_the_same(kind, tmp_path, fit, monkeypatch):
    x, y = sentences()
    loads = []
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
        load = torch.load
        monkeypatch.setattr(torch, "load", lambda *args, **options: loads.append(1) or load(*args, **options))
    status, report, _, found = fit(path)
    assert status == 0
    assert len(loads) == (kind == "torch")  # large files are read once
    assert report["train_loss"] == pytest.approx(whole["train_loss"], rel=1e-9)
    assert found["errors"].shape == (60,)


def test_standardized_data_do_not_depend_on_units(tmp_path, fit):
    x, y = sentences()
    _, plain, words, _ = fit(stored(tmp_path, x, y))
    assert "The arrays are used in their units." in words
    _, first, words, one = fit(stored(tmp_path, x, y), "--standardize")
    assert "The arrays are standardized: each coordinate of tokens and outputs is shifted by its mean" in words
    scale, shift = np.linspace(1, 9, 20), np.linspace(-50, 50, 20)
    _, second, _, other = fit(stored(tmp_path, x * scale + shift, y * scale + shift), "--standardize")
    assert second["train_loss"] == pytest.approx(first["train_loss"], rel=1e-8)
    assert second["train_loss"] != pytest.approx(plain["train_loss"], rel=1e-3)
    assert np.allclose(other["attention"], one["attention"], atol=1e-6)
    assert np.allclose(other["scale"], one["scale"] * scale)


def test_for_large_tokens_another_scale_is_proposed(tmp_path, fit):
    """At a tiny λ rounding errors may prevent convergence, and continuing from the weights does not help."""
    x, y = sentences()
    options = "--n-starts", "1", "--max-iter", "20", "--tol", "1e-30"  # runs do not converge
    for size, more, proposed in ((200, (), True), (200, ("--lam", "100"), False), (1, (), False)):
        status, _, words, _ = fit(stored(tmp_path, size * x, size * y), *options, *more)
        assert status == 1
        assert ("λ is less than 1e-06 of the mean square of the tokens" in words) == proposed
        assert ("--standardize" in words.split("Next steps")[1]) == proposed


def test_held_out_samples_are_not_trained_on(tmp_path, fit):
    x, y = sentences(80)
    path = stored(tmp_path, x, y)
    _, report, words, found = fit(path, "--held-out", "0.25", "--seed", "3")
    test = found["held_out"]
    assert len(test) == report["held_out"]["samples"] == 20
    assert "60 samples train the layer; 20 samples, selected at random with seed 3, are held out" in words
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
    assert "fit.png shows" in words
    assert "Best of 8 starts: 'spectral" in words
    assert (tmp_path / "fit.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


DEGENERATE = {
    "fewer samples than dimensions": sentences(10, 2, 60),
    "fewer dimensions than tokens": sentences(20, 4, 3),
    "one dimension": sentences(20, 3, 1),
    "equal tokens": (np.repeat(sentences(40, 1, 10)[0], 2, axis=1), sentences(40, 2, 10)[1]),
    "constant rows": tuple(np.repeat(part, 30, axis=0) for part in sentences(1)),
    "duplicate rows": tuple(np.repeat(part, 4, axis=0) for part in sentences(15)),
    "constant coordinate": tuple(np.concatenate([part, np.full((60, 2, 1), 5.0)], axis=2) for part in sentences()),
    "zeros": (np.zeros((30, 2, 20)),) * 2,
    "no outputs": (sentences()[0], np.zeros((60, 2, 20))),
}


@pytest.mark.slow(keep=12)
@pytest.mark.parametrize("flags", [(), ("--standardize", "--held-out", "0.2")], ids=["raw", "standardized"])
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
    assert (f"{repeated} samples have the same tokens as another sample" in words) == (repeated is not None)
    why = {
        "zeros": "All tokens are zero",
        "equal tokens": "The tokens of each sample are equal",
    }
    assert ("so that the outputs of the layer do not depend on its weights." in words) == (kind in why)
    assert why.get(kind, "") in words
    assert "1e-100" not in words
    assert ("Coordinates that are constant are only shifted: 1 of them." in words) == (
        kind == "constant coordinate" and bool(flags)
    )


def test_samples_of_one_token_are_refused(tmp_path, capsys):
    assert main(["fit", str(stored(tmp_path, *sentences(40, 1, 10)))]) == 2
    assert "needs at least 2 tokens per sample, as the softmax of one score is 1" in capsys.readouterr().err


def test_one_sample_needs_positions(tmp_path, capsys, fit):
    x, y = sentences(1)
    assert main(["fit", str(stored(tmp_path, x, y))]) == 2
    assert "positions: needs an array (L, d), or zeros if there are none" in capsys.readouterr().err
    status, _, words, _ = fit(stored(tmp_path, x, y, np.zeros((2, 20))))
    assert status == 0
    assert "mine.npz contains 1 sample of 2 tokens in 20 dimensions." in words


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
    assert re.search(r"^ +leave-one-out$", words, re.MULTILINE)
    assert estimate["test_error"] > found["errors"].mean()


def test_the_estimate_is_in_the_units_of_the_file(arrays, tmp_path, fit):
    _, data = arrays
    scale, x, y = np.linspace(1, 3, 60), data.tokens + data.positions, data.outputs
    one = fit(stored(tmp_path, x, y), "--standardize")
    other = fit(stored(tmp_path, scale * x, scale * y), "--standardize")
    for _, report, _, found in (one, other):
        assert np.mean(found["errors_left_out"]) == pytest.approx(report["leave_one_out"]["test_error"])
    ratio = [np.mean(found["errors_left_out"]) / np.mean(found["errors"]) for *_, found in (one, other)]
    assert 1.2 < ratio[0] < 5
    assert ratio[1] == pytest.approx(ratio[0], rel=0.1)
    assert np.mean(other[3]["errors_left_out"]) > 2 * np.mean(one[3]["errors_left_out"])


@pytest.mark.slow
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
    assert "The layer was trained with 3 values of λ." in words
    assert f"describe the layer with the best λ, {best:.4g}." in words
    assert "fit.path.png shows the test error as a function of λ." in words
    assert (tmp_path / "fit.path.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    status, report, words, _ = fit(path, "--path", "--n-starts", "1")
    assert report["path"]["lam"][:20] == pytest.approx(np.geomspace(0.01 / 30, 0.3, 20).tolist())
    assert len(report["path"]["lam"]) == 20


def test_a_path_goes_beyond_its_first_values_until_the_best_lies_inside(arrays, fit):
    """With a λ of 3 the first twenty values end at 0.1; the best is next to 0.03."""
    path, _ = arrays
    _, report, words, _ = fit(path, "--path", "--lam", "3", "--n-starts", "2")
    lams, best = np.array(report["path"]["lam"]), report["path"]["best"]
    assert "The best λ is the smallest of 20 values: 8 smaller values are tried." in words
    assert len(lams) == 28
    assert np.allclose(np.diff(np.log(lams)), np.log(30) * 2 / 19)
    assert lams.min() < lams[best] == report["lam"] < 0.1
    assert "value tried" not in words
    at_edge = report["path"]["test_error"][np.argmin(abs(lams - 0.1))]
    assert report["path"]["test_error"][best] < at_edge


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("lam", "said"),
    [("1e-4", None), ("1000", "The weights are zero at every λ: 8 smaller values are tried."),
     ("1e6", "The weights are zero at every λ. The path is not extended beyond a factor of 10000 from --lam.")],
)  # fmt: skip
def test_a_path_ends_where_the_error_is_flat_or_far_from_lam(lam, said, tmp_path, fit):
    """Without noise the error falls to a constant as λ → 0; all weights are zero from a λ of about 1 on."""
    data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8), 40, 3.0, seed=0)
    path = stored(tmp_path, data.tokens + data.positions, data.outputs)
    _, report, words, _ = fit(path, "--path", "--lam", lam, "--n-starts", "1")
    lams = np.array(report["path"]["lam"])
    assert float(lam) / 1e4 <= lams.min() <= lams.max() <= float(lam) * 1e4
    if said is not None:
        assert said in words
    if lam != "1e6":
        assert report["lam"] < 1
        assert report["better_than_references"]
        edge = report["lam"] in (lams.min(), lams.max())
        assert edge == ("value tried" in words)


def test_values_of_a_path_that_are_given_are_kept(arrays, fit):
    path, _ = arrays
    _, report, words, _ = fit(path, "--path", "1", "0.1", "--n-starts", "1")
    assert report["path"]["lam"] == [1.0, 0.1]
    assert words.count("it is the smallest value tried") == 1
    assert "Give smaller values as well, or use --path without values." in words
    _, report, words, _ = fit(path, "--path", "0.003", "0.3", "0.01", "--n-starts", "1")
    assert report["path"]["lam"] == [0.003, 0.3, 0.01]
    if report["lam"] == 0.01:
        assert "value tried" not in words


def test_groups_of_samples_are_left_out_together(arrays, tmp_path, fit, capsys):
    _, data = arrays
    subject = np.array([f"subject {k % 9}" for k in range(90)])
    path = tmp_path / "grouped.npz"
    np.savez(path, tokens=data.tokens, outputs=data.outputs, positions=data.positions, subject=subject, groups=subject)
    options = ("--held-out", "0.3", "--path", "0.1", "1", "--n-starts", "1")
    _, report, words, found = fit(path, *options, "--groups", "subject")
    test = np.isin(np.arange(90), found["held_out"])
    assert test.sum() == report["held_out"]["samples"] == 30
    assert not set(subject[test]) & set(subject[~test])
    assert "30 samples, selected at random in whole groups with seed 0, are held out" in words
    assert "assigns the training samples to 6 groups" in words
    own = ga.Dataset(data.tokens[~test], data.outputs[~test], data.positions)
    alone = ga.regularization_path(own, [0.1, 1.0], n_starts=1, groups=subject[~test])
    assert np.allclose(report["path"]["test_error"], alone.test_error)
    _, _, words, _ = fit(path, "--n-starts", "1", "--max-iter", "5")
    assert "The array groups of the file is not used" in words
    assert main(["fit", str(path), *options, "--groups", "day"]) == 2
    assert "--groups: " in (message := capsys.readouterr().err)
    assert "it lacks the arrays day and has" in message


def heads(n=150, L=3, d=16):
    """Outputs of a plain attention layer of torch, with several heads and value matrices."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    x = torch.randn(n, L, d)
    layer = torch.nn.MultiheadAttention(d, 4, batch_first=True)
    with torch.no_grad():
        return x.numpy().astype(float), layer(x, x, x)[0].numpy().astype(float)


@pytest.mark.parametrize("flags", [(), ("--held-out", "0.3"), ("--standardize",)], ids=["raw", "held out", "standard"])
def test_a_layer_that_is_worse_than_none_is_no_success(flags, tmp_path, fit):
    x, y = heads()
    status, report, words, found = fit(stored(tmp_path, x, y), *flags, "--n-starts", "2")
    assert status == 0  # the training has converged
    summary = read_sections(words)["Test error"][0]
    assert summary.startswith("WARNING: The layer predicts worse than the linear layer y = Wx, the mean output, the")
    assert "torch.nn.MultiheadAttention" in read_sections(words)["Next steps"][0]
    assert summary == f"WARNING: {report['verdict']}"
    assert report["better_than_references"] is False
    estimate = report["leave_one_out"]
    train = np.setdiff1d(np.arange(len(x)), found["held_out"])
    assert estimate["zero_test_error"] == pytest.approx(np.mean(y[train] ** 2))
    n = len(train)
    assert estimate["mean_test_error"] == pytest.approx(np.var(y[train], axis=0).mean() * (n / (n - 1)) ** 2)
    assert estimate["test_error"] > 2 * estimate["zero_test_error"]


@pytest.mark.parametrize("flags", [(), ("--held-out", "0.3"), ("--standardize",)], ids=["raw", "held out", "standard"])
def test_a_layer_that_the_data_are_made_of_is_a_success(flags, tmp_path, fit):
    data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8), 40, 4.0, seed=1)
    path = stored(tmp_path, data.tokens + data.positions, data.outputs)
    status, report, words, found = fit(path, *flags)
    assert status == 0
    assert "WARNING" not in words
    assert read_sections(words)["Test error"][0] == report["verdict"]
    assert "MultiheadAttention" not in words
    assert report["verdict"].startswith("The layer predicts better than the linear layer y = Wx, the mean output, the")
    assert report["better_than_references"] is True
    estimate = report["leave_one_out"]
    assert estimate["test_error"] < 0.5 * estimate["linear_test_error"] < 0.5 * estimate["zero_test_error"]
    lines = read_sections(words)["Test error"]
    rows = [line.split() for line in lines if line.startswith(("this layer", "linear", "mean o", "y = 0"))]
    assert [float(row[-1].partition("(")[0]) for row in rows] == pytest.approx(
        [report["held_out" if "--held-out" in flags else "leave_one_out"][f"{name}test_error"]
         for name in ("", "linear_", "mean_", "zero_")],
        rel=0.05,
    )  # fmt: skip
    if "--held-out" in flags:
        test = found["held_out"]
        assert report["held_out"]["zero_test_error"] == pytest.approx(np.mean(data.outputs[test] ** 2))


def test_weights_that_have_not_converged_are_compared_too(arrays, tmp_path, fit):
    path, _ = arrays
    status, report, words, _ = fit(path, "--max-iter", "1", "--n-starts", "1", "--out", "cut.npz")
    assert status == 1
    assert not report["leave_one_out"]["trusted"]
    assert "which is not reliable here: compare with --held-out 0.2" in report["verdict"]
    assert "--init cut.npz" in read_sections(words)["Next steps"][0]


def test_the_picture_shows_the_descent_and_the_starts_that_agree():
    from gamp_attention.extensions.comparison.figures import plot_fit

    model = ga.attention_model(student=ga.DotProductAttention(softmax=False))  # message passing cycles
    data = ga.sample(model, 120, 1.5, seed=1)
    result = ga.train(data, "semantic", n_starts=4, survey=False)
    assert result.status is ga.Status.SETTLED
    axes = plot_fit(result, data.student(data.fields(result.Q)))
    passing, descent = axes[0, 2].lines
    assert len(passing.get_xdata()) == result.n_iter + 1
    assert descent.get_xdata()[0] == result.n_iter
    assert descent.get_ydata()[-1] == pytest.approx(result.settling_history.gradient_norm[-1])
    assert axes[0, 0].lines[1].get_ydata()[-1] == pytest.approx(result.train_loss)
    agreeing = sum(record.agreement >= 0.9 for record in result.starts)
    drawn = [line for line in axes[0, 3].lines if line.get_marker() == "D" and len(line.get_xdata())]
    assert len(drawn) == agreeing
    said = "No other start" if agreeing == 1 else f"{agreeing} of 4 gave" if agreeing < 4 else "All 4 gave"
    assert said in result.message


def test_samples_off_their_global_minimum_are_counted_among_the_searched_samples(tmp_path, fit):
    """A bounded search of long samples does not search all of them, so that their number is not the denominator."""
    data = ga.sample(ga.attention_model(8, 2, 1), d=20, alpha=5.5, seed=0)
    outputs = data.outputs + 0.5 * np.random.default_rng(1).standard_normal(data.outputs.shape)
    _, report, words, _ = fit(stored(tmp_path, data.tokens, outputs, data.positions), "--rank", "4")
    assert 0 < report["n_off_global"] < report["n_searched"] < data.n_samples
    assert (
        f"{report['n_off_global']} of {report['n_searched']} samples that were searched for other minima are" in words
    )


def test_surveys_of_random_starts_end_at_the_minimum_of_the_teachers_weights(tmp_path, fit):
    data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8), 100, 1.2, seed=0)
    np.savez(tmp_path / "mine.npz", tokens=data.tokens, outputs=data.outputs, positions=data.positions)
    start = ("--init", "random", "--n-starts", "1", "--force")
    plain = fit(tmp_path / "mine.npz", *start)[1]
    status, report, words, stored = fit(tmp_path / "mine.npz", *start, "--survey")
    given = ga.Dataset(data.tokens, data.outputs, data.positions)
    assert status == 0
    assert "survey propagation made 3 surveys, 3 of which collapsed to a single minimum." in words
    assert report["train_loss"] < 0.9 * plain["train_loss"]
    assert report["train_loss"] <= ga.run_gamp(given, data.Q_star).train_loss * (1 + 1e-6)
    assert ga.train_loss(given, stored["Q"]) == pytest.approx(report["train_loss"])


def test_a_survey_from_the_lowest_minimum_by_default(tmp_path, fit):
    data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8), 100, 0.8, seed=2)
    np.savez(tmp_path / "mine.npz", tokens=data.tokens, outputs=data.outputs, positions=data.positions)
    plain = fit(tmp_path / "mine.npz", "--no-survey")[1]
    _, report, words, _ = fit(tmp_path / "mine.npz", "--force")
    decrease = 100 * (1 - report["train_loss"] / plain["train_loss"])
    assert decrease > 5
    assert "survey propagation continued from the lowest minimum." in words
    assert f"It decreased the training loss by {decrease:.2g} %." in words


def test_a_saddle_is_left_unless_an_option_excludes_it(arrays, tmp_path, fit):
    path, data = arrays
    np.savez(tmp_path / "zeros.npz", Q=np.zeros((data.dim, 1)))
    start = ("--init", str(tmp_path / "zeros.npz"), "--n-starts", "1", "--force")
    _, report, words, _ = fit(path, *start, "--no-escape")
    assert not report["is_minimum"]
    assert "are a saddle of the risk" in words
    assert "): --escape leaves it." in words
    assert "escape=True" not in words
    _, report, words, _ = fit(path, *start)
    assert report["is_minimum"]
    assert "saddle" not in words


def test_heads_are_trained(tmp_path, fit):
    teacher = ga.SoftmaxTeacher(0.0, np.eye(2), ga.MultiHeadAttention(2))
    model = ga.attention_model(teacher_rank=2, teacher=teacher, sigma=1.0, tau=[0, 0])
    data = ga.sample(model, d=30, alpha=5.0, seed=1)
    status, report, words, found = fit(stored(tmp_path, data.tokens, data.outputs), "--heads", "2", "--n-starts", "2")
    assert status == 0
    assert found["Q"].shape == (30, 2)
    layer = ga.GampAttention(heads=2, n_starts=2).fit(data.tokens, data.outputs)
    assert float(found["train_loss"]) == pytest.approx(layer.result_.train_loss, rel=1e-10)
    np.testing.assert_allclose(found["attention"], layer.attention(data.tokens), atol=1e-6)
    predicted = ga.load_result(report["result"]).predict(data.tokens)
    np.testing.assert_allclose(predicted, layer.predict(data.tokens), atol=1e-6)
    assert "2 heads with 1 column of Q each" in " ".join(read_sections(words)["Assumptions"])
    assert report["better_than_references"]


@pytest.mark.parametrize("flags", ["", "--standardize"])
def test_predictions_have_the_units_of_the_file(flags, tmp_path, fit, capsys):
    x, y = sentences(L=3)
    units = np.geomspace(0.5, 2, 20)
    x, y = x * units + 1, y * units + 1
    _, report, _, arrays = fit(stored(tmp_path, x, y), *flags.split(), "--n-starts", "1", "--max-iter", "50")
    result, new = ga.load_result(report["result"]), x[:7] + 0.5
    estimator = ga.GampAttention(standardize=bool(flags), n_starts=1, max_iter=50, survey=False)
    with warnings.catch_warnings(action="ignore"):
        estimator.fit(x, y)
    assert np.allclose(result.predict(new), estimator.predict(new), rtol=1e-9)
    assert np.array_equal(estimator.result_.predict(new), estimator.predict(new))
    assert np.mean((result.predict(x) - y) ** 2) == pytest.approx(arrays["errors"].mean())
    np.savez("new.npz", tokens=new)
    assert main(["predict", report["result"], "new.npz"]) == 0
    assert "the predictions for 7 samples" in capsys.readouterr().out
    assert np.array_equal(np.load("new.predictions.npz")["outputs"], result.predict(new))
    (tmp_path / "folder").mkdir()
    np.save("folder/tokens.npy", x)
    np.save("folder/outputs.npy", y)
    assert main(["predict", report["result"], "folder", "--out", "p.npz", "--json", "e.json"]) == 0
    assert json.loads(Path("e.json").read_text())["test_error"] == pytest.approx(arrays["errors"].mean())
    np.savez("new.npz", tokens=new[:, :2])
    assert main(["predict", report["result"], "new.npz"]) == 2
    assert "tokens: needs shape (n, 3, 20), as in training, got shape (7, 2, 20)" in capsys.readouterr().err
    assert main(["predict", str(tmp_path / "mine.npz"), "new.npz"]) == 2
    assert "RESULT: " in capsys.readouterr().err


def test_examples_of_the_help_are_valid_commands():
    assert EXAMPLES.keys() == COMMANDS.keys()
    for command, examples in EXAMPLES.items():
        for example in examples:
            assert build_parser().parse_args(shlex.split(example)[1:]).command == command


def test_a_backend_that_is_not_installed_does_not_prevent_pictures(tmp_path):
    code = (
        "import sys; from gamp_attention.extensions.comparison.figures import figure\n"
        "with figure(sys.argv[1], 1, 1, (3, 3)): 1"
    )
    backend = {"MPLBACKEND": "module://matplotlib_inline.backend_inline", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.png")], check=True, env=os.environ | backend)
    assert (tmp_path / "a.png").stat().st_size > 0
