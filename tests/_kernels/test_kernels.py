"""Kernels that call each other by symbol: each is compiled once and stored on disk, and outdated code is not used."""

import shutil

import numpy as np
import pytest
from numba.core import types
from numba.core.errors import TypingError

from gamp_attention._kernels.compiled import dispatch_on_type, inline_kernel, kernel, overload, sample_kernel
from tests._kernels import test_compile_cache
from tests.test_imports import PACKAGE

# the package as a folder of modules, without the imports of its __init__
BARE = f"""
import sys, types
package = types.ModuleType("gamp_attention")
package.__path__ = [{str(PACKAGE)!r}]
sys.modules["gamp_attention"] = package
"""
BELOW = """
from gamp_attention._kernels.compiled import kernel, user_kernel

@kernel
def lowest(x):
    if x < 0:
        raise ValueError("below zero")
    return 3 * x

@user_kernel
def inlined(x):
    if x > 100:
        raise ValueError("above", x)
    return lowest(x) + 1
"""
ABOVE = """
from gamp_attention._kernels.compiled import kernel
from gamp_attention._kernels.deferred import deferred_kernel
from below import inlined
from numba.core.types import float64

@deferred_kernel(float64)
def middle(x):
    return inlined(x)

@kernel
def highest(x):
    return middle(x) + 10 * middle(1.0)
"""
CALL = "from above import highest\nshow(highest(2.0))"


@kernel
def cubed(x):
    if x < 0:
        raise ValueError("below zero")
    return x**3


@inline_kernel
def wrapped(x):
    return cubed(x)


@kernel
def sum_of_cubes(x):
    return wrapped(x) + cubed(2) + cubed(3)


@sample_kernel
def doubled(x):
    return 2 * x


@kernel
def doubled_twice(x):
    return doubled(doubled(x))


@pytest.fixture(scope="module")
def stored_tower(tmp_path_factory):
    """Folder of kernels that call each other and of their cache, and a copy of it to restore it from.

    Numba finds stored code by the path of its source, so that all tests must use the same folder.
    """
    folder, copy = tmp_path_factory.mktemp("tower"), tmp_path_factory.mktemp("copies") / "tower"
    (folder / "below.py").write_text(BELOW)
    (folder / "above.py").write_text(ABOVE)
    compiled, value = count_compiled(CALL, folder)
    assert compiled == 4  # each kernel once, including the inlined function
    assert value == 47
    shutil.copytree(folder, copy)
    return folder, copy


@pytest.fixture
def tower(stored_tower):
    """Folder with the sources and the compiled code of kernels that call each other."""
    folder, copy = stored_tower
    shutil.rmtree(folder)
    return shutil.copytree(copy, folder)


def count_compiled(script, folder):
    return test_compile_cache.count_compiled(script, folder, head=BARE)


def list_files(folder, name):
    return [path for path in (folder / "cache").rglob(f"*{name}*") if path.suffix in (".nbi", ".nbc")]


def test_an_inner_kernel_cannot_be_called_from_python():
    for _ in range(2):  # before and after it is compiled
        with pytest.raises(TypeError, match="doubled: is called by kernels only"):
            doubled(1)
        assert doubled_twice(1) == 4


def test_exceptions_of_callees_reach_python():
    for _ in range(2):
        with pytest.raises(ValueError, match="below zero"):
            sum_of_cubes(-1.0)


def test_only_a_callee_missing_from_disk_is_compiled_and_before_its_caller_is_loaded(tower):
    paths = list_files(tower, "lowest")
    assert len(paths) == 2
    for path in paths:
        path.unlink()
    assert count_compiled(CALL, tower) == (1, 47)
    assert count_compiled(CALL, tower) == (0, 47)


def test_a_caller_is_compiled_again_if_its_callee_returns_another_type(tower):
    (tower / "below.py").write_text(BELOW.replace("3 * x", "(3 * x, x)").replace("lowest(x) + 1", "lowest(x)[0] + 1"))
    compiled, value = count_compiled(CALL, tower)
    assert (compiled, value) == (3, 47)  # the highest kernel is unchanged
    assert count_compiled(CALL, tower) == (0, 47)


@dispatch_on_type
def describe(x):
    """Return a number that depends on the type of x."""


@overload(describe)
def _describe_float(x):
    return (lambda x: 2.5 * x) if isinstance(x, types.Float) else None


@overload(describe)
def _describe_array(x):
    return (lambda x: 1.0 * len(x)) if isinstance(x, types.Array) else None


@kernel
def call_describe(x):
    return describe(x)


def test_a_stub_has_the_code_for_the_types_of_its_arguments():
    assert call_describe(2.0) == 5.0
    assert call_describe(np.zeros(3)) == 3.0
    with pytest.raises(TypingError, match="describe"):
        call_describe(True)
    with pytest.raises(NotImplementedError, match=r"describe\(\) can be called by compiled code only"):
        describe(2.0)
