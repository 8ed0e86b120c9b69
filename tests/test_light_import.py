"""Imports of the package and of the commands load no optional library, and no large module that few calls need."""

import subprocess
import sys

import pytest

OPTIONAL = ("torch", "matplotlib", "scipy.stats", "scipy.optimize", "xarray", "distributed", "h5py", "sklearn")


@pytest.mark.parametrize("code", ["import gamp_attention", "import gamp_attention.cli.main"])
def test_imports_load_no_unneeded_library(code):
    code += f"\nimport sys\nprint([name for name in {OPTIONAL} if name in sys.modules], file=sys.stderr)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stderr == "[]\n"
