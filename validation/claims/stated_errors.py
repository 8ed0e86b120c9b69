"""The stated errors of state evolution on random problems, against a finer and an independent computation.

The paper's model with random ω, α, A, σ from .2 to 2 and λ from 1e-3 to 1, both branches, four accuracies asked for.
The reference is the split rule two levels finer than the result's. Where the reference may itself be off by more than
the stated error, as told by its last level, the number is counted apart. On the looser half randomised points, which
know nothing of panels and jumps, check the reference: one Newton step from it on their averages must not lead away by
more than their own error.

Criterion: for each accuracy and each kind of number at least 95 % of the differences are within the stated error, and
no result that says converged has an error above the accuracy in any of them; at least 90 % of the points agree with the
reference. With --quick there are a few problems, and no difference may be above three errors.
"""

import time
from dataclasses import replace

import numpy as np

import gamp_attention as ga
from gamp_attention._core.spread import half_width
from gamp_attention.state_evolution.fixed_points.errors import LOSSES, point_of, response_slopes
from gamp_attention.state_evolution.fixed_points.newton import newton, newton_step
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap
from gamp_attention.state_evolution.fixed_points.refinement import refine
from gamp_attention.state_evolution.fixed_points.search import fixed_point
from gamp_attention.state_evolution.fixed_points.solve import START, is_off, named_start
from gamp_attention.state_evolution.fixed_points.stability import replicon
from gamp_attention.state_evolution.rules.lines import WorkExceeded
from gamp_attention.state_evolution.rules.sobol import SobolRule
from gamp_attention.state_evolution.rules.split import SplitRule
from validation._tools.report import Verdict, folder, options, pool
from validation._tools.trials import run_trials

PROBLEMS, QUICK = 200, 6
ASKED = (1e-2, 1e-3, 1e-4, 1e-5)
BRANCHES = ("semantic", "positional")
MAX_WORK, REFERENCE_WORK, MAX_ITER = 1e6, 8e6, 12
ROUGH = 4e5  # proximal problems of an average of a search
FINER = 2  # levels
POINTS = 2**14  # of a replica
SHARE, FEW, AGREE = 0.95, 3.0, 0.9
KINDS = ("q", "m", "theta", "V", "train_loss", "test_error", "V_hat", "jump_mass", "replicon")


