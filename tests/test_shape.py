"""Budgets of the size of the package, which may fall and not rise: readers of a function read all that it imports."""

import ast
import subprocess
import sys
from functools import cache

import pytest

import gamp_attention as ga
from tests.conftest import ROOT

PACKAGE = ROOT / "gamp_attention"
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
LINES = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in FILES.items()}
# lines of the modules that define public functions, and of all modules that they import, directly or not
CLOSURES = {
    ("gamp_step",): 7956,
    ("run_gamp",): 9921,
    ("solve_state_evolution",): 13500,
    ("minimize_risk",): 8856,
    ("run_gamp", "solve_state_evolution", "minimize_risk"): 17626,
}
LOADED = 18513  # lines of all modules that Python has loaded after these names and `sample` and `paper_model` were used
CONSTANTS = 342  # numbers at module level
TYPE_TESTS = 24  # calls of isinstance with classes of the package
WIDEST = 14  # parameters of a function


@cache
def trees():
    """Return the syntax tree of each module, when the first test needs them: every worker imports this file."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}


def list_imports(module):
    """Return the pairs of a module and a name that a module imports, without imports for type checkers only."""
    checked = [n for n in ast.walk(trees()[module]) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    hidden = {id(node) for block in checked for part in block.body for node in ast.walk(part)}
    nodes = [node for node in ast.walk(trees()[module]) if id(node) not in hidden]
    plain = [(alias.name, "") for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return plain + [(n.module, alias.name) for n in nodes if isinstance(n, ast.ImportFrom) for alias in n.names]


def find_definition(module, name):
    """Return the module that defines a name, which the `__init__` of subpackages import from other modules."""
    if f"{module}.{name}" in FILES:
        return f"{module}.{name}"
    if module in FILES and FILES[module].stem == "__init__":
        sources = [source for source, other in list_imports(module) if other == name and source in FILES]
        return find_definition(sources[0], name) if sources else module
    return module


@cache
def list_modules(module):
    found = {find_definition(source, name) for source, name in list_imports(module)}
    return frozenset(found & set(FILES)) - {module}


def count_lines(modules):
    seen, waiting = set(), list(modules)
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += list_modules(module)
    return sum(LINES[module] for module in seen)


def assert_budget(found, budget):
    assert found <= budget, "smaller is better: move what is built on the core into files that the core does not import"
    assert found > 0.99 * budget - 5, f"lower the budget to {found}, so that the figure cannot rise again"


@pytest.mark.parametrize("functions", CLOSURES, ids="-".join)
def test_lines_that_entry_points_import(functions):
    assert_budget(count_lines(getattr(ga, name).__module__ for name in functions), CLOSURES[functions])


def test_lines_that_are_loaded():
    code = (
        "import sys, gamp_attention as ga\n"
        "names = 'paper_model', 'sample', 'run_gamp', 'solve_state_evolution', 'minimize_risk'\n"
        "for name in names: getattr(ga, name)\n"
        "print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert_budget(sum(LINES.get(module, 0) for module in run.stdout.split()), LOADED)


def is_number(node):
    """Return whether a statement assigns numbers, alone or in a tuple, to a name."""
    value = getattr(node, "value", None) if isinstance(node, ast.Assign | ast.AnnAssign) else None
    parts = list(ast.walk(value)) if value is not None else []
    plain = not any(isinstance(part, ast.Call | ast.Dict | ast.ListComp) for part in parts)
    return plain and any(isinstance(part, ast.Constant) and type(part.value) in (int, float) for part in parts)


def test_numbers_at_module_level():
    assert_budget(sum(is_number(node) for tree in trees().values() for node in tree.body), CONSTANTS)


def test_type_tests_and_parameters():
    nodes = [node for tree in trees().values() for node in ast.walk(tree)]
    classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    calls = [n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "isinstance"]
    names = [{getattr(n, "id", getattr(n, "attr", "")) for n in ast.walk(call.args[1])} for call in calls]
    assert_budget(sum(bool(used & classes) for used in names), TYPE_TESTS)
    arguments = [node.args for node in nodes if isinstance(node, ast.FunctionDef)]
    lists = [[a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)] for args in arguments]
    assert max(len(names) - (names[:1] in (["self"], ["cls"])) for names in lists) == WIDEST
