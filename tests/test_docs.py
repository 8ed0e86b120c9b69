"""Consistency of manual and code: equations and functions cite each other, and every public name is documented."""

import ast
import doctest
import inspect
import re
import unicodedata
from enum import Enum
from pathlib import Path

import pytest
from docutils.frontend import get_default_settings
from docutils.parsers.rst import Parser
from numpydoc.docscrape import ClassDoc, FunctionDoc
from numpydoc.validate import validate
from sphinx.ext.autosummary import extract_summary

import gamp_attention as ga
from docs import _equations, _results
from validation._tools import catalog, checksums
from validation._tools.names import EVERY as PUBLIC

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gamp_attention"
# numpydoc: a docstring, sections in order, one-line summary, all parameters described in order, returns
CHECKS = {"GL06", "GL07", "GL08", "SS01", "SS06", "PR02", "PR03", "PR04", "RT01"}


def test_docstrings_and_pages_have_the_same_equations():
    """Every citation has an equation, and the table shows every equation that a function computes."""
    labels = [label for page in _equations.order_pages() for label in _equations.find_labels(page)]
    cited = _equations.list_citations()
    assert len(labels) == len(set(labels)) > 30
    assert set(cited) - set(labels) == set()
    table = _equations.build_table()
    assert re.findall(r"^\| \{eq\}`([\w-]+)`", table, re.MULTILINE) == [label for label in labels if label in cited]
    assert "| {eq}`averages` |  | Damped weights and variances | {func}`gamp_step` |" in table


def test_the_reference_lists_every_public_name_once():
    lines = (ROOT / "docs" / "api.md").read_text().splitlines()
    listed = [line.strip() for line in lines if re.fullmatch(r"   \w+", line)]
    assert sorted(listed) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_public_docstrings_are_complete(name):
    thing = getattr(ga, name)
    errors = validate(f"gamp_attention.{name}")["errors"]
    wrong = [message for code, message in errors if code in CHECKS]
    assert wrong == []
    config = {"show_class_members": False}
    family = [cls for cls in getattr(thing, "__mro__", ()) if cls.__module__.startswith("gamp_attention")]
    docs = [ClassDoc(cls, config=config) for cls in family] or [FunctionDoc(thing)]
    entries = [entry for doc in docs for entry in (*doc["Parameters"], *doc["Attributes"])]
    assert [entry.name for entry in entries if not (entry.type or entry.desc)] == []
    described = {part.strip(" *") for entry in entries for part in entry.name.split(",")}
    if inspect.isfunction(thing) or not issubclass(thing, Enum | Exception):
        parameters = set(inspect.signature(thing).parameters) - {
            "cls"
        }  # numpydoc skips `cls`, as if it were the first argument of a class method
        assert parameters - described == set()
    if inspect.isfunction(thing) and re.search(r"\bcheck\.|\braise\b|\brequire_", inspect.getsource(thing)):
        assert docs[0]["Raises"], "a function that checks its arguments needs a section Raises"


def test_every_summary_of_the_api_table_is_a_sentence():
    """The summary is extracted as by autosummary, which ends a sentence at the period of an abbreviation."""
    settings = get_default_settings(Parser())
    settings.settings = settings  # required by older versions of sphinx
    summaries = [extract_summary(inspect.getdoc(getattr(ga, name)).splitlines(), settings) for name in PUBLIC]
    cut = re.compile(r"\b(eq|e\.g|i\.e|cf|fig|vs|no)\.$", re.IGNORECASE)
    assert [text for text in summaries if not text.endswith(".") or cut.search(text) or len(text.split()) < 3] == []


def test_every_public_function_has_an_example_that_shows_a_result():
    """Doctests of all modules are run with the tests, see pyproject.toml."""
    functions = [name for name in PUBLIC if inspect.isfunction(getattr(ga, name))]
    assert len(functions) > 20
    shown = {name: doctest.DocTestParser().get_examples(inspect.getdoc(getattr(ga, name))) for name in functions}
    assert [name for name, examples in shown.items() if not any(example.want for example in examples)] == []


def test_every_stored_result_and_every_failed_check_is_in_the_manual():
    page = "".join(map(_results.build_script_page, catalog.scripts()))
    stems = {path.stem for path in checksums.list_files(_results.STORED) if path.suffix == ".json"}
    assert set(re.findall(r"^\*\*(\w+)\.json\*\*", page, re.MULTILINE)) == stems
    for stem in stems:
        for claim in _results.load_stored(stem)["failed"]:
            assert _results._escape_prose(claim) in page


def normalize_source(name, year):
    """Return the last word of an author's name without accents, and the year."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return plain.split()[-1].removesuffix("'s").rstrip("'"), year


def read_bibliography():
    """Return {key: (last name of the first author, year)} of all entries of docs/references.bib."""
    sources = {}
    for entry in (ROOT / "docs" / "references.bib").read_text(encoding="utf-8").split("\n@"):
        key = re.match(r"@?\w+\{(\w+),", entry).group(1)
        author, year = (re.search(rf"^  {field} = \{{(.*)\}},$", entry, re.M).group(1) for field in ("author", "year"))
        name = re.sub(r"\\(?:[a-zA-Z] |\W)|[{}]", "", author.split(",")[0])
        sources[key] = normalize_source(name, year)
    return sources


def test_sources_in_docstrings_and_pages_are_in_the_bibliography():
    bibliography = read_bibliography()
    # Author and Other (year), and (Author, Other and Third, year)
    forms = (
        r"\b([A-Z][\w'-]+)(?:, [A-Z][\w'-]+)*(?: and (?:[A-Z][\w'-]+ ?)+| et al\.)? ?\((\d{4})\)",
        r"[(;] ?([A-Z][\w'-]+)(?:,? (?:and )?[A-Z][\w'-]+)*(?: et al\.)?, (\d{4})[);,]",
    )
    modules = [(str(path), ast.get_docstring(ast.parse(path.read_text())) or "") for path in PACKAGE.rglob("*.py")]
    unknown = {}
    for location, text in (*_equations.iterate_docstrings(), *modules):
        found = [source for form in forms for source in re.findall(form, " ".join(text.split()))]
        sources = {normalize_source(*source) for source in found}
        if sources - set(bibliography.values()):
            unknown[location] = sources - set(bibliography.values())
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    keys = {key for group in re.findall(r"\{cite:\w\}`([^`]*)`", pages) for key in group.split(",")}
    assert unknown == {}
    assert keys - set(bibliography) == set()
