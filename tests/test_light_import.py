"""Importing the package, its command line or its experiments loads no heavy library."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "matplotlib", "scipy.stats", "scipy.optimize", "xarray", "distributed", "h5py", "sklearn")


@pytest.mark.parametrize("modules", ["gamp_attention", "gamp_attention.cli.main, gamp_attention.experiments"])
def test_imports_load_no_heavy_library(modules):
    code = f"import sys, {modules}; print([name for name in {HEAVY} if name in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "[]\n"
