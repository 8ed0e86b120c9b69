"""Examples that readers download need only installed packages, and run."""

import ast
import doctest
import re
import runpy
import subprocess
import sys
import tomllib

import pytest

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
