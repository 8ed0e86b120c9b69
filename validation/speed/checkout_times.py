"""CPU times of message passing and state evolution in two checkouts of the package, side by side.

Method: with --base PATH, the same scripts run at the same time in this checkout and in another, each in a process with
one thread and an empty cache of compiled kernels. Compilation is not counted, and the fastest of some repeats counts.
An iteration is the difference of a long and a short run. The base of the stored comparison is 9144762, and "two
tokens", the solutions to 1e-4, the diagram and the boundaries are of the founding paper's model. Without --base nothing
is measured.

Criterion: no time is longer than 1.25 times the time in the other checkout. Repeated comparisons differ by up to 15 %.

Running time: 3 minutes on two cores, with --quick one.
"""

from pathlib import Path

from validation._tools.checkouts import BASE, run_side_by_side
from validation._tools.report import Verdict, options
from validation._tools.tables import markdown_table

SCRIPTS = [Path(__file__).with_name(name) for name in ("_gamp_times.py", "_state_evolution_times.py")]
LIMIT = 1.25


def main():
    args = options(__doc__, base=BASE)
    verdict = Verdict("checkout_times", args)
    rows = {}
    for script in SCRIPTS if args.base else []:
        for old, new in zip(*run_side_by_side(args.base, script, *["quick"] * args.quick), strict=True):
            ratio = new["seconds"] / old["seconds"]
            rows[old["name"]] = {"base": old["seconds"], "here": new["seconds"], "ratio": ratio}
            words = f"{old['name']}: {new['seconds']:.3f} s against {old['seconds']:.3f} s, {ratio:.2f} of the time"
            verdict.check(args.quick or ratio <= LIMIT, f"{words}, at most {LIMIT}")
    lines = [[name, f"{row['base']:.3f}", f"{row['here']:.3f}", f"{row['ratio']:.2f}"] for name, row in rows.items()]
    verdict.write_table(markdown_table(["CPU seconds", "base", "this checkout", "ratio"], lines))
    verdict.end({"rows": rows})


if __name__ == "__main__":
    main()
