"""The explorer's page: its numbers equal stored results, and a browser shows the point that the address names."""

import html
import json
import re
import shutil
import subprocess

import pytest

from docs import _results
from tests.conftest import ROOT

pytest.importorskip("plotly")
from docs import _explorer

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
STATIC = ROOT / "docs" / "_static"


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


def test_numbers_of_the_page_equal_stored_results(page):
    text = (page.parent / "_static" / "explorer_data.js").read_text(encoding="utf-8")
    data = json.loads(text.removeprefix("window.EXPLORER = ").rstrip(";\n"))
    stored, diagram = _results.load_stored("explorer"), _results.load_stored("phase_diagram")
    assert len(data["alphas"]) * len(data["omegas"]) >= 200
    for branch in ("semantic", "positional"):
        assert data[branch] == stored[branch]
    for omega, baseline in zip(data["omegas"], data["baseline"], strict=True):
        assert baseline == diagram["baseline"][diagram["omegas"].index(omega)]


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
    dom = html.unescape(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout.decode())
    stored = _results.load_stored("explorer")
    i = min(range(len(stored["alphas"])), key=lambda k: abs(stored["alphas"][k] - alpha))
    j = min(range(len(stored["omegas"])), key=lambda k: abs(stored["omegas"][k] - omega))
    assert f">α = {stored['alphas'][i]:.3f}, ω = {stored['omegas'][j]:.2f}</h2>" in dom
    table = re.search(r'<div id="explorer-table">(.*?)</table>', dom, re.S)[1]
    for branch in ("semantic", "positional"):
        assert stored[branch]["status"][i][j] in table
        assert stored[branch]["validity"][i][j] in table
        loss = stored[branch]["train_loss"][i][j]
        if loss is not None:
            losses = [float(word) for word in re.findall(r"<td>([\d.e-]+) ±", table)]
            assert any(abs(word / loss - 1) < 1e-3 for word in losses)
    assert dom.count('class="main-svg"') >= 4  # both pictures
    assert "heatmaplayer" in dom
    # the legend has a light background for the dark lines of the diagram, also if the page is dark
    legend = re.search(r'<g class="legend".*?<rect class="bg"[^>]*fill: rgb\((\d+), (\d+), (\d+)\)', dom, re.S)
    assert min(map(int, legend.groups())) > 200
    assert dom.count("js-line") > 10