def problem(number):
    """A random model, α, a branch and an accuracy; two of three models are the same for tokens reversed."""
    rng = np.random.default_rng([77, number])
    a, b = rng.uniform(0.3, 0.95, 2)
    if number % 3:
        b = a
    model = ga.paper_model(
        omega=rng.uniform(0, 0.8), sigma=rng.uniform(0.2, 2.0), lam=10 ** rng.uniform(-3, 0), A=((a, 1 - a), (1 - b, b))
    )
    return model, float(np.exp(rng.uniform(np.log(0.3), np.log(5)))), BRANCHES[number % 2], ASKED[number // 2 % 4]


def judged(F, overlaps):
    """Jump mass and replicon."""
    hats = F.images(overlaps, squares=True)[0].hats
    return hats.jump_mass, replicon(F.model, hats, F.response)


def one(number):
    """Ratios of differences to stated errors, for each kind of number; and how well the reference is known."""
    model, alpha, branch, rtol = problem(number)
    row = {"sigma": float(np.sqrt(model.coordinates.trace[0])), "branch": branch, "rtol": rtol, "alpha": alpha}
    began = time.perf_counter()
    F = OverlapMap(model, alpha, SplitRule(max_work=ROUGH))
    root = fixed_point(F, named_start(F, branch, 0), F.rule.rough, MAX_ITER, START.relax_named)
    if not root.status.converged or is_off(branch, root.overlaps):
        return row | {
            "status": root.status.value if not root.status.converged else "lost",
            "seconds": time.perf_counter() - began,
        }
    root = replace(root, F=F.on(SplitRule(max_work=MAX_WORK)))
    try:
        se, finest = refine(root, rtol, MAX_WORK)
    except WorkExceeded:
        return row | {"status": "max_iter", "seconds": time.perf_counter() - began}
    row |= {
        "status": se.status.value,
        "seconds": time.perf_counter() - began,
        "error": se.relative_error,
        "level": finest.rule.level,
    }
    packing, slopes, points = root.packing, response_slopes(root), []
    x, J = se.overlaps, root.jacobian
    try:
        for finer in range(1, FINER + 1):
            G = finest.on(SplitRule(finest.rule.level + finer, REFERENCE_WORK))
            last = newton(G, x, 0.03 * G.rule.tol, jacobian=J, packing=packing)
            points.append(point_of(last, slopes, 1e-7))
            x, J = points[-1].overlaps, last.jacobian
    except WorkExceeded:
        pass
    if len(points) < FINER:
        return row | {"reference": None}
    return row | compared(se, points, finest, packing) | beside(number, points[-1], rtol)


def compared(se, points, finest, packing):
    """Differences in units of stated errors, and the reference's own."""
    ratios, known = {}, {}
    fine, before = points[-1], points[-2]
    for kind in ("q", "m", "theta", "V"):
        value, error, reference, other = (
            getattr(o, kind).ravel() for o in (se.overlaps, se.overlaps_error, fine.overlaps, before.overlaps)
        )
        there = np.abs(reference) > 0
        ratios[kind], known[kind] = (np.abs(v - reference)[there] / error[there] for v in (value, other))
    k = len(fine.best)
    pairs = [("train_loss", k), ("test_error", k + 1)]
    for kind, at in pairs:
        error = getattr(se, f"{kind}_error")
        ratios[kind], known[kind] = (
            np.array([abs(v - fine.numbers[at])]) / error for v in (getattr(se, kind), before.numbers[at])
        )
    V_hat, other = (p.numbers[k + LOSSES :] for p in (fine, before))
    ratios["V_hat"], known["V_hat"] = (np.abs(v - V_hat) / se.V_hat_error.ravel() for v in (se.V_hat.ravel(), other))
    try:
        levels = [judged(finest.on(SplitRule(level, REFERENCE_WORK)), fine.overlaps) for level in (2, 3)]
        error = se.jump_mass_error.ravel()
        ratios["jump_mass"], known["jump_mass"] = (
            np.abs(v.ravel() - levels[1][0].ravel()) / error for v in (se.jump_mass, levels[0][0])
        )
        ratios["replicon"], known["replicon"] = (
            np.array([abs(v - levels[1][1]) / se.replicon_error]) for v in (se.replicon, levels[0][1])
        )
    except WorkExceeded:
        pass
    return {
        "ratios": {k: v.tolist() for k, v in ratios.items()},
        "known": {k: v.tolist() for k, v in known.items()},
        "reference": points[-1].root.F.rule.level,
    }


def beside(number, fine, rtol):
    """How far randomised points lead from the reference, in units of their error and the accuracy asked for."""
    if rtol < 1e-3:
        return {}
    F, packing = fine.root.F, fine.root.packing
    here = packing.pack(fine.overlaps)
    _, samples = F.on(SobolRule(POINTS, 8, seed=(number,))).images(fine.overlaps)
    moves = np.array([newton_step(fine.root.jacobian, packing.pack(each.overlaps) - here) for each in samples])
    away = np.abs(moves.mean(axis=0)) / (half_width(moves) + rtol)
    return {"beside": away.tolist()}


def table_of(rows):
    """Shares within the stated errors, their largest ratio, and how many numbers are known too little, by accuracy."""
    table = {}
    for rtol in ASKED:
        mine = [row for row in rows if row["rtol"] == rtol and row.get("ratios")]
        for kind in KINDS:
            pairs = [
                (r, n)
                for row in mine
                for r, n in zip(row["ratios"].get(kind, []), row["known"].get(kind, []), strict=True)
            ]
            sure = np.array([r for r, n in pairs if n <= 1 or r <= 1])
            table[f"{rtol:g}", kind] = {
                "numbers": len(sure), "unsure": len(pairs) - len(sure),
                "share": float(np.mean(sure <= 1)) if len(sure) else np.nan,
                "largest": float(sure.max()) if len(sure) else np.nan,
            }  # fmt: skip
    return table


def markdown(table):
    """A row for each kind of number, a column for each accuracy: the share, and in brackets the largest ratio."""
    names = {"theta": "θ", "train_loss": "ε_t", "test_error": "ε_g", "V_hat": "V̂", "jump_mass": "jump mass"}
    lines = [
        "| within the stated error | " + " | ".join(f"{r:g}" for r in ASKED) + " |",
        "|" + "---|" * (1 + len(ASKED)),
    ]
    for kind in KINDS:
        cells = [table[f"{rtol:g}", kind] for rtol in ASKED]
        words = [
            f"{100 * c['share']:.1f} % of {c['numbers']} ({c['largest']:.1f})" if c["numbers"] else "–" for c in cells
        ]
        lines.append(f"| {names.get(kind, kind)} | " + " | ".join(words) + " |")
    return "\n".join(lines) + "\n"


def main():
    found = options(__doc__, workers=True)
    verdict = Verdict("stated_errors", found)
    numbers = range(QUICK) if found.quick else range(PROBLEMS)
    with pool(found) as executor:
        rows = run_trials(folder(found, verdict.name), one, [{"number": number} for number in numbers], executor)
    verdict.check(len(rows) == len(numbers), f"{len(rows)} of {len(numbers)} problems ended")
    ended = {status: sum(row["status"] == status for row in rows) for status in sorted({row["status"] for row in rows})}
    judged_rows = [row for row in rows if row.get("ratios")]
    print(f"statuses: {ended}; {len(judged_rows)} fixed points with a reference")
    table = table_of(judged_rows)
    print(markdown(table))
    for (rtol, kind), cell in table.items():
        if not cell["numbers"]:
            continue
        fine = cell["share"] >= SHARE if not found.quick else cell["largest"] <= FEW
        verdict.check(
            fine, f"rtol {rtol}, {kind}: {100 * cell['share']:.1f} % of {cell['numbers']} within the stated error, "
            f"at most {cell['largest']:.1f} times; {cell['unsure']} known too little"
        )  # fmt: skip
    loose = [
        row["number"] for row in judged_rows if row["status"] == "converged" and row["error"] > row["rtol"] * 1.001
    ]
    verdict.check(not loose, f"converged means within rtol; not: {loose}")
    beside_all = np.concatenate([row["beside"] for row in judged_rows if row.get("beside")] or [np.zeros(0)])
    if len(beside_all):
        share = float(np.mean(beside_all <= 1))
        verdict.check(
            share >= AGREE, f"randomised points agree with the reference in {100 * share:.1f} % of {len(beside_all)}"
        )
    verdict.path(".md").write_text(markdown(table))
    verdict.end({"table": {f"{r} {k}": v for (r, k), v in table.items()}, "statuses": ended, "rows": rows})


if __name__ == "__main__":
    main()
