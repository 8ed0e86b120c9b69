"""The layers of the package: a module imports from its subpackage or from lower layers, also for types."""

import ast
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gamp_attention"
# From the lowest layer to the highest; subpackages of one layer do not import from each other. A module of the top
# folder counts as a subpackage.
LAYERS = (
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
    "__main__",
)
INNER_LAYERS = {  # layers within a subpackage, from the lowest
    "state_evolution": ("equations", "rules", "dynamics", "rsb", "fixed_points", "continuation"),
    "experiments": ("sweeps", "comparison phase_diagram inference", "figures"),
}
HEAVY = {"torch", "matplotlib", "xarray", "h5py", "distributed", "sklearn"}
LAZY = "estimators"  # imported at first use, since scikit-learn is optional


def get_module_name(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {
    get_module_name(path): path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem != "__init__"
}


def find_imports(node, inside=True):
    """Yield the dotted names of all imports, including imports for types; `inside` functions as well or not."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif inside or not (isinstance(child, ast.FunctionDef) or _is_for_types(child)):
            yield from find_imports(child, inside)


def _is_for_types(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@cache
def find_imported_modules(module):
    """Return the modules of the package that `module` imports directly."""
    names = [
        name for name in find_imports(ast.parse(MODULES[module].read_text())) if name.startswith("gamp_attention.")
    ]
    parts = [name.split(".")[1:] for name in names]
    return {next(name for name in (".".join(part), ".".join(part[:-1])) if name in MODULES) for part in parts}


def find_import_pairs(depth, within=""):
    """Return pairs of subpackages, of which the first imports from the second."""
    pairs = set()
    for module in MODULES:
        for other in find_imported_modules(module):
            if module.startswith(within) and other.startswith(within):
                pair = tuple([*name.split("."), ""][depth] for name in (module, other))
                if pair[0] != pair[1] and all(pair):
                    pairs.add(pair)
    return pairs


def select_upward(pairs, layers):
    """Return the pairs that do not point to a lower layer."""
    level = {name: number for number, names in enumerate(layers) for name in names.split()}
    return {pair for pair in pairs if level[pair[0]] <= level[pair[1]]}


def test_every_subpackage_has_a_layer():
    assert {module.partition(".")[0] for module in MODULES} == set(" ".join(LAYERS).split())


def test_subpackages_import_only_from_lower_layers():
    assert select_upward(find_import_pairs(0), LAYERS) == set()


@pytest.mark.parametrize("subpackage", INNER_LAYERS)
def test_inner_subpackages_import_only_from_lower_layers(subpackage):
    assert select_upward(find_import_pairs(1, within=f"{subpackage}."), INNER_LAYERS[subpackage]) == set()


@pytest.mark.parametrize("rule", ["split", "sobol", "lines"])
def test_quadrature_rules_import_no_model(rule):
    assert [name for name in find_imported_modules(f"state_evolution.rules.{rule}") if name.startswith("models.")] == []


def test_there_are_no_import_cycles():
    def closure(module):
        reached, waiting = set(), [module]
        while waiting:
            new = find_imported_modules(waiting.pop()) - reached
            reached |= new
            waiting += new
        return reached

    assert [module for module in MODULES if module in closure(module)] == []


def test_every_subpackage_has_a_docstring_that_begins_with_a_sentence():
    for path in PACKAGE.rglob("__init__.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        assert docstring is not None, path
        assert docstring.partition("\n")[0].endswith("."), path


def test_heavy_libraries_are_imported_inside_functions():
    imported = {module: {name.partition(".")[0] for name in find_imports(ast.parse(path.read_text()), inside=False)}
                for module, path in MODULES.items()}  # fmt: skip
    heavy = {module for module, names in imported.items() if names & HEAVY}
    assert {module.partition(".")[0] for module in heavy} == {LAZY}
    assert all(imported[module] & HEAVY == {"sklearn"} for module in heavy)


def test_no_subpackage_imports_the_lazy_subpackage():
    modules = [module for module in MODULES if module.partition(".")[0] != LAZY]
    assert [m for m in modules if any(name.partition(".")[0] == LAZY for name in find_imported_modules(m))] == []
