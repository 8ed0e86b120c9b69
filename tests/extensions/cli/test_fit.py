"""The command `fit`: files of every kind, their description, results, held-out errors, and pictures."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention import gamp
from gamp_attention.extensions import cli
from gamp_attention.extensions.cli.main import main
from tests.conftest import interrupt_at, layer_gradient_norm


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "mine.npz"
    data = ga.sample(ga.paper_model(), 60, 1.5, seed=0)
    np.savez(path, tokens=data.tokens, outputs=data.outputs, positions=data.positions)
    return path, data


def test_results_of_finished_runs_are_kept(arrays, tmp_path, monkeypatch, capsys):
    """Runs that are interrupted or do not converge replace no files; a run that converges does."""
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
        interrupt_at(patch, gamp.loop, "gamp_step", 6)
        run(130, f"are in {first}: --init {first}", first)
    assert ga.load_result(first).status is ga.Status.INTERRUPTED
    assert ga.load_result(first).predict(arrays[1].tokens).shape == (90, 2, 60)
    run(1, f"in {second}.", first, second, report, flags=["--max-iter", "3"])
    assert ga.load_result(second).status is ga.Status.MAX_ITER
    assert json.loads(Path(report).read_text())["result"] == second
    assert main([*command, "--lam", "0.02"]) == 0
    assert ga.load_result("a.npz").lam == 0.02
    assert json.loads(Path("r.json").read_text())["lam"] == 0.02


def train_often(*args, checkpoint, **options):
    """Train with a checkpoint that is written at every iteration."""
    return ga.train(*args, checkpoint=ga.Checkpoint(checkpoint, 0), **options)


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


def test_a_folder_gives_the_same(tmp_path, fit):
    x, y = sentences()
    _, whole, _, _ = fit(stored(tmp_path, x, y))
    path = tmp_path / "folder"
    path.mkdir()
    np.save(path / "tokens.npy", x)
    np.save(path / "outputs.npy", y)
    status, report, _, found = fit(path)
    assert status == 0
    assert report["train_loss"] == pytest.approx(whole["train_loss"], rel=1e-9)
    assert found["errors"].shape == (60,)


@pytest.mark.parametrize("dtype", ["float16", "longdouble", "int64"])
def test_numbers_of_every_size_are_fitted(dtype, tmp_path, fit):
    x = (4 * sentences()[0]).round().astype(dtype)  # integers up to 2048 are exact in half precision
    status, report, _, found = fit(stored(tmp_path, x, x[:, ::-1]), "--n-starts", "1", "--held-out", "0.2")
    wanted = fit(stored(tmp_path, x.astype(float), x[:, ::-1].astype(float)), "--n-starts", "1", "--held-out", "0.2")
    assert (status, report["train_loss"]) == (wanted[0], wanted[1]["train_loss"])
    assert np.array_equal(found["errors"], wanted[3]["errors"])


def test_held_out_samples_are_not_trained_on(tmp_path, fit):
    x, y = sentences(80)
    path = stored(tmp_path, x, y)
    _, report, words, found = fit(path, "--held-out", "0.25", "--seed", "3")
    test = found["held_out"]
    assert len(test) == report["held_out"]["samples"] == 20
    assert "Training uses 60 samples, and the test 20 samples, selected at random with seed 3." in words
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


def test_fit_writes_a_critical_point_and_its_leave_one_out_error(arrays, fit):
    path, data = arrays
    _, report, words, found = fit(path)
    assert report["gradient_norm"] <= 1e-8
    assert set(found) >= {"Q", "q", "m", "V", "train_loss", "gradient_norm", "attention", "status"}
    assert layer_gradient_norm(data, found["Q"], "exact") < 1.2e-8
    assert np.allclose(found["attention"].sum(axis=2), 1)
    assert report["train_loss"] == pytest.approx(ga.train_loss(data, found["Q"], "exact"))
    own = ga.Dataset(data.tokens, data.outputs, data.positions)
    loo, estimate = ga.leave_one_out(own, ga.run_gamp(own, found["Q"])), report["leave_one_out"]
    assert estimate["test_error"] == pytest.approx(loo.test_error, rel=1e-6)
    assert estimate["test_error_error"] == pytest.approx(loo.test_error_error, rel=1e-6)
    assert estimate["trusted"] == loo.trusted
    assert np.allclose(found["errors_left_out"], loo.errors, rtol=1e-5)
    assert re.search(r"^ +leave-one-out$", words, re.MULTILINE)


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
    data = ga.sample(
        ga.attention_model(teacher_rank=2, teacher=teacher, sigma=1.0, tau=[0, 0]), d=20, alpha=5.0, seed=1
    )
    flags = "--heads", "2", "--n-starts", "2"
    status, report, words, found = fit(stored(tmp_path, data.tokens, data.outputs), *flags)
    assert status == 0
    layer = ga.GampAttention(heads=2, n_starts=2).fit(data.tokens, data.outputs)
    assert float(found["train_loss"]) == pytest.approx(layer.result_.train_loss, rel=1e-10)
    predicted = ga.load_result(report["result"]).predict(data.tokens)
    np.testing.assert_allclose(predicted, layer.predict(data.tokens), atol=1e-6)
    assert "the mean of 2 heads" in words
    assert report["better_than_references"]


@pytest.mark.parametrize("flags", ["", "--standardize"])
def test_predictions_have_the_units_of_the_file(flags, tmp_path, fit):
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


DEGENERATE = {
    "fewer samples than dimensions": sentences(10, 2, 60),
    "equal tokens": (np.repeat(sentences(40, 1, 10)[0], 2, axis=1), sentences(40, 2, 10)[1]),
    "constant coordinate": tuple(np.concatenate([part, np.full((60, 2, 1), 5.0)], axis=2) for part in sentences()),
}
SAID = {
    "equal tokens": "The tokens of each sample are equal, so that the outputs do not depend on the weights",
    "constant coordinate": "Coordinates that are constant are only shifted: 1 of them.",
}


@pytest.mark.parametrize("kind", DEGENERATE)
def test_degenerate_data_have_a_sensible_answer(kind, tmp_path, fit):
    """A critical point of the risk, finite numbers, and a sentence on what is unusual."""
    flags = "--n-starts", "2", "--standardize", "--held-out", "0.2"
    status, report, words, found = fit(stored(tmp_path, *DEGENERATE[kind]), *flags)
    assert status == 0
    assert report["gradient_norm"] <= 1e-8
    assert np.isfinite(found["Q"]).all()
    assert np.isfinite(found["errors"]).all()
    assert np.allclose(found["attention"].sum(axis=2), 1)
    assert SAID.get(kind, "") in words


def test_a_path_chooses_the_penalty(arrays, tmp_path, fit):
    _, report, words, found = fit(arrays[0], "--path", "0.003", "0.03", "0.3", "--n-starts", "2")
    own = ga.Dataset(arrays[1].tokens, arrays[1].outputs, arrays[1].positions)
    alone = ga.regularization_path(own, [0.003, 0.03, 0.3], n_starts=2)
    assert np.allclose(report["path"]["test_error"], alone.test_error)
    best = report["path"]["lam"][np.argmin(alone.test_error)]
    assert report["path"]["lam"][report["path"]["best"]] == report["lam"] == found["lam"] == best
    assert report["leave_one_out"]["test_error"] == pytest.approx(min(alone.test_error), rel=0.15)
    assert words.count("values may be better") == (best != 0.03)
    _, report, _, _ = fit(stored(tmp_path, *sentences()), "--path", "--lam", "100", "--n-starts", "1")
    assert len(report["path"]["lam"]) == 20


def of_torch(n=150, L=3, d=16):
    """Outputs of a plain attention layer of torch, with several heads and value matrices."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    x = torch.randn(n, L, d)
    layer = torch.nn.MultiheadAttention(d, 4, batch_first=True)
    with torch.no_grad():
        return x.numpy().astype(float), layer(x, x, x)[0].numpy().astype(float)


