"""Imports load only the libraries that are needed: no solver for the help, no optional library for all names."""

import subprocess
import sys

import pytest

NUMERICAL = ("numpy", "scipy", "numba", "llvmlite", "tqdm")
OPTIONAL = ("torch", "matplotlib", "scipy.stats", "scipy.optimize", "distributed", "sklearn")
HELP = "from gamp_attention.extensions.cli.main import main\ntry: main([{}'--help'])\nexcept SystemExit: pass"
RUN = "import gamp_attention as ga; ga.run_gamp(ga.sample(ga.paper_model(), 20, 1.0, 0), max_iter=1)"
COMMANDS = "from gamp_attention.extensions.cli import fit, paper_model"


@pytest.mark.parametrize(
    ("code", "unneeded"),
    [
        ("import gamp_attention", NUMERICAL + OPTIONAL),
        (HELP.format(""), NUMERICAL + OPTIONAL),
        (HELP.format("'fit', "), NUMERICAL + OPTIONAL),
        ("from gamp_attention import *", OPTIONAL),
        (COMMANDS, OPTIONAL),
        (RUN, OPTIONAL),
    ],
    ids=["package", "help", "help of fit", "all names", "commands", "run"],
)
def test_imports_load_no_unneeded_library(code, unneeded):
    code += f"\nimport sys\nprint([name for name in {unneeded} if name in sys.modules], file=sys.stderr)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stderr == "[]\n"
