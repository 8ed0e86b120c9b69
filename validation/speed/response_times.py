"""Errors, refused commands, Ctrl-C and runs on maps with kinks end within their time limits.

Method: each entry of `CHECKS` is a function that returns seconds, and a limit. Processor time is measured if only this
process works, time by the clock if the response of another process is measured. Tests of the package have no time
limits, as times depend on other programs on the machine: a new limit belongs here.

Criterion: no entry exceeds its limit; with --quick none exceeds ten times its limit.
"""

import contextlib
import io
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import numpy as np

import gamp_attention as ga
from gamp_attention.cli.main import main as run_command
from validation._tools.catalogue import ROOT
from validation._tools.report import Verdict, options
from validation._tools.tables import markdown_table

SLACK = 10  # factor on the limits of quick runs, which other programs may disturb
SCRIPT = """
import time
import numpy as np
import gamp_attention as ga

rng = np.random.default_rng(0)
data = ga.Dataset(rng.standard_normal((400, 8, 16)), rng.standard_normal((400, 8, 16)), rank=4)
params = data.terms("exact").params[:40]
small = ga.Dataset(data.tokens[:2, :3], data.outputs[:2, :3], rank=1)
ga.run_gamp(small, "random", tol=0, max_iter=2)
print("begins", flush=True)
try:
    {call}
except KeyboardInterrupt:
    print(time.time(), flush=True)
"""
SEARCH = "ga.denoise(data.loss, params, 3 * rng.standard_normal((40, 8, 4)), np.tile(40 * np.eye(4), (8, 1, 1)))"


@ga.register_attention
class ReluRows(NamedTuple):
    """Normalised rows of relu + ε, a map with kinks."""

    eps: float = 0.1
    even = bounded = rotations = True
    smooth = False

    def attend(self, z, S):
        """Fill S (L, L) from fields z (L, r)."""
        for i in range(z.shape[0]):
            total = 0.0
            for j in range(z.shape[0]):
                S[i, j] = max(np.sum(z[i] * z[j]), 0.0) + self.eps
                total += S[i, j]
            for j in range(z.shape[0]):
                S[i, j] /= total


def measure_error():
    """Return the processor time of a call that raises an error."""
    began = time.process_time()
    with contextlib.suppress(ValueError):
        ga.paper_model(sigma=-1.0)
    return time.process_time() - began


def measure_refusal():
    """Return the processor time of a command with an invalid option."""
    began = time.process_time()
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        run_command(["boundaries", "--tol", "0"])
    return time.process_time() - began


def measure_interrupt(call):
    """Return the seconds from Ctrl-C to the KeyboardInterrupt of a call that would take minutes."""
    command = [sys.executable, "-c", SCRIPT.format(call=call)]
    with subprocess.Popen(command, cwd=ROOT.parent, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            time.sleep(0.5)  # until the call is at work
            sent = time.time()
            process.send_signal(signal.SIGINT)
            return float(process.stdout.readline()) - sent
        finally:
            process.kill()


def measure_kinks(init):
    """Return the processor time of a run on a map with kinks, which may not converge."""
    data = ga.sample(ga.attention_model(student=ReluRows(), lam=0.01), 200, 1.5, seed=0)
    ga.run_gamp(data, init, max_iter=2)  # compiles
    began = time.process_time()
    ga.run_gamp(data, init)
    return time.process_time() - began


CHECKS = {  # functions that return seconds, and their limits in seconds
    "a call with an invalid argument raises an error": (measure_error, 1.0),
    "a command with an invalid option is refused": (measure_refusal, 1.0),
    "Ctrl-C ends a proximal search": (lambda: measure_interrupt(SEARCH), 1.0),
    "Ctrl-C ends a run": (lambda: measure_interrupt("ga.run_gamp(data, 'random', tol=0, max_iter=5)"), 1.0),
    "a run on a map with kinks ends, semantic start": (lambda: measure_kinks("semantic"), 10.0),
    "a run on a map with kinks ends, random start": (lambda: measure_kinks("random"), 10.0),
}


def main():
    args = options(__doc__)
    verdict, rows = Verdict("response_times", args), {}
    for name, (measure, limit) in CHECKS.items():
        seconds = measure()
        rows[name] = {"seconds": seconds, "limit": limit}
        verdict.check(seconds <= limit * (SLACK if args.quick else 1), f"{name}: {seconds:.2g} s, at most {limit:g} s")
    cells = [[name, f"{row['seconds']:.2g} s", f"{row['limit']:g} s"] for name, row in rows.items()]
    verdict.write_table(markdown_table(("response", "time", "limit"), cells))
    verdict.end({"rows": rows})


if __name__ == "__main__":
    main()