def of_the_layer():
    data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8), 40, 4.0, seed=1)
    return data.tokens + data.positions, data.outputs


@pytest.mark.parametrize("flags", [(), ("--held-out", "0.3")], ids=["raw", "held out"])
@pytest.mark.parametrize("draw", [of_torch, of_the_layer])
def test_the_layer_is_compared_with_predictions_without_attention(draw, flags, tmp_path, fit):
    x, y = draw()
    status, report, words, found = fit(stored(tmp_path, x, y), *flags, "--n-starts", "2")
    better = draw is of_the_layer
    assert status == 0  # the training has converged
    assert f"Test error\n  {'' if better else 'WARNING: '}{report['verdict']}" in words
    how = "predicts better than" if better else "predicts worse than"
    assert report["verdict"].startswith(f"The layer {how} the linear layer y = Wx and the mean output")
    assert ("torch.nn.MultiheadAttention" in words) == (not better)
    assert report["better_than_references"] is better
    estimate, test = report["leave_one_out"], found["held_out"]
    train = np.setdiff1d(np.arange(len(x)), test)
    n = len(train)
    if not flags:
        assert estimate["linear_test_error"] == pytest.approx(linear_left_out(x, y))
    assert estimate["mean_test_error"] == pytest.approx(np.var(y[train], axis=0).mean() * (n / (n - 1)) ** 2)
    if better:
        assert estimate["test_error"] < 0.5 * estimate["linear_test_error"] < 0.5 * estimate["mean_test_error"]
    else:
        assert estimate["test_error"] > 1.5 * estimate["mean_test_error"]
    if len(test):
        mean = np.mean((y[test] - y[train].mean(axis=0)) ** 2)
        assert report["held_out"]["mean_test_error"] == pytest.approx(mean)


