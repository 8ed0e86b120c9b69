"""The quadrature rule of the founding paper's authors, and its fixed points against published values."""

import numpy as np
import pytest

import gamp_attention as ga
from validation.paper import published as published_script


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
