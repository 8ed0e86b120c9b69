"""Phase boundaries: roots with errors, reasons if there is none, resuming, and the command line."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import brentq

import gamp_attention as ga
from gamp_attention.extensions.cli.main import main
from gamp_attention.extensions.phases.phase_boundaries import LINES
from gamp_attention.extensions.phases.scan import find_equal_loss, find_equal_test_error, locate_root


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("boundaries")


@pytest.fixture(scope="module")
def found(model, folder):
    return ga.phase_boundaries(model, omegas=[0.3], alphas=(1.0, 2.0), folder=folder)


@pytest.mark.parametrize(
    "function", [lambda x: np.tanh(20 * (x - 0.7)), lambda x: x**15 - 1e-3, lambda x: np.exp(x) - 2]
)
def test_roots_lie_within_their_errors(function):
    """A measured function that is wrong by up to its stated error; the coarse function has a root elsewhere."""
    rng, exact = np.random.default_rng(3), brentq(function, 0.0, 1.5, xtol=1e-10)
    for _ in range(20):
        wrong = rng.uniform(-1, 1)

        def measure(x, rtol):
            return function(x) + wrong * 1e-2 * rtol, 1e-2 * rtol  # noqa: B023

        value, error = locate_root(lambda x: function(x - 0.02), measure, (0.0, 1.5), 1e-3)
        assert error <= 1e-3
        assert abs(value - exact) <= error


@pytest.mark.parametrize("alphas", [(0.7, 0.8), pytest.param((0.5, 1.1), marks=pytest.mark.slow)])
def test_attention_beats_the_baseline_on_a_branch_that_ends_nearby(alphas):
    """ε_g is above the linear baseline's at α = 0.72 and below at 0.75; next to the end of the branch θ is small."""
    model = ga.paper_model(omega=0.4, sigma=0.7, A=[[0.55, 0.45], [0.45, 0.55]])
    found = ga.phase_boundaries(model, alphas=alphas, tol=5e-3)
    assert found.converged
    assert 0.72 < found.alpha_l[0] < 0.75


def build_scan(train_loss, test_error=None):
    """Return a scan of a branch whose losses are given functions of α, with points at α = 0.5 to 4."""

    def measure(alpha, rtol=0.0):
        losses = {"train_loss": train_loss(alpha), "test_error": test_error and test_error(alpha)}
        return SimpleNamespace(**losses, train_loss_error=1e-6, test_error_error=1e-6)

    points = {alpha: measure(alpha) for alpha in np.arange(0.5, 4.01, 0.4)}
    return SimpleNamespace(points=points, at=measure, refine=measure)


def test_the_first_of_several_crossings_is_reported_with_the_number_of_others():
    semantic = build_scan(lambda alpha: 1.0)
    positional = build_scan(lambda alpha: 1.0 + 0.01 * (alpha - 1) * (alpha - 2) * (alpha - 3))
    boundary = find_equal_loss(semantic, positional, 0.1)
    assert abs(boundary.value - 1) <= boundary.error < 0.1
    assert boundary.note == "2 further crossings at larger α"


def test_the_last_crossing_with_the_baseline_is_reported_with_the_error_of_the_baseline():
    scan = build_scan(lambda alpha: 1.0, lambda alpha: 1.0 - 0.2 * (abs(alpha - 2) - 1))  # equal at α = 1 and 3
    exact, uncertain = (SimpleNamespace(test_error=1.0, test_error_error=error) for error in (0.0, 0.004))
    boundary = find_equal_test_error(scan, exact, 0.1)
    assert abs(boundary.value - 3) <= boundary.error < 0.05
    assert find_equal_test_error(scan, uncertain, 0.1).error - boundary.error == pytest.approx(0.004 / 0.2, rel=1e-3)


def test_boundaries_of_the_paper(model, found):
    """The losses cross at α_c, and ε_g the linear baseline's at α_l, by solutions that the search did not use."""
    assert found.converged
    assert found.alpha_c_error[0] <= 1e-3
    assert found.alpha_c[0] == pytest.approx(1.2516, abs=2e-3)
    assert found.alpha_c[0] <= found.alpha_l[0]
    assert found.alpha_l_error[0] <= 1e-3
    baseline = ga.linear_baseline(model)
    for side in (-1, 1):
        losses = [
            ga.solve_state_evolution(
                model, found.alpha_c[0] + 2e-3 * side, branch, rtol=1e-4, stability=False
            ).train_loss
            for branch in ("positional", "semantic")
        ]
        assert (losses[0] - losses[1]) * side > 0
        se = ga.solve_state_evolution(model, found.alpha_l[0] + 2e-3 * side, "semantic", rtol=1e-4, stability=False)
        assert (baseline.test_error - se.test_error) * side > 0