def linear_left_out(x, y):
    """Return the error of y = Wx by refits without each sample, for λ = 1e-4."""
    errors, (n, L, d) = [], x.shape
    for k in range(n):
        others = np.delete(np.arange(n), k)
        normal = np.einsum("nld,nmd->lm", x[others], x[others]) / d + 1e-4 * np.eye(L)
        W = np.linalg.solve(normal, np.einsum("nld,nmd->ml", y[others], x[others]) / d).T
        errors.append(np.mean((y[k] - W @ x[k]) ** 2))
    return np.mean(errors)


def test_an_interrupted_or_unfinished_fit_continues(arrays, tmp_path, monkeypatch, capsys):
    """The weights are kept if the errors are not computed, and a checkpoint leads to the weights of a single run."""
    path, data = arrays
    outs = [tmp_path / name for name in ("whole.npz", "cut.npz", "fit.npz")]
    assert main(["fit", str(path), "--out", str(outs[0])]) == 0
    there = ["fit", str(path), "--checkpoint", str(tmp_path / "run.npz"), "--out", str(outs[1])]
    with monkeypatch.context() as patch:
        patch.setattr("gamp_attention.extensions.cli.fit.train", train_often)
        assert main([*there, "--max-iter", "7"]) == 1
    assert f"--init {outs[1]}" in capsys.readouterr().out
    assert main(there) == 0
    assert np.array_equal(np.load(outs[0])["Q"], np.load(outs[1])["Q"])
    interrupt_at(monkeypatch, cli.fit, "leave_one_out", 1)
    assert main(["fit", str(path), "--n-starts", "1", "--out", str(outs[2])]) == 130
    assert f"interrupted, the weights are trained and in {outs[2]}" in capsys.readouterr().err
    with np.load(outs[2]) as left:
        assert layer_gradient_norm(data, left["Q"], "exact") < 1.2e-8
        assert "errors_left_out" not in left


@pytest.mark.parametrize(
    ("change", "words"),
    [(lambda x: x[:, :1], r"tokens: needs shape \(n, 2, 40\), as in training"), (lambda x: x[0], "tokens: needs shape"),
     (lambda x: x * np.nan, "tokens: needs finite"), (lambda x: None, "tokens: needs a real array")],
)  # fmt: skip
def test_results_predict_outputs_of_new_tokens(model, change, words):
    data, new = ga.sample(model, 40, 2.0, seed=0), np.random.default_rng(1).normal(size=(5, 2, 40))
    result = ga.run_gamp(data, "semantic")
    predicted = data.student((new + data.positions) @ result.Q / np.sqrt(40)) @ (new + data.positions)
    np.testing.assert_allclose(result.predict(new), predicted, atol=1e-12)
    with pytest.raises((TypeError, ValueError), match=words):
        result.predict(change(new))
