"""Terminals whose encoding lacks Greek letters get question marks, not an error."""

import os
import subprocess
import sys

import pytest


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_results_are_printed_in_any_encoding(encoding):
    code = "import sys; from gamp_attention.extensions.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, "solve", "--alpha", "1.5", "--rtol", "1e-2"]
    env = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(words, env=env, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?_t" in done.stdout
    assert done.stdout.decode("ascii" if encoding == "ascii" else "cp1252").count("stable") > 0
