"""Times until the package answers: refused arguments, Ctrl-C, an address without a scheduler, and a run with kinks.

The tests check the answers; the times are measured here, because they depend on the load of the machine.

Criterion: a call with a bad argument is refused within 1 s of processor time. Ctrl-C ends a long search of minima
within 1 s, and compilation within 10 s. A sweep gives up an address that does not answer within 2 s. A run whose
attention map has kinks ends within 10 s of processor time.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import NamedTuple

import numpy as np

import gamp_attention as ga
from validation._tools.catalog import ROOT
from validation._tools.report import Verdict, options

# calls that take minutes, or seconds of compilation in an empty cache; the script prints when it is interrupted
WORK = {
    "search": "ga.denoise(data.loss, params, 3 * rng.standard_normal((40, 8, 4)), np.tile(40 * np.eye(4), (8, 1, 1)))",
    "tracked run": "ga.run_gamp(data, 'random', tol=0, max_iter=5)",
    "compilation": "ga.run_gamp(ga.sample(ga.paper_model(), d=60, alpha=2.0), 'semantic')",
}
SCRIPT = """
import time
import numpy as np
import gamp_attention as ga

rng = np.random.default_rng(0)
data = ga.Dataset(rng.standard_normal((400, 8, 16)), rng.standard_normal((400, 8, 16)), rank=4)
params = data.terms("exact").params[:40]
if {warm}:
    small = ga.Dataset(data.tokens[:2, :3], data.outputs[:2, :3], rank=1)
    ga.run_gamp(small, "random", tol=0, max_iter=2)
try:
    print("begins", flush=True)
    {work}
except KeyboardInterrupt:
    print(time.time(), flush=True)
"""


@ga.register_attention
class ReluRows(NamedTuple):
    """Rows of relu(z zᵀ) + ε, divided by their sums: a map with kinks."""

    eps: float = 0.1
    even = bounded = rotations = True
    smooth = False

    def attend(self, z, S):
        """Fill S (L, L)."""
        for i in range(z.shape[0]):
            total = 0.0
            for j in range(z.shape[0]):
                S[i, j] = max(np.sum(z[i] * z[j]), 0.0) + self.eps
                total += S[i, j]
            for j in range(z.shape[0]):
                S[i, j] /= total


def seconds_until_refused() -> dict[str, float]:
    """Return the processor time of calls with a bad argument."""
    model, data = ga.paper_model(), ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    calls = {
        "sample": lambda: ga.sample(model, d=0, alpha=1.0),
        "run_gamp": lambda: ga.run_gamp(data, tol=-1.0),
        "minimize_risk": lambda: ga.minimize_risk(data, lr=-1.0),
        "solve_state_evolution": lambda: ga.solve_state_evolution(model, -1.0),
        "trajectory": lambda: ga.trajectory(model, 1.5, "nowhere"),
        "fit_linear_baseline": lambda: ga.fit_linear_baseline(data, lam=0),
    }
    times = {}
    for name, call in calls.items():
        began = time.process_time()
        with suppress(ValueError, TypeError):
            call()
        times[name] = time.process_time() - began
    return times


def seconds_until_interrupted(work: str) -> float:
    """Return the seconds from SIGINT to KeyboardInterrupt during some work."""
    with tempfile.TemporaryDirectory() as folder:
        cold = {"NUMBA_CACHE_DIR": folder} if work == "compilation" else {}
        script = SCRIPT.format(work=WORK[work], warm=not cold)
        process = subprocess.Popen(
            [sys.executable, "-c", script], cwd=ROOT.parent, stdout=subprocess.PIPE, text=True, env=os.environ | cold
        )
        assert process.stdout is not None
        with process:
            process.stdout.readline()
            time.sleep(0.5)
            sent = time.time()
            process.send_signal(signal.SIGINT)
            return float(process.stdout.readline()) - sent


def seconds_without_scheduler() -> float:
    """Return the seconds until a sweep gives up an address that accepts no more connections."""
    from gamp_attention.extensions.cli.main import main as run_command

    with tempfile.TemporaryDirectory() as folder, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address, clients = listening.getsockname(), [socket.socket() for _ in range(8)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(address)
        began = time.monotonic()
        run_command(["sweep", f"{folder}/cells", "--dask", f"tcp://127.0.0.1:{address[1]}"])
        seconds = time.monotonic() - began
        for client in clients:
            client.close()
        return seconds


def main() -> None:
    """Measure all times and check them."""
    found = options(__doc__ or "")
    verdict = Verdict("response_times", found)
    refused = seconds_until_refused()
    worst = max(refused, key=lambda name: refused[name])
    verdict.check(refused[worst] < 1, f"bad arguments are refused within {refused[worst]:.2g} s ({worst})")
    interrupted = {work: seconds_until_interrupted(work) for work in WORK}
    for work, seconds in interrupted.items():
        limit = 10 if work == "compilation" else 1
        verdict.check(seconds < limit, f"Ctrl-C ends the {work} after {seconds:.2g} s")
    waited = seconds_without_scheduler()
    verdict.check(waited < 2, f"a sweep gives up a silent address after {waited:.2g} s")
    kinks = {}
    data = ga.sample(ga.attention_model(student=ReluRows(), lam=0.01), 200, 1.5, seed=0)
    for init in ("semantic", "random"):
        ga.run_gamp(data, init, max_iter=2)  # compiles
        began = time.process_time()
        ga.run_gamp(data, init)
        kinks[init] = time.process_time() - began
        verdict.check(kinks[init] < 10, f"a run with kinks from {init} weights ends after {kinks[init]:.2g} s")
    verdict.end({"refused": refused, "interrupted": interrupted, "no_scheduler": waited, "kinks": kinks})


if __name__ == "__main__":
    main()
