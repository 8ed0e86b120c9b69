"""Compiled code is stored on disk: a second process compiles nothing, and every change of the sources is detected."""

import importlib
import os
import shutil
import subprocess
import sys
from uuid import uuid4

import pytest

from gamp_attention._kernels import compiled, content
from tests.test_imports import PACKAGE

LOSS = """
from typing import NamedTuple
import numpy as np
import gamp_attention as ga
from distances import square

@ga.register_loss
class Parabola(NamedTuple):
    scale: float = 1.0
    convex = True

    def value(self, p, z):
        return self.scale * square(z[0, 0] - p[0])

    def derivatives(self, p, z, grad, hess):
        grad[0], hess[0, 0] = 2 * self.scale * square(1.0) * (z[0, 0] - p[0]), 2 * self.scale * square(1.0)
        return self.scale * square(z[0, 0] - p[0])
"""
DISTANCES = """
import units
from numba.extending import register_jitable as compiled

@compiled
def square(x):
    return x * x * units.UNIT
"""
COUNTED = """
import numpy as np
from numba.core import event
recorder = event.RecordingListener()
event.register("numba:compile", recorder)
def show(value):
    print(sum(entry.is_start for _, entry in recorder.buffer), value)
"""
WHOLE = "import gamp_attention as ga\n"
SCRIPT = """
from parabola import Parabola

rng = np.random.default_rng(0)
data = ga.LabelledDataset(rng.standard_normal((60, 20)), rng.standard_normal(60), Parabola(), 0.1)
show(ga.denoise(data.loss, np.ones((60, 1)), rng.standard_normal((60, 1, 1)), np.ones((1, 1, 1))).moreau.sum())
"""
PENALTY = """
from gamp_attention.problem.penalties.base import values
out = np.empty(1)
values(ga.Ridge(1.0), np.ones(1), out)
show(out[0])
"""


def count_compiled(script, folder, shared=False, head=WHOLE):
    """Run a script in a new process; return the number of functions that it compiles and the value that it shows.

    `folder` has other modules and the cache. If `shared`, the cache of this process is used instead, which has most
    kernels of the package. `head` is code before the script.
    """
    paths = f"{folder}{os.pathsep}{PACKAGE.parent}"  # a copy of the package in the folder comes first
    environment = os.environ | ({} if shared else {"NUMBA_CACHE_DIR": str(folder / "cache")}) | {"PYTHONPATH": paths}
    command = [sys.executable, "-c", COUNTED + head + script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    compiled, value = done.stdout.split()
    return int(compiled), float(value)


def test_a_second_process_compiles_nothing_unless_code_or_a_constant_of_the_loss_is_edited(tmp_path):
    """The constant is in a third file."""
    unit, units = 1 + uuid4().int / 2**140, tmp_path / "units.py"  # no earlier run of the test has compiled it
    (tmp_path / "parabola.py").write_text(LOSS)
    (tmp_path / "distances.py").write_text(DISTANCES)
    units.write_text(f"UNIT = {unit!r}")
    compiled, loss = count_compiled(SCRIPT, tmp_path, shared=True)
    assert compiled > 0
    units.write_text(f"UNIT = {2 * unit!r}")
    compiled_again, other = count_compiled(SCRIPT, tmp_path, shared=True)
    assert compiled_again > 0
    assert other > loss
    units.write_text(f"UNIT = {unit!r}  # as before")  # the code of both losses is stored
    assert count_compiled(SCRIPT, tmp_path, shared=True) == (0, loss)


def test_numba_loads_no_stored_helper_whose_constants_may_have_changed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "parabola.py").write_text(LOSS)
    (tmp_path / "distances.py").write_text(f"import numba\n{DISTANCES.replace('@compiled', '@numba.njit(cache=True)')}")
    for unit in (2.0, 3.0):
        (tmp_path / "units.py").write_text(f"UNIT = {unit}")
        for name in ("units", "distances", "parabola"):
            sys.modules.pop(name, None)
        square = importlib.import_module("parabola").square
        assert square(1.0) == unit
        assert not square.stats.cache_hits


BEFORE = """
import math, types
from enum import IntEnum
from typing import NamedTuple
import numba
import numpy as np
from numba.extending import overload, register_jitable
import gamp_attention as ga

SIZE, TABLE, PAIR, units = 1.0, np.arange(3.0), (1, (2.0, "a")), types.ModuleType("units")
units.inner = types.ModuleType("inner")
units.inner.UNIT = 1.0

class Kind(IntEnum):
    FIRST = 1

class Part(NamedTuple):
    width: float = 1.0

PART = Part(2.0)

@numba.njit
def third(x):
    return math.sin(x) * SIZE if x > 0 else third(x + PAIR[0])

@register_jitable
def second(x, shift=1.0):
    return third(x) + shift

def stub(x):
    pass

@overload(stub)
def _stub(x):
    return lambda x: 3.0 * x

def make(factor):
    @numba.njit(fastmath=False)
    def scaled(x):
        return factor * x + TABLE[1]
    return scaled

first = make(2.0)

@ga.register_loss
class Loss(NamedTuple):
    part: Part = Part()
    convex = True
    def value(self, p, z):
        \"\"\"Return the loss.\"\"\"
        return first(z[0, 0]) + second(z[0, 0]) + stub(p[0]) + units.inner.UNIT + Kind.FIRST + PART.width
    def torch(self, p, z):
        return unknown.module(z) + 1
"""


