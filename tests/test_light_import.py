"""Importing the package, and asking its command line for help, loads nothing heavy."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "matplotlib", "scipy.stats", "scipy.optimize", "xarray", "distributed", "h5py", "sklearn")


@pytest.mark.parametrize("modules", ["gamp_attention", "gamp_attention.cli.main, gamp_attention.experiments"])
def test_importing_loads_nothing_heavy(modules):
    code = f"import sys, {modules}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
