"""CPU times of message passing and state evolution in two checkouts of the package, side by side.

Method: with --base PATH, the same scripts run at the same time in this checkout and in another, each in a process with
one thread. Compilation is not counted, and the fastest of some repeats counts. An iteration is the difference of a long
and a short run. Ratios of two processes differ by up to 15 %, because the place of their code in memory differs, so
each script runs in six pairs of new processes: a ratio is the geometric mean, with its standard error. The base of the
stored comparison is 9144762, and "two tokens", the solutions to 1e-4, the diagram and the boundaries are of the
founding paper's model. Without --base nothing is measured.

Criterion: no call takes more than 1.05 times the time in the other checkout, and the standard errors of the ratios are
at most 0.03.

Running time: 8 minutes on two cores, with --quick one.
"""

from pathlib import Path

import numpy as np

from validation._tools.checkouts import BASE, run_rounds
from validation._tools.report import Verdict, options
from validation._tools.tables import markdown_table, mean_and_error

SCRIPTS = [Path(__file__).with_name(name) for name in ("_gamp_times.py", "_state_evolution_times.py")]
LIMIT, ACCURACY, ROUNDS = 1.05, 0.03, 6


def main():
    args = options(__doc__, base=BASE)
    verdict = Verdict("checkout_times", args)
    rows = {}
    for script in SCRIPTS if args.base else []:
        rounds = run_rounds(args.base, script, 2 if args.quick else ROUNDS, *["quick"] * args.quick)
        for numbers in zip(*(zip(*both, strict=True) for both in rounds), strict=True):
            name = numbers[0][0]["name"]
            old, new = ([pair[side]["seconds"] for pair in numbers] for side in (0, 1))
            mean, error = mean_and_error(np.log(new) - np.log(old))
            ratio = float(np.exp(mean))
            rows[name] = {"base": min(old), "here": min(new), "ratio": ratio, "error": ratio * error}
            words = f"{name}: {min(new):.3f} s against {min(old):.3f} s, {ratio:.3f} +- {ratio * error:.3f} of the time"
            verdict.check(args.quick or (ratio <= LIMIT and ratio * error <= ACCURACY), f"{words}, at most {LIMIT}")
    lines = [
        [name, f"{row['base']:.3f}", f"{row['here']:.3f}", f"{row['ratio']:.3f} ± {row['error']:.3f}"]
        for name, row in rows.items()
    ]
    verdict.write_table(markdown_table(["CPU seconds", "base", "this checkout", "ratio"], lines))
    verdict.end({"rows": rows})


if __name__ == "__main__":
    main()
