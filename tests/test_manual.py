"""Pages of the manual for new users: links to the glossary, tested examples, and quoted messages that occur."""

import ast
import inspect
import re
import subprocess
import sys

import numpy as np
import pytest
from docutils import nodes
from docutils.utils import new_document
from sphinx import addnodes

import gamp_attention as ga
from docs import _notebooks, _terms
from tests.conftest import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))
TROUBLES = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def extract_prose(text):
    """Return the text of a page without code, formulas and links."""
    text = re.sub(r"^ *```.*?^ *```$|\$\$.*?\$\$|`[^`\n]*`|\$[^$\n]*\$", " ", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^#.*$|\]\([^)]*\)", " ", text, flags=re.MULTILINE)


def link_terms(*paragraphs):
    """Return (words, term) of all links that `LinkTerms` inserts into paragraphs."""
    document = new_document("page")
    document.settings.env = type("Env", (), {"docname": "page"})()
    document.extend(paragraphs)
    _terms.LinkTerms(document).apply()
    assert "".join(text.astext() for text in document.findall(nodes.Text)) == "".join(p.astext() for p in paragraphs)
    return [(link.astext(), link["reftarget"]) for link in document.findall(addnodes.pending_xref)]


def test_every_page_uses_terms_of_the_glossary():
    wanted = list(_terms.list_terms())
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES if page.name != "glossary.md"}
    without = [name for name, text in texts.items() if not _terms.find_first_uses(extract_prose(text), wanted)]
    assert len(texts) > 20
    assert [name for name in without if "(glossary.md)" not in texts[name]] == []


def test_every_term_is_used_and_defined_with_a_reference():
    used = set()
    for page in (page for page in PAGES if page.name != "glossary.md"):
        uses = _terms.find_first_uses(extract_prose(page.read_text(encoding="utf-8")), list(_terms.list_terms()))
        used |= {term for _, _, term in uses}
    assert set(_terms.list_terms()) - used == set()
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


@pytest.mark.slow
def test_exactly_the_pages_with_examples_are_run_by_the_tests():
    """Scripts of the folder are not collected, because they run when the manual is built."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "docs"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    with_examples = {page.name for page in PAGES if ">>> " in page.read_text(encoding="utf-8")}
    assert "course.md" in with_examples
    assert with_examples == set(re.findall(r"^docs/(?:.*/)?([^/]*)::", listed, re.MULTILINE))


def test_the_course_is_run_when_the_manual_is_built():
    text = (ROOT / "docs" / "course.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\{eval-rst\}\n\.\. plot::\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert sum(block.count(">>> ") for block in blocks) == text.count(">>> ") > 30
    assert all("   :context:" in block for block in blocks)


def test_notebooks_have_no_roles_left():
    text = ":func:`~gamp_attention.run_gamp`, :class:`Dataset` and :doc:`/adding_a_loss`"
    assert (
        _notebooks.ROLE.sub(_notebooks.format_role, text)
        == "`run_gamp()`, `Dataset` and the page adding_a_loss of the manual"
    )
    for script in (ROOT / "docs" / "gallery").glob("*.py"):
        text = _notebooks.ROLE.sub(_notebooks.format_role, script.read_text(encoding="utf-8"))
        assert re.findall(r":\w+:`", text) == []


@pytest.fixture(scope="module")
def data():
    return ga.sample(ga.paper_model(omega=0.3), 100, 1.5, seed=0)


def strip_teacher(data):
    return ga.Dataset(data.tokens, data.outputs, data.positions, lam=0.01)


def compute_noisy_validity():
    model = ga.paper_model(score_noise=0.3)
    return ga.solve_state_evolution(model, 2.0, rtol=1e-2, max_work=3e5, stability=False).validity


SHOWN = {
    "Not converged, gradient norm": lambda data: ga.run_gamp(data, max_iter=5).message,
    "a saddle of the risk (lowest eigenvalue": lambda data: ga.run_gamp(data, np.zeros((100, 1))).message,
    "unknown: the proximal map jumps": lambda data: (
        ga.solve_state_evolution(data.model, 0.3, "semantic", rtol=1e-2).validity
    ),
    "broken: the proximal map jumps": lambda data: (
        ga.solve_state_evolution(data.model, 1.5, "positional", rtol=1e-2).validity
    ),
    "inconsistent: the replicon eigenvalue": lambda data: compute_noisy_validity(),
}
RAISED = {
    "needs the teacher's weights, got data without a teacher": lambda data: ga.run_gamp(
        strip_teacher(data), "semantic"
    ),
    "risk: needs 'exact'": lambda data: ga.run_gamp(strip_teacher(data), "random", risk="asymptotic"),
    "needs arrays that fit into memory": lambda data: ga.sample(data.model, d=10**7, alpha=10),
    "max_memory: needs at least": lambda data: ga.trajectory(
        data.model, 1.5, method=ga.GradientDescent(), n_iter=200, max_memory=1e6
    ),
}


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("words", SHOWN)
def test_messages_of_results_are_quoted_by_the_page(words, data):
    assert f"`{words}" in TROUBLES
    assert words in SHOWN[words](data)


@pytest.mark.parametrize("words", RAISED)
def test_error_messages_are_quoted_by_the_page(words, data):
    assert f"`{words}" in TROUBLES
    with pytest.raises(ValueError, match=re.escape(words)):
        RAISED[words](data)


def test_statuses_of_the_page_occur(data):
    """β of 0.9 does not converge on the positional branch; tol=0 runs all iterations; a small budget is inaccurate."""
    assert ga.run_gamp(data, "positional", damping=0.9, iteration=ga.IterationOptions(settling=False)).status.name in (
        "STALLED",
        "DIVERGED",
    )
    exact = ga.run_gamp(data, tol=0, max_iter=7)
    assert (exact.status.name, exact.n_iter) == ("MAX_ITER", 7)
    se = ga.solve_state_evolution(data.model, 1.5, "positional", rtol=1e-6, max_work=1e5, stability=False)
    assert se.status.name == "INACCURATE"
    for name in ("STALLED", "DIVERGED", "MAX_ITER", "INACCURATE", "LOST", "SETTLED"):
        assert f"`{name}`" in TROUBLES


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
    assert n_calls > 150
