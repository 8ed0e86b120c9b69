"""Imports point one way, from floor to floor of the house: no room needs one above or beside it, not even for types."""

import ast
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gamp_attention"
# From the ground up; rooms of one floor do not know each other. Files of the root count as rooms.
FLOORS = (
    "_version",
    "_core",
    "results",
    "losses penalties damping",
    "denoisers models",
    "data state_evolution",
    "gamp baselines bayes",
    "experiments",
    "estimators",
    "cli",
)
INNER = {  # rooms within a room, from the ground up
    "state_evolution": ("equations", "rules", "dynamics", "fixed_points", "continuation"),
    "experiments": ("sweeps", "comparison phase_diagram inference", "figures", "fit_picture path_picture"),
}
HEAVY = {"torch", "matplotlib", "xarray", "h5py", "distributed", "sklearn"}
LATE = "estimators"  # a room that is imported when it is asked for


def module_name(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {
    module_name(path): path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem != "__init__"
}


def imports(node, inside=True):
    """Dotted names of all that is imported, for types too; with what is imported inside of functions or not."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (each.name for each in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{each.name}" for each in child.names)
        elif inside or not (isinstance(child, ast.FunctionDef) or _is_for_types(child)):
            yield from imports(child, inside)


def _is_for_types(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@cache
def needed(module):
    """Modules of the package that one imports itself."""
    names = [name for name in imports(ast.parse(MODULES[module].read_text())) if name.startswith("gamp_attention.")]
    parts = [name.split(".")[1:] for name in names]
    return {next(name for name in (".".join(part), ".".join(part[:-1])) if name in MODULES) for part in parts}


def arrows(depth, within=""):
    """Pairs of rooms, the first of which imports from the second: of the house, or of those within a room."""
    found = set()
    for module in MODULES:
        for other in needed(module):
            if module.startswith(within) and other.startswith(within):
                pair = tuple([*name.split("."), ""][depth] for name in (module, other))
                if pair[0] != pair[1] and all(pair):
                    found.add(pair)
    return found


def upwards(pairs, floors):
    """Of pairs of rooms, those that do not point down."""
    floor = {room: number for number, rooms in enumerate(floors) for room in rooms.split()}
    return {pair for pair in pairs if floor[pair[0]] <= floor[pair[1]]}


def test_every_room_has_a_floor():
    assert {module.partition(".")[0] for module in MODULES} == set(" ".join(FLOORS).split())


def test_no_room_needs_one_above_or_beside_it():
    assert upwards(arrows(0), FLOORS) == set()


@pytest.mark.parametrize("room", INNER)
def test_no_inner_room_needs_one_above_or_beside_it(room):
    assert upwards(arrows(1, within=f"{room}."), INNER[room]) == set()


@pytest.mark.parametrize("rule", ["split", "sobol", "lines"])
def test_quadrature_rules_know_no_model(rule):
    assert [name for name in needed(f"state_evolution.rules.{rule}") if name.startswith("models.")] == []


def test_no_module_needs_itself():
    def closure(module):
        found, waiting = set(), [module]
        while waiting:
            new = needed(waiting.pop()) - found
            found |= new
            waiting += new
        return found

    assert [module for module in MODULES if module in closure(module)] == []


def test_every_room_says_what_it_is_for_in_a_sentence():
    for path in PACKAGE.rglob("__init__.py"):
        told = ast.get_docstring(ast.parse(path.read_text()))
        assert told is not None, path
        assert told.partition("\n")[0].endswith("."), path


def test_heavy_libraries_are_imported_inside_of_functions():
    found = {module: {name.partition(".")[0] for name in imports(ast.parse(path.read_text()), inside=False)}
             for module, path in MODULES.items()}  # fmt: skip
    heavy = {module for module, names in found.items() if names & HEAVY}
    assert {module.partition(".")[0] for module in heavy} == {LATE}
    assert all(found[module] & HEAVY == {"sklearn"} for module in heavy)


def test_no_room_imports_the_late_one():
    assert [module for module in MODULES if any(name.partition(".")[0] == LATE for name in needed(module))
            and module.partition(".")[0] != LATE] == []  # fmt: skip
