"""What is compiled is kept: a second process compiles nothing, and sees every change of the sources."""

import os
import subprocess
import sys

import pytest

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
SCRIPT = """
import numpy as np
from numba.core import event
recorder = event.RecordingListener()
event.register("numba:compile", recorder)
import gamp_attention as ga
from quartic import Quartic

rng = np.random.default_rng(0)
data = ga.LabelledDataset(rng.standard_normal((60, 20)), rng.standard_normal(60), Quartic(), 0.1)
run = ga.run_gamp(data, init="random")
assert run.converged
print(sum(entry.is_start for _, entry in recorder.buffer), run.train_loss)
"""


@pytest.fixture
def start(tmp_path):
    """Runs the script in a process of its own: functions compiled, and the training loss."""
    module = tmp_path / "quartic.py"
    module.write_text(LOSS)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}

    def run():
        done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        compiled, loss = done.stdout.split()
        return int(compiled), float(loss)

    run.module = module
    return run


def test_a_second_process_compiles_nothing_and_an_edited_loss_is_not_stale(start):
    compiled, loss = start()
    assert compiled > 0
    assert start() == (0, loss)
    start.module.write_text(LOSS.replace("** 4", "** 4 * 10"))
    compiled_again, other = start()
    assert compiled_again > 0
    assert other > loss
    start.module.write_text(LOSS)
    assert start() == (0, loss)
