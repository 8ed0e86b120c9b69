"""The command `law`: its report on a file of arrays, and its predictions."""

import json
import re

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.cli.main import main


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "mine.npz"
    data = ga.sample(ga.paper_model(omega=0.0), 60, 2.0, seed=0)
    np.savez(path, tokens=data.tokens, outputs=data.outputs, positions=data.positions)
    np.savez(path.with_name("teacher.npz"), Q=data.Q_star)
    return path


def test_law_reports_departures_and_predicts(path, capsys):
    teacher = str(path.with_name("teacher.npz"))
    assert main(["law", str(path), "--teacher", teacher, "--alphas", "1.5", "3", "--json", "-"]) == 0
    found = capsys.readouterr()
    told = json.loads(found.out)
    assert "correlation of tokens" in found.err
    about = rf"Predicted for a teacher with the weights of {re.escape(teacher)}, score noise 0 and λ = 0.01:"
    assert re.search(about + r"\n[^\n]+\n  1.5 +\d\S+\(\d+\) +\d\S+\(\d+\) +converged", found.err)
    assert [each["alpha"] for each in told["predicted"]] == [1.5, 3.0]
    assert told["predicted"][1]["test_error"] < told["predicted"][0]["test_error"]
    assert told["noise"] == pytest.approx(0.0, abs=1e-7)


def test_law_without_a_teacher_reports_only(path, capsys):
    assert main(["law", str(path)]) == 0
    assert "variance of norms" in capsys.readouterr().out


@pytest.mark.parametrize(("more", "named"), [(["--alphas", "0"], "--alphas"), (["--noise", "-1"], "noise")])
def test_bad_options_are_named(path, more, named, capsys):
    assert main(["law", str(path), *more]) == 2
    assert named in capsys.readouterr().err


def test_the_part_of_the_outputs_that_predictions_lack_is_stated(path, tmp_path, capsys):
    """Outputs with noise in all dimensions: most of it is outside of the span of the tokens."""
    with np.load(path) as arrays:
        data = dict(arrays)
    data["outputs"] = data["outputs"] + 0.3 * np.random.default_rng(5).standard_normal(data["outputs"].shape)
    np.savez(tmp_path / "noisy.npz", **data)
    assert main(["law", str(path)]) == 0
    assert "outside of the span of the tokens" not in capsys.readouterr().out
    assert main(["law", str(tmp_path / "noisy.npz")]) == 0
    (mean_square,) = re.findall(r"Its mean square (\S+) adds to the test error", capsys.readouterr().out)
    assert float(mean_square) == pytest.approx(0.09 * 58 / 60, rel=0.05)
