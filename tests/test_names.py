"""Public names: their subpackages, the list of `dir`, and the sections of the reference."""

import contextlib
import inspect
import re
from pathlib import Path

import pytest

import gamp_attention as ga
from validation._tools.names import EVERY, SUBPACKAGES

API = (Path(__file__).parent.parent / "docs" / "api.md").read_text()


def test_tab_completion_lists_fewer_than_60_names():
    listed = [name for name in dir(ga) if not name.startswith("_")]
    assert len(listed) < 60
    assert len(set(listed)) == len(listed)
    assert set(SUBPACKAGES) | {"run_gamp", "sample", "Dataset", "solve_state_evolution", "GampAttention"} <= set(listed)


@pytest.mark.parametrize("name", EVERY)
def test_each_name_belongs_to_one_subpackage_and_to_the_package(name):
    subpackages = [subpackage for subpackage, names in SUBPACKAGES.items() if name in names]
    assert len(subpackages) == 1
    assert getattr(getattr(ga, subpackages[0]), name) is getattr(ga, name)


def get_callables(name):
    """Return the public name and its public methods."""
    value = getattr(ga, name)
    methods = vars(value).items() if inspect.isclass(value) else ()
    return [value, *(method for key, method in methods if callable(method) and key[0] != "_")]


@pytest.mark.parametrize("name", EVERY)
def test_signatures_are_short_enough_to_be_read(name):
    """`help(ga.Dataset)` began with 1 500 characters of the expanded type ArrayLike."""
    for value in get_callables(name):
        with contextlib.suppress(ValueError, TypeError):  # exceptions and enumerations have none
            shown = str(inspect.signature(value))
            assert "_SupportsArray" not in shown
            assert len(shown) < 1000


def test_sections_of_the_reference_name_the_subpackages_of_their_entries():
    sections = re.findall(r"\n-+\n\n(In [^\n]*)\n(.*?)(?=\n[A-Z][^\n]*\n-+\n|```$)", API.strip(), flags=re.DOTALL)
    stated = {name: re.findall(r"``ga\.([\w.]+)``", introduction) for introduction, body in sections for name in
              re.findall(r"^   (\w+)$", body, flags=re.MULTILINE)}  # fmt: skip
    assert set(stated) == set(EVERY)
    wrong = [name for name, stated_in in stated.items() if not any(name in SUBPACKAGES[each] for each in stated_in)]
    assert wrong == []


def test_names_that_do_not_exist_raise_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'run_gmap'"):
        _ = ga.run_gmap
    assert not hasattr(ga, "__wrapped__")
