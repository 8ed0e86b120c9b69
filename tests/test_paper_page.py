"""The page that reproduces the paper: it has every figure, script and picture, and its numbers equal stored results."""

import json
import re
import runpy

import numpy as np
import pytest

import gamp_attention as ga
from docs import _paper, _results
from tests.conftest import ROOT
from validation._tools import catalog, report
from validation.paper import phase_diagram, published as published_script
from validation.paper._architectures import study

DOCS = ROOT / "docs"
PAGE = (DOCS / "paper.md").read_text(encoding="utf-8")
SCRIPTS = [script.name for script in catalog.scripts() if script.group == "paper"]


def test_every_figure_has_a_section():
    figures = set()
    for heading in re.findall(r"^## (Figures? .*)$", PAGE, re.MULTILINE):
        for first, last in re.findall(r"Figures? (\d+)(?: to (\d+))?", heading):
            figures |= set(range(int(first), int(last or first) + 1))
    assert figures == set(range(1, 16))


def test_the_page_has_checks_and_picture_of_every_script_of_the_paper():
    assert set(_paper.SCRIPTS) == set(SCRIPTS)
    for name in SCRIPTS:
        assert f"{{{{ checks_{name} }}}}" in PAGE
        if (ROOT / "validation" / "results" / f"{name}.png").exists():
            assert f"../validation/results/{name}.png" in PAGE


def test_every_number_in_prose_is_defined():
    numbers = _results.build_substitutions() | _paper.build_substitutions()
    for path in DOCS.glob("*.md"):
        assert set(re.findall(r"\{\{ (\w+) \}\}", path.read_text(encoding="utf-8"))) <= numbers.keys(), path.name
    used = set(re.findall(r"\{\{ (\w+) \}\}", PAGE))
    assert len(used) > 70
    assert not re.search(r"nan|None", " ".join(numbers[name] for name in used))


def test_numbers_equal_stored_results():
    numbers, stored = (
        _paper.build_substitutions(),
        json.loads((catalog.ROOT / "results" / "figure2.json").read_text()),
    )
    assert numbers["f2_alpha_c"] == f"{stored['lines']['alpha_c']['value']:.4f}"
    published = json.loads((catalog.ROOT / "results" / "published.json").read_text())
    assert numbers["checks_published"].endswith(" checks hold")
    assert str(len(published["held"])) in numbers["checks_published"]
    assert numbers["pub_semantic_V"].startswith("−")


@pytest.mark.parametrize("degrees", [(2, 0), (4, 0), (2, 2), (6, 0), (4, 2)])
def test_the_authors_rule_is_exact_to_degree_seven(degrees):
    """Compare moments of two standard Gaussians."""
    points, weights = published_script.build_plane_rule()
    moment = {0: 1, 2: 1, 4: 3, 6: 15}
    value = weights @ np.prod(points ** np.array(degrees), axis=1)
    assert value == pytest.approx(moment[degrees[0]] * moment[degrees[1]], rel=1e-12)
    assert weights @ points[:, 0] ** 8 != pytest.approx(105, rel=1e-3)


@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_the_authors_rule_gives_a_published_point(branch):
    rows = [row for row in published_script.load_table("theory") if row["branch"] == branch]
    row = min(rows, key=lambda row: abs(row["alpha"] - 1.25))
    overlaps = published_script.iterate_rule(ga.paper_model(0.3), float(row["alpha"]), branch)
    main = {"semantic": "theta", "positional": "m"}[branch]
    for key in ("q", "V", main):
        assert overlaps[key] == pytest.approx(float(row[key]), rel=1e-3)


class OptionsRequested(Exception):
    """Exception raised instead of a run, with the options of the script."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_picture_can_be_drawn_from_stored_numbers(name, monkeypatch):
    """Each script that stores a picture has the option --draw."""

    def options(description, **more):
        raise OptionsRequested(more)

    for module in (report, phase_diagram, study):
        monkeypatch.setattr(module, "options", options)
    with pytest.raises(OptionsRequested) as raised:
        runpy.run_path(str(catalog.ROOT / "paper" / f"{name}.py"), run_name="__main__")
    has_picture = (ROOT / "validation" / "results" / f"{name}.png").exists()
    assert raised.value.args[0].get("draw", False) == has_picture
