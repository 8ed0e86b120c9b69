"""Leave-one-out errors of random calls on data of twelve distributions, against exact refits by independent code.

Rows of independent, correlated, rescaled, heavy-tailed, binary, clustered, repeated and other features
(`_own_features`), in some calls with other scales of rows and columns; 5 to 60 dimensions, .2 to 50 samples for each;
squared, logistic, multinomial and phase retrieval losses and attention of ranks 1 and 2, with ridge, elastic net and
lasso, over four decades of λ. Each call is `run_gamp` with its defaults, followed by `leave_one_out` with its defaults,
and is compared with exact refits by numpy, scipy, scikit-learn or torch (`_exact_refits`) of up to 60 random samples,
in the mean over these samples.

Criterion: estimates that are trusted and off by more than 5 % and by more than three standard errors are under 1 % of
all calls that converged to a minimum; estimates within these bounds that are not trusted are under 10 %. The median
processor time is at most that of the training.
"""

import time
from typing import Any

import numpy as np

import gamp_attention as ga
from validation._tools.report import Verdict, folder, options, pool
from validation._tools.trials import run_trials
from validation.claims._exact_refits import exact_errors
from validation.claims._own_features import FAMILIES, FEATURES, problem

BLOCK, BLOCKS, QUICK_BLOCK, QUICK_BLOCKS = 25, 80, 10, 3
REFITTED = {"attention": 10, "attention, elastic net": 6, "multinomial": 16}  # samples that are refitted; 60 of others
WRONG, DOUBTED = 0.01, 0.1


def call(seed: int, number: int) -> dict[str, Any]:
    """One call beside exact refits."""
    rng = np.random.default_rng([seed, number, 52])
    family, features, data = problem(rng)
    began = time.process_time()
    gamp = ga.run_gamp(data, "spectral" if family.startswith(("attention", "phase")) else "random")
    trained = time.process_time()
    loo = ga.leave_one_out(data, gamp)
    ended = time.process_time()
    row = {
        "family": family, "features": features, "n": data.n_samples, "d": data.dim, "L": data.n_tokens,
        "rank": data.rank,
        "lam": data.lam, "minimum": bool(gamp.converged and gamp.is_minimum), "trusted": loo.trusted,
        "error": loo.test_error_error, "test_error": loo.test_error, "share": (ended - trained) / (trained - began),
        "message": loo.message, "seed": seed, "number": number,
    }  # fmt: skip
    if not row["minimum"]:
        return row | {"reached": np.nan, "estimate": np.nan, "exact": np.nan}
    samples = np.sort(rng.permutation(data.n_samples)[: REFITTED.get(family, 60)])
    exact = exact_errors(data, gamp.Q, samples)
    there = np.isfinite(exact)
    means = {name: float(np.mean(values[there])) if there.any() else np.nan
             for name, values in (("estimate", loo.errors[samples]), ("exact", exact))}  # fmt: skip
    return row | {"reached": float(there.mean())} | means


def block(seed: int, size: int) -> dict[str, Any]:
    """Several calls."""
    return {"calls": [call(seed, number) for number in range(size)]}


def counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    """How many calls ended how."""
    known = [row for row in rows if row["minimum"] and row["reached"] >= 0.5]
    apart = [abs(row["estimate"] - row["exact"]) for row in known]
    beyond = [a > 0.05 * row["exact"] for a, row in zip(apart, known, strict=True)]
    wrong = [b and a > 3 * row["error"] for a, b, row in zip(apart, beyond, known, strict=True)]
    trusted = [row["trusted"] for row in known]
    return {
        "calls": len(rows), "not a minimum": sum(not row["minimum"] for row in rows), "compared": len(known),
        "trusted, wrong": sum(t and w for t, w in zip(trusted, wrong, strict=True)),
        "not trusted, right": sum(not t and not w for t, w in zip(trusted, wrong, strict=True)),
        "not trusted, wrong": sum(not t and w for t, w in zip(trusted, wrong, strict=True)),
        "trusted, off by 5 %": sum(t and b for t, b in zip(trusted, beyond, strict=True)),
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """Counts of each family, of each distribution, and of all."""
    parts = [(name, [row for row in rows if row["family"] == name]) for name in FAMILIES]
    parts += [(make.__name__, [row for row in rows if row["features"] == make.__name__]) for make in FEATURES]
    parts = [(name.replace("_", " "), counts(mine)) for name, mine in (*parts, ("all", rows)) if mine]
    lines = ["| | " + " | ".join(parts[-1][1]) + " |", "|" + "---|" * (1 + len(parts[-1][1]))]
    lines += [f"| {name} | " + " | ".join(map(str, found.values())) + " |" for name, found in parts]
    return "\n".join(lines) + "\n"


def main() -> None:
    found = options(__doc__ or "", workers=True, blocks={"type": int, "help": "blocks of calls", "default": None})
    verdict = Verdict("own_data_calls", found)
    number, size = (QUICK_BLOCKS, QUICK_BLOCK) if found.quick else (found.blocks or BLOCKS, BLOCK)
    with pool(found) as executor:
        asked = [{"seed": seed, "size": size} for seed in range(number)]
        blocks = run_trials(folder(found, verdict.name), block, asked, executor)
    rows = [row for each in blocks for row in each["calls"]]
    verdict.check(len(rows) == number * size, f"{len(rows)} of {number * size} calls ended")
    total = counts(rows)
    verdict.check(
        total["compared"] > 0.95 * (len(rows) - total["not a minimum"]), f"{total['compared']} calls have exact refits"
    )
    share = total["trusted, wrong"] / total["compared"]
    verdict.check(share < WRONG, f"{100 * share:.2g} % are trusted and wrong: {total['trusted, wrong']} calls")
    share = total["not trusted, right"] / total["compared"]
    verdict.check(
        share < DOUBTED, f"{100 * share:.2g} % are right and not trusted: {total['not trusted, right']} calls"
    )
    cost = float(np.median([row["share"] for row in rows]))
    verdict.check(cost < (4.0 if found.quick else 1.0), f"the median cost is {100 * cost:.2g} % of the training")
    print(table(rows))
    verdict.path(".md").write_text(table(rows))
    verdict.end({"rows": rows, "counts": total})


if __name__ == "__main__":
    main()
