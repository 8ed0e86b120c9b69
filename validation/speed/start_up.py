"""A second process compiles nothing, whatever the model; import and help take a fraction of a second.

Method: every model runs in two processes, one after the other, with a separate empty cache folder: message passing, a
trajectory, a fixed point of state evolution. numba reports what it compiles. Seconds are from the start of the process
to the end of message passing. With --base PATH, comparisons of several models run in one process, and at the same time
in a process of another checkout, each with an empty cache: processor time of compilation, whose ratio hardly depends on
other programs on the machine. The checkout of the stored comparison is db457ef.

Criterion: the second process compiles nothing for any model, including user-defined losses, maps and penalties. The
package is imported within 0.6 s, all its names within a second, and the help is printed within 0.3 s, each the median
of ten times. A first comparison compiles for at most 0.3 of the time of the other checkout; a comparison of another
attention model, or with another penalty or loss, for at most 3 s.
"""

import subprocess
import sys
import tempfile
import time
from os import environ
from pathlib import Path
from statistics import median

from tqdm import tqdm

from validation._tools.catalog import ROOT
from validation._tools.checkouts import BASE, run_side_by_side
from validation._tools.report import Verdict, options
from validation._tools.tables import markdown_table

QUICK = ("paper", "user-defined loss")
IMPORTS = {  # code, and the limit of its median time in seconds, in addition to the time of an empty process
    "import gamp_attention": ("import gamp_attention", 0.6),
    "all public names": ("from gamp_attention import *", 1.0),
    "gamp-attention --help": (
        "from gamp_attention.extensions.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass", 0.3
    ),
}  # fmt: skip
RUNS = {
    "paper": "ga.paper_model()",
    "L=3": "ga.attention_model(3)",
    "r=2": "ga.attention_model(2, 2, 2)",
    "untied keys": "ga.attention_model(2, 2, 1, student=ga.DotProductAttention(tied=False))",
    "causal": "ga.attention_model(student=ga.DotProductAttention(causal=True))",
    "linear attention": "ga.attention_model(student=ga.DotProductAttention(softmax=False))",
    "power law": "ga.attention_model(coordinates=ga.coordinate_law(ga.power_law_spectrum(1.0, 8)))",
    "elastic net": "ga.paper_model(penalty=ga.ElasticNet(0.008, 0.004))",
    "logistic": "ga.glm_model(ga.LogisticLoss(), lam=0.1)",
    "multinomial": "ga.glm_model(ga.MultinomialLoss(), rank=3, lam=0.1)",
    "phase retrieval": "ga.glm_model(ga.PhaseRetrievalLoss(), lam=0.1)",
    "user-defined loss": "ga.glm_model(own('huber_loss').PseudoHuber(0.5), ga.LinearLabels(), lam=0.1)",
    "user-defined map": "ga.attention_model(student=own('sigmoid_attention').SigmoidAttention())",
    "user-defined penalty": "ga.paper_model(penalty=own('huber_penalty').Huber(0.01, 1.0))",
}
SCRIPT = """
import sys, time
from importlib import import_module
from numba.core import event
recorder = event.RecordingListener()
event.register("numba:compile", recorder)
import gamp_attention as ga

def own(name):
    return import_module("docs.examples." + name)

model = eval(sys.argv[1])
run = ga.run_gamp(ga.sample(model, d=60, alpha=2.0), "semantic", "asymptotic", damping=0.3, max_iter=50)
ready = time.time()
path = ga.trajectory(model, 2.0, "semantic", damping=0.3, n_iter=2, n_paths=256, n_replicas=2)
found = ga.solve_state_evolution(model, 2.0, path_end := ga.Overlaps(*(v[-1] for v in path.arrays().values()))
    if len(model.coordinates.weight) == 1 else "semantic", rtol=0.1, max_work=1e4, max_iter=3, stability=False)
print(sum(e.is_start for _, e in recorder.buffer), ready)
"""


def run_process(model, folder):
    """Return the number of functions compiled by a process, and seconds until message passing was done."""
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, model], capture_output=True, text=True, cwd=ROOT.parent,
        env=environ | {"NUMBA_CACHE_DIR": folder},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    compiled, ready = done.stdout.split()
    return int(compiled), float(ready) - began


def compare_compilation(base, verdict):
    """Return the compilation of comparisons here and in another checkout, and a table of it."""
    before, now = run_side_by_side(base, Path(__file__).with_name("_compile_times.py"))
    heads = ("comparison", "compiled in the other checkout", "functions", "here", "functions")
    lines = []
    for old, new in zip(before, now, strict=True):
        cells = (cell for row in (old, new) for cell in (f"{row['seconds']:.1f} s", row["functions"]))
        lines.append([new["model"], *cells])
    ratio = now[0]["seconds"] / before[0]["seconds"]
    verdict.check(ratio <= 0.3, f"a first comparison compiles for {ratio:.2f} of the time of {base}, at most 0.3")
    for row in now:
        if row["model"].startswith("another"):
            verdict.check(row["seconds"] <= 3, f"{row['model']}: compiled for {row['seconds']:.1f} s, at most 3")
    return {"base": before, "here": now}, markdown_table(heads, lines)


def measure_imports(times=10):
    """Return the median seconds that the code of each of `IMPORTS` adds to an empty process."""
    seconds = {name: [] for name in ("empty process", *IMPORTS)}
    for _ in range(times):
        for name, took in seconds.items():
            code = IMPORTS[name][0] if name in IMPORTS else "pass"
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT.parent, stdout=subprocess.DEVNULL)
            took.append(time.perf_counter() - began)
    medians = {name: median(took) for name, took in seconds.items()}
    return {name: medians[name] - medians["empty process"] for name in IMPORTS}


def main():
    args = options(__doc__, base=BASE)
    verdict, rows = Verdict("start_up", args), {}
    for name in tqdm([name for name in RUNS if name in QUICK or not args.quick], desc="models", disable=None):
        with tempfile.TemporaryDirectory() as folder:
            (compiled, first), (again, second) = (run_process(RUNS[name], folder) for _ in range(2))
        rows[name] = {"compiled": compiled, "first": first, "compiled_again": again, "second": second}
        verdict.check(
            compiled > 0 == again,
            f"{name}: {compiled} functions compiled, then {again}; {first:.1f} s, then {second:.1f} s",
        )
    heads = ("model", "first process", "functions compiled", "second process", "functions compiled")
    text = markdown_table(heads, [
        [name, f"{row['first']:.1f} s", row["compiled"], f"{row['second']:.1f} s", row["compiled_again"]]
        for name, row in rows.items()
    ])  # fmt: skip
    beside = None
    if args.base:
        beside, table = compare_compilation(args.base, verdict)
        text += "\n" + table
    verdict.write_table(text)
    imports = measure_imports()
    for name, (_, limit) in IMPORTS.items():
        verdict.check(imports[name] < limit, f"{name}: {imports[name]:.2f} s, less than {limit:g}")
    verdict.end({"rows": rows, "import seconds": imports, "compared": beside})


if __name__ == "__main__":
    main()
