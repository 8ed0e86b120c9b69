"""The built manual in a real browser: every page at two widths in two color schemes, without a server.

Needs playwright, chromium and a built manual:

    sphinx-build -b html docs /tmp/manual
    GAMP_ATTENTION_MANUAL=/tmp/manual pytest tests/test_browser.py
"""

import functools
import hashlib
import os
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

MANUAL = os.environ.get("GAMP_ATTENTION_MANUAL")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if MANUAL is None:
    pytest.skip("needs a built manual, named by GAMP_ATTENTION_MANUAL", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api")

ROOT = Path(MANUAL).resolve()
PAGES = [str(path.relative_to(ROOT)) for path in sorted(ROOT.rglob("*.html")) if "_static" not in path.parts]
WIDTHS, HEIGHT = {"desktop": 1280, "phone": 390}, 900  # CSS pixels of a screen
MAX_SCREENS = 12  # length of a page of the manual
LONG = {"api.html", "glossary.html", "genindex.html", "py-modindex.html"}  # lists, in which readers search
MEASURE = """() => ({
    page: document.documentElement.scrollWidth,
    height: document.documentElement.scrollHeight,
    tables: [...document.querySelectorAll(".table-wrapper")].filter((each) => each.scrollWidth > each.clientWidth + 1)
        .map((each) => each.innerText.slice(0, 60)),
    wide: [...document.querySelectorAll("body *")].filter((each) => {
        if (each.getBoundingClientRect().right <= innerWidth + 1 || !each.getClientRects().length) return false;
        for (let parent = each; parent; parent = parent.parentElement)
            if (getComputedStyle(parent).overflowX !== "visible" || getComputedStyle(parent).position === "fixed") return false;
        return true;
    }).slice(0, 3).map((each) => each.outerHTML.slice(0, 120)),
    dark: getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((sum, x) => sum + Number(x), 0),
    broken: [...document.images].filter((each) => each.complete && !each.naturalWidth).map((each) => each.src),
})"""  # noqa: E501


class Content(HTMLParser):
    """Links, anchors and pictures of a page; pictures with their alternative texts."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.pictures = [], {"", "top"}, []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in ("link", "script") and values.get("href", values.get("src")):
            self.links.append(values.get("href", values.get("src")))
        if tag == "img":
            self.pictures.append((values.get("src", ""), values.get("alt")))


@functools.cache
def parse(path):
    return Content(path)


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    with sync_api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.mark.parametrize("page", PAGES)
def test_a_page_opens_without_errors_requests_or_overflow(browser, page):
    tab, problems = browser.new_page(), []
    tab.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("requestfailed", lambda request: problems.append(f"failed: {request.url}"))
    tab.on("request", lambda r: problems.append(f"external: {r.url}") if r.url.startswith(("http", "//")) else None)
    tab.goto((ROOT / page).as_uri(), wait_until="load")
    brightness = {}
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        for name, width in WIDTHS.items():
            tab.set_viewport_size({"width": width, "height": HEIGHT})
            found = tab.evaluate(MEASURE)
            if found["page"] > width or found["wide"]:
                problems.append(f"{name}, {scheme}: {found['page']} pixels wide, {found['wide']}")
            problems += [f"{name}, {scheme}: broken picture {source}" for source in found["broken"]]
            brightness[scheme] = found["dark"]
            if name == "desktop":
                screens = found["height"] / HEIGHT
                if "/" not in page and page not in LONG and screens > MAX_SCREENS:
                    problems.append(f"{screens:.1f} screens long")
                if "/" not in page and found["tables"]:
                    problems.append(f"tables scroll sideways: {found['tables']}")
    tab.close()
    assert problems == []
    assert brightness["dark"] < 300 < brightness["light"]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_anchors_that_exist(page):
    path, broken = ROOT / page, []
    for link in parse(path).links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        known = target.suffix == ".html" and target.exists() and "_static" not in target.parts
        if not target.exists() or (known and unquote(parts.fragment) not in parse(target).anchors):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES)
def test_pictures_are_distinct_and_have_alternative_texts(page):
    path = ROOT / page
    pictures = [(source, alt) for source, alt in parse(path).pictures if not source.startswith("data:")]
    assert [source for source, alt in pictures if not alt or len(alt.split()) < 3] == []
    sums = {}
    for source, _ in pictures:
        content = (path.parent / unquote(urlsplit(source).path)).read_bytes()
        sums.setdefault(hashlib.sha256(content).hexdigest(), []).append(source)
    assert [sources for sources in sums.values() if len(sources) > 1] == []
