"""Pages of the manual: links to the glossary, examples that are run, and calls whose arguments exist."""

import ast
import inspect
import re

from docutils import nodes
from docutils.utils import new_document
from sphinx import addnodes

import gamp_attention as ga
from docs import _notebooks, _terms
from tests.conftest import ROOT


def link_terms(*paragraphs):
    """Return (words, term) of all links that `LinkTerms` inserts into paragraphs."""
    document = new_document("page")
    document.settings.env = type("Env", (), {"docname": "page"})()
    document.extend(paragraphs)
    _terms.LinkTerms(document).apply()
    assert "".join(text.astext() for text in document.findall(nodes.Text)) == "".join(p.astext() for p in paragraphs)
    return [(link.astext(), link["reftarget"]) for link in document.findall(addnodes.pending_xref)]


def test_every_term_is_defined_with_a_reference():
    text = _terms.GLOSSARY.read_text(encoding="utf-8")
    entries = re.split(r"^(?=\S)", text.partition("```{glossary}")[2].rpartition("```")[0], flags=re.MULTILINE)[1:]
    names = [entry.partition("\n")[0] for entry in entries]
    assert names == sorted(set(names), key=str.lower)
    reference = re.compile(r"\{(eq|class|func|term)\}`")
    assert [name for name, entry in zip(names, entries, strict=True) if not reference.search(entry)] == []


def test_the_first_use_of_a_term_in_prose_is_linked_once():
    heading, code = nodes.title("", "Overlaps"), nodes.paragraph("", "", nodes.literal("", "overlap"))
    first = nodes.paragraph("", "Overlaps of the exact risk, each overlap once. GAMP; gamp; overlapping.")
    second = nodes.paragraph("", "The risk and overlaps again.")
    links = link_terms(heading, code, first, second)
    assert links == [("Overlaps", "overlap"), ("exact risk", "exact risk"), ("GAMP", "GAMP"), ("risk", "risk")]


def test_the_course_is_run_when_the_manual_is_built():
    text = (ROOT / "docs" / "course.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\{eval-rst\}\n\.\. plot::\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert sum(block.count(">>> ") for block in blocks) == text.count(">>> ") > 30
    assert all("   :context:" in block for block in blocks)


def test_notebooks_have_no_roles_left():
    text = ":func:`~gamp_attention.run_gamp`, :class:`Dataset` and :doc:`/extend`"
    assert (
        _notebooks.ROLE.sub(_notebooks.format_role, text) == "`run_gamp()`, `Dataset` and the page extend of the manual"
    )
    for script in (ROOT / "docs" / "gallery").glob("*.py"):
        text = _notebooks.ROLE.sub(_notebooks.format_role, script.read_text(encoding="utf-8"))
        assert re.findall(r":\w+:`", text) == []


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
            unknown = [word.arg for word in call.keywords if word.arg and word.arg not in parameters]
            assert not unknown, f"{page.name}: {name} has no argument {unknown}"
            n_calls += 1
    assert n_calls > 80
