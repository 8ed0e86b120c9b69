"""Compiled code is stored on disk: a second process compiles nothing, and every change of the sources is detected."""

import ast
import os
import shutil
import subprocess
import sys
from uuid import uuid4

import pytest

from gamp_attention._core import compiled
from tests.test_imports import MODULES, PACKAGE

LOSS = """
from typing import NamedTuple
import numpy as np
import gamp_attention as ga

@ga.register_loss
class Quartic(NamedTuple):
    scale: float = 1.0
    convex = True

    def value(self, p, z):
        return 0.5 * (z[0, 0] - p[0]) ** 2 + self.scale * (z[0, 0] - p[0]) ** 4
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
from quartic import Quartic

rng = np.random.default_rng(0)
data = ga.LabelledDataset(rng.standard_normal((60, 20)), rng.standard_normal(60), Quartic(), 0.1)
show(ga.denoise(data.loss, np.ones((60, 1)), rng.standard_normal((60, 1, 1)), np.ones((1, 1, 1))).moreau.sum())
"""
PENALTY = """
from gamp_attention.penalties.base import values
out = np.empty(1)
values(ga.Ridge(1.0), np.ones(1), out)
show(out[0])
"""
COMPILERS = {  # decorators of functions and classes whose code goes into kernels
    "kernel", "inner_kernel", "sample_kernel", "field_kernel", "inline_kernel", "user_kernel", "overload",
    "register_loss", "register_attention", "register_penalty",
}  # fmt: skip


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


def test_a_second_process_compiles_nothing_unless_the_loss_is_edited(tmp_path):
    module, source = tmp_path / "quartic.py", f"{LOSS}# {uuid4()}\n"  # no earlier run of the test has compiled it
    module.write_text(source)
    compiled, loss = count_compiled(SCRIPT, tmp_path, shared=True)
    assert compiled > 0
    module.write_text(source.replace("** 4", "** 4 * 10"))
    compiled_again, other = count_compiled(SCRIPT, tmp_path, shared=True)
    assert compiled_again > 0
    assert other > loss
    module.write_text(source)  # the code of the first process is stored, and so is the code of the edited loss
    assert count_compiled(SCRIPT, tmp_path, shared=True) == (0, loss)


NOWHERE = """
import warnings
from numba.core import caching
caching.CacheImpl._locator_classes = []  # as if no folder could be written
warnings.filterwarnings("error")
warnings.filterwarnings("ignore", "NUMBA_CACHE_DIR: needs a folder that can be written", RuntimeWarning)
import gamp_attention as ga
"""


def test_without_a_folder_that_can_be_written_a_process_compiles_again(tmp_path):
    compiled, value = count_compiled(PENALTY, tmp_path, shared=True, head=NOWHERE)
    assert (compiled > 0, value) == (True, 0.5)  # although the cache of this process has the kernel


@pytest.fixture
def copied(tmp_path):
    """Copy the package, so that a test can edit it."""
    return shutil.copytree(PACKAGE, tmp_path / "gamp_attention", ignore=shutil.ignore_patterns("__pycache__"))


def test_a_kernel_is_compiled_again_if_a_file_that_it_contains_code_from_is_edited(copied, tmp_path):
    compiled, value = count_compiled(PENALTY, tmp_path)
    assert (compiled > 0, value) == (True, 0.5)
    assert count_compiled(PENALTY, tmp_path) == (0, 0.5)
    ridge = copied / "penalties" / "standard.py"
    ridge.write_text(ridge.read_text().replace("return 0.5 * self.lam * x * x", "return 1.5 * self.lam * x * x"))
    compiled, value = count_compiled(PENALTY, tmp_path)
    assert (compiled > 0, value) == (True, 1.5)


def is_in_stamp(path):
    """Return whether the stamp of all kernels includes a file."""
    return any(mark in path.read_bytes() for mark in compiled.COMPILED)


def get_decorator_name(decorator):
    return getattr(decorator.func if isinstance(decorator, ast.Call) else decorator, "id", None)


def find_kernel_modules(module, tree):
    """Yield modules with code for kernels: a module itself, and modules that its kernels import names from."""
    nodes = list(ast.walk(tree))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    if any(node.module == "gamp_attention._core.compiled" or node.module.startswith("numba.core") for node in imports):
        yield module
    if any(ast.unparse(base).endswith("NamedTuple") for node in nodes for base in getattr(node, "bases", ())):
        yield module
    parts = [
        node for node in nodes if {get_decorator_name(each) for each in getattr(node, "decorator_list", ())} & COMPILERS
    ]
    names = {each.id for part in parts for each in ast.walk(part) if isinstance(each, ast.Name)} - COMPILERS
    for node in imports:
        if node.module.startswith("gamp_attention.") and names & {each.asname or each.name for each in node.names}:
            yield node.module.removeprefix("gamp_attention.")


def test_the_stamp_includes_every_file_with_code_or_constants_of_kernels():
    modules = {
        each for module, path in MODULES.items() for each in find_kernel_modules(module, ast.parse(path.read_text()))
    }
    assert {"_core.compiled", "losses.attention", "penalties.standard", "denoisers.newton"} <= modules
    assert {module for module in modules if not is_in_stamp(MODULES[module])} == set()


def test_only_edits_of_these_files_change_the_stamp(copied, monkeypatch):
    monkeypatch.setattr(compiled, "PACKAGE", copied)
    digest = compiled.package_digest.__wrapped__
    before = digest()
    for path in copied.rglob("*.py"):
        source = path.read_bytes()
        path.write_bytes(source + b"# edited\n")
        assert (digest() != before) == is_in_stamp(path), path
        path.write_bytes(source)
    assert digest() == before
    path = copied / "damping.py"  # is included once it has settings that kernels read
    path.write_bytes(path.read_bytes() + b"class Settings(NamedTuple):\n    shrink: float = 0.5\n")
    assert digest() != before