def test_boundaries_that_do_not_exist_have_a_note(model, found):
    assert set(found.lines) == set(LINES)
    assert np.isnan(found.line("semantic_from")[0][0])
    assert "continues to α = 1" in found.lines["semantic_from"][0].note
    assert "continues" in str(found)
    with pytest.raises(ValueError, match="name"):
        found.line("weak_recovery")
    above = ga.phase_boundaries(model, alphas=(1.6, 1.9))
    assert above.converged
    assert np.isnan(above.alpha_c[0])
    assert "none: the semantic branch has the lower training loss" in above.lines["alpha_c"][0].note
    assert "none: attention beats the linear baseline wherever" in above.lines["alpha_l"][0].note


def test_a_rerun_computes_nothing(model, folder, found, capsys):
    files = {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()}
    again = ga.phase_boundaries(model, omegas=[0.3], alphas=(1.0, 2.0), folder=folder)
    assert {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()} == files
    assert again.lines == found.lines or str(again) == str(found)
    command = ["boundaries", "--omega", "0.3", "--alphas", "1", "2", "--folder", str(folder), "--json", "-"]
    assert main([*command, "--plot", str(folder / "b.png")]) == 0
    stored = json.loads(capsys.readouterr().out)
    assert stored["lines"]["alpha_c"][0][0] == found.alpha_c[0]
    assert stored["lines"]["semantic_from"][0][0] is None
    assert (folder / "b.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("name", "value"),
    [("omegas", []), ("omegas", 0.3), ("omegas", [1.2]), ("alphas", (2.0, 1.0)), ("alphas", (0.0, 1.0)),
     ("tol", 0.0), ("executor", 3)],
)  # fmt: skip
def test_bad_arguments_are_named(model, name, value):
    with pytest.raises((ValueError, TypeError), match=name):
        ga.phase_boundaries(model, **{name: value})


@pytest.mark.slow
def test_ends_of_a_branch_and_of_its_stability_are_found(model):
    """The semantic branch is unstable in m between its end and α = 0.83; `test_branches.py` solves on both sides."""
    found = ga.phase_boundaries(model, alphas=(0.65, 0.9))
    assert found.converged
    assert found.line("semantic_from")[0] == pytest.approx(0.7192, abs=1e-3)
    assert found.line("semantic_stable_from")[0] == pytest.approx(0.8265, abs=2e-3)
    assert max(found.line(name)[1][0] for name in ("semantic_from", "semantic_stable_from")) <= 1e-3
    assert "continues to α = 0.9" in found.lines["semantic_to"][0].note


@pytest.mark.slow
def test_a_branch_ends_where_all_weights_vanish():
    """At λ = 0.1 the weights of both branches go to zero; below, zero weights attract message passing."""
    model = ga.paper_model(lam=0.1)
    found = ga.phase_boundaries(model, alphas=(0.5, 4.0))
    for branch in ("semantic", "positional"):
        end, error = (float(values[0]) for values in found.line(f"{branch}_from"))
        assert error < 1e-3
        above, below = (
            ga.solve_state_evolution(model, end * factor, branch, rtol=1e-2, stability=False) for factor in (1.02, 0.98)
        )
        assert above.converged
        assert above.overlaps.q.max() < 5e-3
        assert below.status is ga.Status.LOST


def test_sweep_command_writes_files_and_resumes(tmp_path, capsys):
    command = ["sweep", str(tmp_path / "cells"), "--alpha", "1.4:1.6:2", "--branch", "semantic", "--rtol", "1e-2"]
    assert main([*command, "--json", str(tmp_path / "all.json")]) == 0
    assert "2 cells, 2 computed now" in capsys.readouterr().out
    assert main(command) == 0
    assert "2 cells, 0 computed now" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "all.json").read_text())["rows"]) == 2


@pytest.mark.slow
def test_breaking_lowers_the_crossing_of_training_losses():
    """4.4e-4 below α_c of replica symmetry, the loss with one step is the loss of the semantic branch."""
    model, alpha = ga.paper_model(), 1.2515673 - 4.40e-4
    semantic, positional = (
        ga.solve_state_evolution(model, alpha, name, rtol=1e-6) for name in ("semantic", "positional")
    )
    broken = ga.solve_broken(model, alpha, positional.overlaps, rtol=1e-2)
    gap = semantic.train_loss - positional.train_loss
    assert abs(semantic.train_loss - broken.train_loss) < 0.1 * gap + broken.train_loss_error
