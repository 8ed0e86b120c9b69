"""The stated errors of state evolution on random problems, against a finer and an independent computation.

Two hundred fixed points of random problems (`validation.claims._fixed_point_references`: the paper's model, ω, α, A
random, σ from .2 to 2, λ from 1e-3 to 1, both branches) are solved by the public function at one of four accuracies
each. Differences from the references are compared with the errors that the results state. A number whose reference may
itself be off by more than the stated error is counted apart, unless the two agree all the same. For the looser two
accuracies randomised points, which know nothing of panels and jumps, check the reference: one Newton step from it on
their averages must not lead away by more than their own error.

Criterion: for each accuracy and each kind of number at least 95 % of the differences are within the stated error; no
result that says converged has an error above the accuracy in overlaps, losses or V̂; every answer is on its branch; and
at least 90 % of the points agree with the reference. With --quick there are a few problems, and no difference may be
above three errors.
"""

import time

import numpy as np

import gamp_attention as ga
from validation._tools.report import Verdict, folder, options, pool
from validation._tools.trials import run_trials
from validation.claims._fixed_point_references import ASKED, MAX_ITER, problem, reference

PROBLEMS, QUICK = 200, 4
MAX_WORK = 3e5  # proximal problems of an average, fewer than the references may take
SHARE, FEW, AGREE = 0.95, 3.0, 0.9
KINDS = ("q", "m", "theta", "V", "train_loss", "test_error", "V_hat", "jump_mass", "replicon")
OVERLAPS = KINDS[:4]
NAMES = {"theta": "θ", "train_loss": "ε_t", "test_error": "ε_g", "V_hat": "V̂", "jump_mass": "jump mass"}
STORED = ("number", "attempt", "rtol", "status", "seconds", "relative_error", "worst", "numbers")
KNOWN = ("branch", "alpha", "omega", "sigma", "lam", "A", "level", "numbers", "moved", "judged")
SOLVED = (ga.Status.CONVERGED, ga.Status.INACCURATE)


def answer(number, attempt):
    """Numbers and errors as the public function states them."""
    model, alpha, branch, rtol, _ = problem(number, attempt)
    began = time.process_time()
    se = ga.solve_state_evolution(
        model, alpha, branch, rtol=rtol, max_iter=MAX_ITER, max_work=MAX_WORK, stability=False
    )
    row = {"rtol": rtol, "status": se.status.value, "seconds": time.process_time() - began}
    if se.status not in SOLVED:
        return row
    pairs = {kind: (getattr(se.overlaps, kind), getattr(se.overlaps_error, kind)) for kind in OVERLAPS}
    pairs |= {kind: (getattr(se, kind), getattr(se, f"{kind}_error")) for kind in KINDS if kind not in OVERLAPS}
    flat = {kind: [np.abs(np.ravel(v)).tolist() for v in pair] for kind, pair in pairs.items()}
    return row | {"relative_error": se.relative_error, "numbers": flat, "worst": worst(se)}


def worst(se):
    """The largest of the errors that CONVERGED is about, each in its own unit."""
    o, e, root = se.overlaps, se.overlaps_error, np.sqrt(np.abs(se.overlaps.q).max())
    relative = [
        np.max(each) / np.abs(unit).max() for each, unit in ((e.q, o.q), (e.V, o.V), (se.V_hat_error, se.V_hat))
    ]
    relative += [np.max(e.m) / root, np.max(e.theta) / root]
    return float(max(*relative, se.train_loss_error / abs(se.train_loss), se.test_error_error / se.test_error))


def compared(row, known):
    """For each kind of number: differences and uncertainties of the reference, both in units of stated errors."""
    found = {}
    for kind in KINDS:
        beside = known["judged"].get(kind) or {part: known[part].get(kind) for part in ("numbers", "moved")}
        if beside["numbers"] is None:
            continue
        value, error = map(np.array, row["numbers"][kind])
        reference, moved = np.abs(beside["numbers"]), np.array(beside["moved"])
        there = (reference > 0) & np.isfinite(error)
        found[kind] = np.stack([np.abs(value - reference)[there], moved[there]]) / error[there]
    return found


