"""Imports point one way: a problem knows no solver, state evolution no data, and nothing knows the command line."""

import ast
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gamp_attention"
# From the ground up: what a rung needs, directly or not, is on no higher one. Modules that are not named stand
# below the first rung that needs them.
LADDER = (
    "_validation _numba results sources files damping starts gaussian_points gaussian_average",
    "attention teachers penalties penalty_terms losses point_losses custom_attention registration",
    "newton prox denoiser input_denoiser",
    "coordinate_laws coordinate_classes token_classes models model_parameters attention_models mixtures glm",
    "state_evolution",
    "data sampling glm_data loading risk generalisation linear_baseline linear_fit",
    "gamp",
    "message_passing gradient_descent distributed",
    "comparison sweeps landscape",
    "plotting",
    "cli_output cli_landscape cli",
)
# inside of functions: a model makes data of its kind, and a penalty of the user's is checked
UPWARDS = {("models", "data"), ("glm", "glm_data"), ("penalties", "penalty_checks")}
HEAVY = {"torch", "matplotlib", "xarray", "h5py", "distributed"}


def module_name(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py")}


def imports(node, inside=True):
    """Dotted names of all that is imported, but for types alone; with what is imported inside of functions or not."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (each.name for each in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{each.name}" for each in child.names)
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        elif inside or not isinstance(child, ast.FunctionDef):
            yield from imports(child, inside)


@cache
def needed(module):
    """Modules of the package that one imports itself."""
    names = [name for name in imports(ast.parse(MODULES[module].read_text())) if name.startswith("gamp_attention")]
    parts = [name.split(".")[1:] for name in names]
    found = {next(name for name in (".".join(part), ".".join(part[:-1])) if name in MODULES) for part in parts}
    return {other for other in found if (module, other) not in UPWARDS}


def closure(modules):
    """Modules that some need, directly or not."""
    found, waiting = set(), list(modules)
    while waiting:
        new = needed(waiting.pop()) - found
        found |= new
        waiting += new
    return found


def on_rung(names):
    """The modules of a rung, with all of a package."""
    wanted = names.split()
    found = {module for module in MODULES if module in wanted or module.partition(".")[0] in wanted}
    assert set(wanted) <= found, "a module that is not there"
    return found


@pytest.mark.parametrize("rung", range(len(LADDER)), ids=lambda rung: LADDER[rung].partition(" ")[0])
def test_no_rung_needs_a_higher_one(rung):
    higher = set().union(*map(on_rung, LADDER[rung + 1 :]))
    assert sorted(closure(on_rung(LADDER[rung])) & higher) == []


def test_no_module_needs_itself():
    assert [module for module in MODULES if module in closure([module])] == []


def test_the_exceptions_are_imports_inside_of_functions():
    for module, other in UPWARDS:
        tree = ast.parse(MODULES[module].read_text())
        found = [[name.startswith(f"gamp_attention.{other}.") for name in imports(tree, inside)] for inside in (0, 1)]
        assert [any(each) for each in found] == [False, True]


def test_heavy_libraries_are_imported_inside_of_functions():
    found = {module: {name.partition(".")[0] for name in imports(ast.parse(path.read_text()), inside=False)}
             for module, path in MODULES.items()}  # fmt: skip
    assert {module for module, names in found.items() if names & HEAVY} == set()
