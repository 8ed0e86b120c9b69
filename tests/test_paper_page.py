"""The page that reproduces the paper: its numbers equal stored results, and the authors' quadrature rule is theirs."""

import json
import re

import numpy as np
import pytest

import gamp_attention as ga
from docs import _paper, _results
from tests.conftest import ROOT
from validation._tools import catalog
from validation.paper import published as published_script

DOCS = ROOT / "docs"
PAGE = (DOCS / "paper.md").read_text(encoding="utf-8")


def test_every_number_in_prose_is_defined():
    numbers = _results.build_substitutions() | _paper.build_substitutions()
    for path in DOCS.glob("*.md"):
        assert set(re.findall(r"\{\{ (\w+) \}\}", path.read_text(encoding="utf-8"))) <= numbers.keys(), path.name
    used = set(re.findall(r"\{\{ (\w+) \}\}", PAGE))
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
