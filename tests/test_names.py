"""Public names: their modules, the list of `dir`, and signatures."""

import ast
from pathlib import Path

import pytest

import gamp_attention as ga
from validation._tools.names import EVERY

PACKAGE = Path(ga.__file__).parent


@pytest.mark.parametrize("name", EVERY)
def test_each_name_is_defined_in_the_module_that_the_package_states(name):
    assert getattr(ga, name).__module__ in (f"gamp_attention.{ga._HOME[name]}", "builtins")


def test_type_checkers_read_the_names_that_the_package_has():
    for path, table in (("__init__.py", ga._CORE), ("extensions/__init__.py", ga.extensions.NAMES)):
        tree = ast.parse((PACKAGE / path).read_text())
        block = next(
            node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        )
        imported = {(n.module, a.asname) for n in block.body for a in n.names if a.asname}
        assert imported == {(f"gamp_attention.{module}", name) for module, names in table.items() for name in names}


def test_names_that_do_not_exist_raise_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'run_gmap'"):
        _ = ga.run_gmap
    assert not hasattr(ga, "__wrapped__")
