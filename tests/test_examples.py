"""Examples that readers download: they need only installed packages, and their pictures and notebooks are complete."""

import ast
import doctest
import json
import re
import runpy
import subprocess
import sys
import tomllib

import pytest

from docs import _notebooks
from tests.conftest import ROOT

DOCS = ROOT / "docs"
SCRIPTS = sorted([*(DOCS / "gallery").glob("*.py"), *(DOCS / "examples").glob("*.py")])
IMPORTED = {"scikit-learn": "sklearn"}


def list_installed():
    """Return the names of modules that an installation with all extras for users provides."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["torch"], *extras["plot"], *extras["sklearn"], *extras["docs"]]
    names = {re.match(r"[\w-]+", line)[0] for line in lines}
    return {IMPORTED.get(name, name) for name in names} | set(sys.stdlib_module_names) | {"gamp_attention"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_examples_import_only_installed_packages(path):
    """The build of the manual runs the gallery with the same restriction, see docs/_gallery.py."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module.partition(".")[0])
    assert imported - list_installed() == set()


def test_an_example_runs_in_an_empty_folder_with_the_package_only(tmp_path):
    """The package is imported from a folder that contains nothing else, as an installation does."""
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "gamp_attention").symlink_to(ROOT / "gamp_attention", target_is_directory=True)
    (tmp_path / "empty").mkdir()
    code = (DOCS / "examples" / "huber_penalty.py").read_text(encoding="utf-8")
    (tmp_path / "empty" / "example.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import example; "
               "print(example.Huber(0.02, 0.2).prox(1.0, 1.0)[0])", str(tmp_path / "installed")]  # fmt: skip
    run = subprocess.run(command, cwd=tmp_path / "empty", capture_output=True, text=True, check=True)
    assert float(run.stdout) == pytest.approx(0.996)
    other = [sys.executable, "-c", "import docs.examples"]
    assert subprocess.run(other, cwd=tmp_path / "empty", capture_output=True, env={}, check=False).returncode == 1


def read_class(path):
    """Return the syntax tree of the only class of a file, as text."""
    (tree,) = (node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef))
    return ast.dump(tree)


@pytest.mark.parametrize(
    ("page", "example"),
    [("plot_4_own_loss", "huber_loss"), ("plot_5_own_attention", "sigmoid_attention")],
)
def test_the_gallery_and_the_tutorial_show_the_same_class(page, example):
    assert read_class(DOCS / "gallery" / f"{page}.py") == read_class(DOCS / "examples" / f"{example}.py")


def read_functions(code):
    """Return the syntax trees of the functions `softmax` and `layers` of a script, without docstrings, as text."""
    trees = [node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
    for tree in trees:
        tree.body = tree.body[ast.get_docstring(tree) is not None :]
    return {tree.name: ast.dump(tree) for tree in trees if tree.name in ("softmax", "layers")}


def test_the_page_and_the_example_show_the_same_sequence_model(capsys):
    page = doctest.script_from_examples((DOCS / "sequence_models.md").read_text(encoding="utf-8"))
    path = DOCS / "examples" / "two_layers.py"
    functions = read_functions(path.read_text(encoding="utf-8"))
    assert sorted(functions) == ["layers", "softmax"]
    assert read_functions(page) == functions
    runpy.run_path(str(path), run_name="__main__")
    status, loss, error = re.fullmatch(
        r"GAMP (\w+): training loss (\S+), error on new data (\S+)\n", capsys.readouterr().out
    ).groups()
    assert status in ("converged", "settled")
    assert 0 < float(loss) < float(error)


def test_notebooks_contain_the_code_of_the_scripts(tmp_path):
    py_source_parser = pytest.importorskip("sphinx_gallery.py_source_parser")
    from sphinx_gallery import gen_gallery, notebook

    conf = gen_gallery.DEFAULT_GALLERY_CONF | {"lang": "en"}
    for path in (DOCS / "gallery").glob("plot_[45]_*.py"):
        blocks = py_source_parser.split_code_and_text_blocks(str(path))[1]
        text = json.dumps(notebook.jupyter_notebook(blocks, conf, str(path.parent)), ensure_ascii=False)
        cells = json.loads(_notebooks.ROLE.sub(_notebooks.format_role, text))["cells"]
        code = [block.content.strip() for block in blocks if block.type == "code"]
        assert [cell["source"][0].strip() for cell in cells if cell["cell_type"] == "code"] == code
        compile("\n".join(code), path.name, "exec")


def find_plot_prefixes(text):
    """Return the options `:filename-prefix:` of all plots of a page that draw a picture; None if one has no prefix."""
    blocks = re.findall(r"^\.\. plot::\n((?:   .*\n|\n)*?)(?=\n   >>>|```)", text, re.MULTILINE)
    return [
        (re.search(r":filename-prefix: (\S+)", options) or [None, None])[1]
        for options in blocks
        if ":nofigs:" not in options
    ]


def test_each_picture_of_the_course_has_a_separate_file():
    """matplotlib numbers the pictures of each block from 1: without a prefix, several pictures have one file name."""
    prefixes = [prefix for page in DOCS.glob("*.md") for prefix in find_plot_prefixes(page.read_text(encoding="utf-8"))]
    assert None not in prefixes
    assert len(set(prefixes)) == len(prefixes)
