"""Generated pages and links: types of arguments, addresses, help of the command line, and the citation."""

import inspect
import re
import runpy
import shutil

import pytest
from numpydoc.docscrape import NumpyDocString

import gamp_attention as ga
from docs import _command_line, _docstrings, _project
from tests.conftest import ROOT
from validation._tools.names import EVERY

DOCS = ROOT / "docs"
COPIES = ("README.md", "CITATION.cff", ".zenodo.json", ".conda/recipe.yaml", ".github/CONTRIBUTING.md")


def lay_out(thing):
    """Return the docstring of an object as the API pages show it, parsed by numpydoc."""
    lines = inspect.getdoc(thing).splitlines()
    _docstrings.layout_docstring(None, "", "", thing, None, lines)
    return NumpyDocString("\n".join(lines))


@pytest.mark.parametrize("name", EVERY)
def test_api_pages_have_types_next_to_names_and_descriptions_below(name):
    thing = getattr(ga, name)
    written, shown = NumpyDocString(inspect.getdoc(thing)), lay_out(thing)
    for section in ("Parameters", "Attributes", "Raises"):
        assert len(shown[section]) == len(written[section])
        for entry, source in zip(shown[section], written[section], strict=True):
            words = f"{source.type} {' '.join(source.desc)}".split()
            described = " ".join(entry.desc).split()
            assert [word.lower() for word in described] == [word.lower() for word in words]  # the whole description
            assert section == "Raises" or "." not in re.sub(
                r"`[^`]*`|\d\.\d+|'[^']*'", "", entry.type
            )  # a type, not a sentence
    parameters = _docstrings.get_parameters(thing)
    for entry in shown["Parameters"]:
        annotation = parameters[entry.name].annotation if entry.name in parameters else inspect.Parameter.empty
        if annotation in (int, float, bool, str):
            assert entry.type.startswith(annotation.__name__)


def test_types_are_written_in_words():
    assert _docstrings.describe_type(ga.run_gamp, "data") == ":class:`~gamp_attention.Dataset`"
    assert _docstrings.describe_type(ga.run_gamp, "tol") == "float, default 1e-08"
    assert _docstrings.describe_type(ga.train, "n_starts") == "int, default 8"
    assert _docstrings.describe_type(ga.Dataset, "positions") == "array_like, optional"
    assert _docstrings.describe_type(ga.GampResult, "train_loss, gradient_norm") == "float"


def test_returned_types_are_links_with_descriptions_below():
    shown = {name: "\n".join(lay_out(getattr(ga, name))["Returns"][0].desc) for name in ("gamp_step", "sample")}
    assert shown["gamp_step"] == "The next state, and a report on `state`."
    assert shown["sample"].startswith("With Q_star (d, t)")
    assert lay_out(ga.run_gamp)["Returns"][0].type == ":class:`~gamp_attention.GampResult`"


def test_a_missing_address_is_an_error_that_names_the_line(tmp_path):
    file = tmp_path / "pyproject.toml"
    file.write_text('[project]\nname = "x"\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"needs a line Repository = .* in \[project.urls\], got no table"):
        _project.read_repository(file)
    file.write_text('[project.urls]\nRepository = "https://example.org/a/"\n', encoding="utf-8")
    assert _project.read_repository(file) == "https://example.org/a"


def find_addresses(text):
    """Return all addresses of a repository named gamp_attention on a code host."""
    return set(re.findall(r"https://[\w.-]+/[\w.-]+/gamp_attention", text))


def test_all_copies_of_the_address_equal_the_setting():
    """If this fails after a change of pyproject.toml, run `python .ci/address`."""
    repository = _project.read_repository()
    found = {name: find_addresses((ROOT / name).read_text(encoding="utf-8")) for name in COPIES}
    assert found["README.md"] == {repository}
    assert {name: addresses for name, addresses in found.items() if addresses - {repository}} == {}
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    assert find_addresses(pages) == set()  # pages take the address from the setting


def test_one_line_sets_the_address_of_all_files(tmp_path):
    for name in (*COPIES, "CHANGELOG.md", "pyproject.toml", ".ci/address"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    settings = tmp_path / "pyproject.toml"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace(_project.read_repository(), "https://example.org/lab/gamp_attention"), "utf-8")
    runpy.run_path(str(tmp_path / ".ci" / "address"), run_name="__main__")
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert find_addresses(readme) == {"https://example.org/lab/gamp_attention"}
    assert "git clone https://example.org/lab/gamp_attention\n" in readme


def test_links_of_the_readme_point_to_files_of_the_repository():
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / "README.md").read_text("utf-8"))
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_page_is_linked_to_its_source():
    pages = ["course", "auto_gallery/index", "generated/validation/values", "generated/gamp_attention.run_gamp"]
    sources = {page: _project.find_source(page) for page in pages}
    assert sources["generated/validation/values"] == "validation/claims/values.py"
    assert sources["generated/gamp_attention.run_gamp"] == "gamp_attention/gamp/run.py"
    assert {page: source for page, source in sources.items() if not (ROOT / source).is_file()} == {}


def test_the_page_of_the_command_line_has_the_help_of_every_command():
    sections = dict(
        re.findall(r"^## gamp-attention (\w+)\n(.*?)(?=^## |\Z)", _command_line.build_sections(), re.M | re.S)
    )
    assert {"compare", "fit", "law", "solve", "trajectory", "sweep", "boundaries"} <= set(sections)
    assert all(f"usage: gamp-attention {name}" in text for name, text in sections.items())
    assert "--held-out" in sections["fit"]


def test_the_citation_of_the_readme_equals_the_citation_file():
    readme, citation = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CITATION.cff"))
    entries = dict(re.findall(r"^@\w+\{(\w+),\n(.*?)^\}$", readme, re.MULTILINE | re.DOTALL))
    for field in ("title", "version"):
        value = re.search(rf'^{field}: "?(.*?)"?$', citation, re.MULTILINE)[1]
        assert f"  {field} = {{{value}}},\n" in entries["gamp_attention"]
    bibliography = (DOCS / "references.bib").read_text(encoding="utf-8")
    paper = dict(re.findall(r"^  (\w+) = \{(.*)\},$", entries["cui2024"], re.MULTILINE))
    stored = dict(
        re.findall(
            r"^  (\w+) = \{(.*)\},$", bibliography.partition("@inproceedings{cui2024,")[2].partition("\n}")[0], re.M
        )
    )
    assert paper == stored


def test_indices_and_powers_of_symbols_are_set():
    pytest.importorskip("sphinx")
    from docs import _symbols

    pieces = _symbols.split_symbols("ε_t(Q) at α_c, V̂_l, and d^(−1/2); not V_hat, Q_star, n_samples or a.x_y")
    assert [(type(piece).__name__, piece.astext()) for piece in pieces] == [
        ("Text", "ε"), ("subscript", "t"), ("Text", "(Q) at α"), ("subscript", "c"), ("Text", ", V̂"),
        ("subscript", "l"), ("Text", ", and d"),
        ("superscript", "−1/2"), ("Text", "; not V_hat, Q_star, n_samples or a.x_y"),
    ]  # fmt: skip
    assert [piece.astext() for piece in _symbols.split_symbols("by 5 %")] == ["by 5\N{NO-BREAK SPACE}%"]
    assert _symbols.split_symbols("no symbols") == []
