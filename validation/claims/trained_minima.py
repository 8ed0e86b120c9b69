"""Training that begins with descents ends no higher than training by message passing alone.

Method: 100 random problems with 3 to 10 tokens, one or two columns and more than two fields a sample (outputs of a
softmax layer, permuted tokens, sorted tokens; with and without noise), d from 30 to 60, α from 0.6 to 2.2. Two
processes train on each with default settings at the same time: this checkout, and with --base PATH a checkout from
before descents (commit e44a479a), in which eight runs of message passing were compared.

Criterion: every run ends at a minimum; with --base, the training loss is nowhere higher by more than a relative
difference of 1e-6. Processor times, compilation included, are reported. (Noise page of the manual.)
"""

from pathlib import Path

import numpy as np

from validation._tools.checkouts import BASE, run_side_by_side
from validation._tools.report import Verdict, options
from validation.claims import _trained_problems

PROBLEMS, EQUAL = 100, 1e-6
SCRIPT = Path(__file__).with_name("_trained_problems.py")


def main():
    args = options(__doc__, base=BASE)
    verdict = Verdict("trained_minima", args)
    base = args.base or Path(_trained_problems.__file__).parents[2]
    before, now = run_side_by_side(base, SCRIPT, 8 if args.quick else PROBLEMS)
    solved = sum(row["converged"] and row["minimum"] for row in now)
    verdict.check(solved == len(now), f"{solved} of {len(now)} runs end at a minimum")
    change = np.array([row["loss"] / other["loss"] - 1 for row, other in zip(now, before, strict=True)])
    higher, lower = int(np.sum(change > EQUAL)), int(np.sum(change < -EQUAL))
    seconds = [sum(row["seconds"] for row in rows) for rows in (before, now)]
    if args.base:
        verdict.check(higher == 0, f"{higher} runs end higher than with {args.base}, {lower} end lower")
        print(f"processor time {seconds[1]:.0f} s against {seconds[0]:.0f} s")
    verdict.end({"runs": now, "base": before, "change": change.tolist(), "seconds": seconds})


if __name__ == "__main__":
    main()
