"""The rules of the house that a reader can count: numbers have names in settings, files are one thing."""

import ast
from collections import Counter
from pathlib import Path

import gamp_attention as ga

PACKAGE = Path(__file__).parent.parent / "gamp_attention"
TREES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def is_numeric(value):
    """Whether an expression is made of numbers alone."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float | complex) and not isinstance(value.value, bool)
    if isinstance(value, ast.UnaryOp | ast.BinOp | ast.Tuple | ast.List):
        parts = [part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr)]
        return bool(parts) and all(map(is_numeric, parts))
    return False


def numeric_constants():
    """Names that modules give to numbers at their top level."""
    for tree in TREES.values():
        for statement in tree.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    pairs = [(target, statement.value)]
                    if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
                        pairs = zip(target.elts, statement.value.elts, strict=True)
                    yield from (name.id for name, value in pairs if isinstance(name, ast.Name) and is_numeric(value))


def test_the_counter_of_constants_sees_them():
    tree = ast.parse("A = 1\nB, C = -2.0, (1, 2)\nD: float = 1e-3 * 2\nE = 'word'\nF = [A]\nG = True")
    seen = [is_numeric(part) for statement in tree.body for part in
            (statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value])]  # fmt: skip
    assert seen == [True, True, True, True, False, False, False]


def test_tuning_numbers_are_fields_of_settings():
    """What is left are formats of files and sizes of blocks."""
    found = Counter(numeric_constants())
    assert sum(found.values()) < 20
    assert [name for name, times in found.items() if times > 1 or name in ga.Status.__members__] == []


def test_settings_are_frozen_and_have_a_name_of_their_own():
    """One object for each algorithm, and a reason or a unit for its numbers."""
    names = Counter()
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Settings"):
                names[node.name] += 1
                decorators = [ast.unparse(each) for each in node.decorator_list]
                bases = [ast.unparse(each) for each in node.bases]
                assert bases == ["NamedTuple"] or any("frozen=True" in each for each in decorators), path
    assert len(names) > 20
    assert [name for name, times in names.items() if times > 1] == []


def test_files_are_one_thing():
    assert {path.name: n for path in TREES if (n := len(path.read_text().splitlines())) > 265} == {}


def test_the_top_of_the_package_fits_in_a_glance():
    shown = {path.name for path in PACKAGE.iterdir() if not path.name.startswith("__") and path.suffix != ".typed"}
    assert len(shown) <= 16, shown