def hash_loss(source):
    """Return the hash of the loss that a module defines."""
    scope = {"__name__": "losses_of_a_user"}
    exec(source, scope)
    return content.hash_content(scope["Loss"])


@pytest.mark.parametrize(
    "edit",
    [
        ("SIZE, TABLE, PAIR, units = 1.0", "SIZE, TABLE, PAIR, units = 2.0"), ("np.arange(3.0)", "np.arange(1, 4.0)"),
        ("np.arange(3.0)", "np.arange(3)"), ('"a"', '"b"'), ("UNIT = 1.0", "UNIT = 1"), ("FIRST = 1", "FIRST = 2"),
        ("PART = Part(2.0)", "PART = Part(3.0)"), ("math.sin", "math.cos"), ("SIZE if", "SIZE * 2 if"),
        ("shift=1.0", "shift=2.0"), ("3.0 * x", "4.0 * x"), ("make(2.0)", "make(3.0)"), ("=False", "=True"),
        ("convex = True", "convex = False\n    floor = value = lambda self, p: 0.0"), ("second(z", "third(z"),
        ("x > 0", "x >= 0"), ("def value(self", "def value(loss"), ("part: Part", "part: float = 0.0\n    other: Part"),
    ],
)  # fmt: skip
def test_an_edit_of_anything_that_compiled_code_contains_changes_its_hash(edit):
    before, source = hash_loss(BEFORE), BEFORE.replace(*edit)
    assert before == hash_loss("# a comment\n" + BEFORE.replace("(z) + 1", "(z) + 2"))
    assert source != BEFORE
    assert hash_loss(source) not in (before, None)


@pytest.mark.parametrize("size", ["[object()]", "np.array([None])", "np.random.default_rng(0)", "lambda x: unset"])
def test_code_that_depends_on_unknown_objects_is_not_stored(size):
    source = BEFORE.replace("units = 1.0", f"units = {size}")
    assert (hash_loss(source) is None) == ("unset" not in size)


FULL = """
import resource, sys, warnings
resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))  # bytes: no file can be written
sys.dont_write_bytecode = True
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    {}
assert [str(each.message)[:15] for each in caught] == ["NUMBA_CACHE_DIR"], caught
show(out[0])
"""


def test_on_a_full_disk_a_process_computes_with_one_warning(tmp_path):
    pytest.importorskip("resource")
    lines = [line for line in (WHOLE + PENALTY).splitlines() if line and "show" not in line]
    script = FULL.format("\n    ".join([*lines, "values(ga.ElasticNet(1.0, 0.0), np.ones(1), np.empty(1))"]))
    for _ in range(2):
        compiled, value = count_compiled(script, tmp_path)
        assert (compiled > 0, value) == (True, 0.5)


def test_stored_code_is_loaded_only_under_its_stamp_and_key(tmp_path):
    """A disk that is full, or a second process, can leave the code of another key under a name in the index."""
    file = compiled.KernelCacheFile(str(tmp_path), "kernel", "stamp")
    file.save("key", "code")
    file.save("other", "other code")
    assert (file.load("key"), file.load("other"), file.load("third")) == ("code", "other code", None)
    shutil.copy(tmp_path / "kernel.1.nbc", tmp_path / "kernel.2.nbc")
    assert (file.load("key"), file.load("other")) == ("code", None)


@pytest.fixture
def copied(tmp_path):
    """Copy the package, so that a test can edit it."""
    return shutil.copytree(PACKAGE, tmp_path / "gamp_attention", ignore=shutil.ignore_patterns("__pycache__"))


def test_a_kernel_is_compiled_again_if_a_file_that_it_contains_code_from_is_edited(copied, tmp_path):
    compiled, value = count_compiled(PENALTY, tmp_path)
    assert (compiled > 0, value) == (True, 0.5)
    assert count_compiled(PENALTY, tmp_path) == (0, 0.5)
    ridge = copied / "problem" / "penalties" / "standard.py"
    ridge.write_text(ridge.read_text().replace("return 0.5 * self.lam * x * x", "return 1.5 * self.lam * x * x"))
    compiled, value = count_compiled(PENALTY, tmp_path)
    assert (compiled > 0, value) == (True, 1.5)
