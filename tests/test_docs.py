"""Consistency of manual and code: equations, documented names, arguments of calls, links, and stored numbers."""

import ast
import doctest
import inspect
import json
import re
from enum import Enum
from pathlib import Path

import pytest
from numpydoc.docscrape import ClassDoc, FunctionDoc
from numpydoc.validate import validate

import gamp_attention as ga
from docs import _equations, _paper, _results
from validation._tools import catalog, checksums
from validation._tools.names import EVERY as PUBLIC

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGE = (DOCS / "paper.md").read_text(encoding="utf-8")
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


def find_calls(page):
    """Return calls of public functions in the code of a page: syntax trees, with names without `ga.`."""
    text = page.read_text(encoding="utf-8").replace("…", "...")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    codes = [re.sub(r"^(>>> |\.\.\. )", "", block, flags=re.MULTILINE) for block in blocks]
    codes += [code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", prose) if "(" in code]
    for code in codes:
        for part in [code] if _parse(code) else code.splitlines():  # a block may contain output
            for node in ast.walk(_parse(part) or ast.Module([], [])):
                function = node.func if isinstance(node, ast.Call) else None
                if isinstance(function, ast.Attribute) and getattr(function.value, "id", "") == "ga":
                    yield function.attr, node
                elif isinstance(function, ast.Name) and function.id in ga.__all__ and function.id.islower():
                    yield function.id, node


def _parse(code):
    try:
        return ast.parse(code)
    except SyntaxError:
        return None


def test_calls_in_the_manual_have_arguments_that_exist():
    n_calls = 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for name, call in find_calls(page):
            parameters = inspect.signature(getattr(ga, name)).parameters
            if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
                continue
            unknown = [word.arg for word in call.keywords if word.arg and word.arg not in parameters]
            assert not unknown, f"{page.name}: {name} has no argument {unknown}"
            n_calls += 1
    assert n_calls > 80


def test_links_of_the_readme_point_to_files_of_the_repository():
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / "README.md").read_text("utf-8"))
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


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