def table_of(rows, references):
    """Shares within the stated errors, their largest ratio, and how many numbers are known too little, by accuracy."""
    table = {}
    for rtol in ASKED:
        mine = [compared(row, known) for row, known in zip(rows, references, strict=True)
                if row["rtol"] == rtol and "numbers" in row]  # fmt: skip
        for kind in KINDS:
            ratios, unknown = np.concatenate([np.zeros((2, 0)), *(each[kind] for each in mine if kind in each)], axis=1)
            sure = ratios[(unknown <= 1) | (ratios <= 1)]
            table[f"{rtol:g}", kind] = {
                "numbers": len(sure), "unsure": len(ratios) - len(sure),
                "share": float(np.mean(sure <= 1)) if len(sure) else np.nan,
                "median": float(np.median(sure)) if len(sure) else np.nan,
                "largest": float(sure.max()) if len(sure) else np.nan,
            }  # fmt: skip
    return table


def markdown(table):
    """A row for each kind of number, a column for each accuracy: the share, and in brackets the largest ratio."""
    lines = [
        "| within the stated error | " + " | ".join(f"{r:g}" for r in ASKED) + " |",
        "|" + "---|" * (1 + len(ASKED)),
    ]
    for kind in KINDS:
        cells = [table[f"{rtol:g}", kind] for rtol in ASKED]
        words = [
            f"{100 * c['share']:.1f} % of {c['numbers']} ({c['largest']:.2g})" if c["numbers"] else "–" for c in cells
        ]
        lines.append(f"| {NAMES.get(kind, kind)} | " + " | ".join(words) + " |")
    return "\n".join(lines) + "\n"


def main():
    found = options(__doc__, workers=True)
    verdict = Verdict("stated_errors", found)
    numbers = range(QUICK) if found.quick else range(PROBLEMS)
    with pool(found) as executor:
        asked = [{"number": number} for number in numbers]
        references = run_trials(folder(found, "fixed_point_references"), reference, asked, executor)
        asked = [{"number": known["number"], "attempt": known["attempt"]} for known in references]
        rows = run_trials(folder(found, verdict.name), answer, asked, executor)
    verdict.check(len(rows) == len(numbers), f"{len(rows)} of {len(numbers)} problems ended")
    ended = {status: sum(row["status"] == status for row in rows) for status in sorted({row["status"] for row in rows})}
    solved = sum("numbers" in row for row in rows)
    verdict.check(solved == len(rows), f"{solved} of {len(rows)} branches were found again; statuses: {ended}")
    table = table_of(rows, references)
    print(markdown(table))
    for (rtol, kind), cell in table.items():
        if cell["numbers"]:
            fine = cell["share"] >= SHARE if not found.quick else cell["largest"] <= FEW
            verdict.check(
                fine, f"rtol {rtol}, {kind}: {100 * cell['share']:.1f} % of {cell['numbers']} within the stated error, "
                f"median {cell['median']:.2g}, at most {cell['largest']:.2g} times; {cell['unsure']} known too little"
            )  # fmt: skip
    loose = [row["number"] for row in rows if row["status"] == "converged" and not row["worst"] <= 1.001 * row["rtol"]]
    verdict.check(not loose, f"converged means within rtol; not: {loose}")
    away = np.concatenate([np.zeros(0), *(known["beside"] for known in references if "beside" in known)])
    if len(away):
        share = float(np.mean(away <= 1))
        verdict.check(
            share >= AGREE, f"randomised points agree with the reference in {100 * share:.1f} % of {len(away)}"
        )
    verdict.path(".md").write_text(markdown(table))
    stored = [
        {name: row[name] for name in STORED if name in row} | {"reference": {name: known[name] for name in KNOWN}}
        for row, known in zip(rows, references, strict=True)
    ]
    verdict.end({"table": {f"{r} {k}": v for (r, k), v in table.items()}, "statuses": ended, "rows": stored})


if __name__ == "__main__":
    main()
