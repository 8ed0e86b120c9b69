"""The layers of the package: a module imports from its subpackage or from lower layers, also for types."""

import ast
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gamp_attention"
# From the lowest layer to the highest; folders of one layer do not import from each other. A module of the top folder
# counts as a folder.
LAYERS = (
    "_version",
    "_tools",
    "_kernels results",
    "problem recorder",
    "gamp theory",
    "descent sampling",
    "extensions",
    "__main__",
)
INNER_LAYERS = {  # layers within a folder, from the lowest; "" are modules that belong to no folder in it
    "problem": ("losses penalties", "denoisers", ""),
    "theory": ("models", "equations", "rules", "fixed_points"),
}
# the extensions that each extension uses
EXTENSIONS = {
    "bayes": "sequence train",
    "cli": "comparison dynamics inference phases rsb sweeps train",
    "comparison": "dynamics phases train",
    "dynamics": "train",
    "equations": "phases sequence",
    "estimators": "inference sequence train",
    "inference": "train",
    "pairs": "",
    "phases": "sweeps",
    "rsb": "",
    "sequence": "",
    "spectra": "",
    "sweeps": "",
    "train": "",
    "weight_norm": "equations",
}
HEAVY = {"torch", "matplotlib", "sklearn"}
LAZY = "extensions.estimators"  # imported at first use, since scikit-learn is optional


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


def test_every_folder_has_a_layer():
    assert {module.partition(".")[0] for module in MODULES} == set(" ".join(LAYERS).split())


def test_folders_import_only_from_lower_layers():
    pairs = {pair for pair in find_import_pairs(0) if pair != ("__main__", "extensions")}
    assert select_upward(pairs, LAYERS) == set()


@pytest.mark.parametrize("folder", INNER_LAYERS)
def test_inner_folders_import_only_from_lower_layers(folder):
    layers = INNER_LAYERS[folder]
    inner = set(" ".join(layers).split())
    pairs = {pair for pair in find_import_pairs(1, within=f"{folder}.") if inner.issuperset(pair)}
    assert select_upward(pairs, [layer for layer in layers if layer]) == set()


def test_extensions_import_the_listed_extensions_only():
    pairs = {pair for pair in find_import_pairs(1, within="extensions.") if pair[0] != "__init__"}
    assert {name: " ".join(sorted(b for a, b in pairs if a == name)) for name in EXTENSIONS} == EXTENSIONS


def test_the_docstring_of_an_extension_states_what_it_uses():
    for name, used in EXTENSIONS.items():
        docstring = ast.get_docstring(ast.parse((PACKAGE / "extensions" / name / "__init__.py").read_text()))
        stated = docstring.rpartition("Uses: ")[2]
        assert [other for other in used.split() if f"`{other}`" not in stated and "all extensions" not in stated] == []


@pytest.mark.parametrize("rule", ["panels", "sobol", "lines"])
def test_quadrature_rules_import_no_model(rule):
    assert [n for n in find_imported_modules(f"theory.rules.{rule}") if n.startswith("theory.models.")] == []


def test_there_are_no_import_cycles():
    def closure(module):
        reached, waiting = set(), [module]
        while waiting:
            new = find_imported_modules(waiting.pop()) - reached
            reached |= new
            waiting += new
        return reached

    assert [module for module in MODULES if module in closure(module)] == []


def test_every_folder_has_a_docstring_that_begins_with_a_sentence():
    for path in PACKAGE.rglob("__init__.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        assert docstring is not None, path
        assert docstring.partition("\n")[0].endswith("."), path


def test_heavy_libraries_are_imported_inside_functions():
    imported = {module: {name.partition(".")[0] for name in find_imports(ast.parse(path.read_text()), inside=False)}
                for module, path in MODULES.items()}  # fmt: skip
    heavy = {module for module, names in imported.items() if names & HEAVY}
    assert heavy
    assert all(module.startswith(LAZY) for module in heavy)
    assert all(imported[module] & HEAVY == {"sklearn"} for module in heavy)
