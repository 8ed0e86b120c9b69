"""The explorer's page: its numbers equal stored results, and a browser shows the point that the address names."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from docs import _explorer, _results
from tests.conftest import PATIENCE, ROOT

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
STATIC = ROOT / "docs" / "_static"
STATUS = {
    "converged": "found, with the requested accuracy",
    "inaccurate": "less accurately",
    "lost": "does not exist here",
}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The content of the page, without the frame of the manual."""
    folder = tmp_path_factory.mktemp("explorer")
    static = _explorer.write(folder / "_static")
    for path in STATIC.glob("explorer.*"):
        shutil.copy(path, static)
    raw = re.search(r"^```\{raw\} html\n(.*?)^```", (ROOT / "docs" / "explorer.md").read_text("utf-8"), re.M | re.S)
    (folder / "page.html").write_text(f"<!doctype html><meta charset=utf-8><body>{raw[1]}", encoding="utf-8")
    return folder / "page.html"


def load_script(path):
    """Return the value that a script of the page assigns."""
    return json.loads(path.read_text(encoding="utf-8").partition(" = ")[2].rstrip(";\n"))


def assert_close(found, stored):
    """Compare nested lists of numbers, words and None; numbers to 8 digits."""
    if isinstance(stored, list):
        assert len(found) == len(stored)
        for each in zip(found, stored, strict=True):
            assert_close(*each)
    else:
        assert found == (pytest.approx(stored, rel=1e-7) if isinstance(stored, float) else stored)


def test_numbers_of_the_page_equal_stored_results(page):
    data = load_script(page.parent / "_static" / "explorer_data.js")
    paths = load_script(page.parent / "_static" / "explorer_paths.js")
    stored, diagram = _results.load_stored("explorer"), _results.load_stored("phase_diagram")
    assert len(data["alphas"]) * len(data["omegas"]) >= 200
    for branch in ("semantic", "positional"):
        assert data[branch].keys() == stored[branch].keys() - {"path"}
        for name, values in data[branch].items():
            assert_close(values, stored[branch][name])
        for name, unit in paths["units"].items():
            drawn = unit * np.cumsum(paths[branch][name], axis=-1)
            assert np.allclose(drawn, stored[branch]["path"][name], rtol=0, atol=0.51 * unit)
    for omega, baseline in zip(data["omegas"], data["baseline"], strict=True):
        assert baseline == pytest.approx(diagram["baseline"][diagram["omegas"].index(omega)], rel=1e-7)


def test_files_that_the_page_links_exist(page):
    named = re.findall(r'(?:src|href)="(_static/[^"]+)"', page.read_text(encoding="utf-8"))
    assert len(named) == 4
    assert [name for name in named if not (page.parent / name).exists()] == []


@pytest.mark.slow(keep=1)
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(("alpha", "omega"), [(1.75, 0.14), (0.67, 0.42)])
def test_the_page_shows_the_point_of_its_address_in_a_browser(page, alpha, omega, width, tmp_path):
    """Compare pictures and table in a real browser, without a server, at the widths of a desktop and of a phone."""
    address = f"{page.as_uri()}#alpha={alpha}&omega={omega}"
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
             f"--window-size={width},900", "--virtual-time-budget=8000", "--dump-dom", address]  # fmt: skip
    dom = html.unescape(subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE).stdout.decode())
    stored = _results.load_stored("explorer")
    i = min(range(len(stored["alphas"])), key=lambda k: abs(stored["alphas"][k] - alpha))
    j = min(range(len(stored["omegas"])), key=lambda k: abs(stored["omegas"][k] - omega))
    assert f">α = {stored['alphas'][i]:.2f}, ω = {stored['omegas'][j]:.2f}</h2>" in dom
    assert f'aria-valuetext="α = {stored["alphas"][i]:.2f}"' in dom
    assert f'aria-valuetext="ω = {stored["omegas"][j]:.2f}"' in dom
    table = re.search(r'<div id="explorer-table">(.*?)</table>', dom, re.S)[1]
    for branch in ("semantic", "positional"):
        assert STATUS[stored[branch]["status"][i][j]] in table
        assert stored[branch]["validity"][i][j] in table
        loss = stored[branch]["train_loss"][i][j]
        if loss is not None:
            losses = [float(word) for word in re.findall(r"<td>([\d.e-]+) ±", table)]
            assert any(abs(word / loss - 1) < 1e-3 for word in losses)
    differences = sum(
        None not in pair
        for rows in zip(stored["semantic"]["train_loss"], stored["positional"]["train_loss"], strict=True)
        for pair in zip(*rows, strict=True)
    )
    cells = re.search(r'<g class="cells">(.*?)</g>', dom, re.S)[1]
    assert cells.count("<rect") == differences  # a cell for each point at which both branches exist
    assert dom.count('class="boundary"') == 4
    assert dom.count('class="curve"') == 8  # two overlaps and two losses of each branch
    assert len(re.findall(r"<li>", dom)) == 12  # every line and symbol is explained
