"""The stated errors of state evolution cover the difference to a finer and an independent computation.

Method: 200 fixed points of random problems (the paper's model with random ω, α, A, σ from 0.2 to 2 and λ from 1e-3 to
1, both branches) are solved by the public function at one of four accuracies each. A problem whose branch does not
exist, or is not found in a few iterations, is drawn again. References use panels level by level, until the last
change of every number is a small fraction of the problem's accuracy, or an average would take too many proximal
problems; the last change is stored. Differences from the references are compared with the stated errors. A number whose
reference may itself be off by more than the stated error is counted separately, unless the two agree. For the two
looser accuracies randomized points, which use neither panels nor jumps, check the reference: one Newton step from it on
their averages must not lead away by more than their error.

Criterion: for each accuracy and each kind of number at least 95 % of the differences are within the stated error; no
converged result has an error above the accuracy in overlaps, losses or V̂; every answer is on its branch; and at least
90 % of the points agree with the reference. With --quick there are a few problems, and no difference may be above three
errors. (Page "When does it apply to my data?" of the manual.)
"""

import time
from typing import Any

import numpy as np

import gamp_attention as ga
from gamp_attention._tools.statistics import half_width
from gamp_attention.theory.fixed_points.newton import newton
from gamp_attention.theory.fixed_points.observables import replicon
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.fixed_points.refinement import LOSSES, Point, point_of
from gamp_attention.theory.rules.choice import first_rule
from gamp_attention.theory.rules.rule import Rule, WorkExceeded
from gamp_attention.theory.rules.sobol import SobolRule
from validation._tools.report import run_claim
from validation._tools.tables import markdown_table

ASKED = (1e-2, 1e-3, 1e-4, 1e-5)
BRANCHES = ("semantic", "positional")
DRAWS = 40  # number of draws of a problem, at most, until its branch is found
MAX_ITER = 16  # number of iterations of the search for a fixed point, at most
WORK = 1.2e6  # number of proximal problems of an average of the reference, at most
FIRST, LAST = 1, 6  # first and last level of the reference
SETTLED = 0.05  # last change of a reference, at most, in units of the accuracy
STABILITY_LEVELS = (1, 2, 3)  # levels of jump mass and replicon
POINTS, REPLICAS = 2**14, 8  # number of randomised points and of their replicas
CHECKED = 1e-3  # smallest accuracy that randomised points can check


def panel_rule(model: ga.Model, level: int) -> Rule:
    """Return the rule of averages by panels, at a level of accuracy."""
    return first_rule("auto", model, (0,), WORK).at_level(level)


def draw_model(rng: np.random.Generator, number: int) -> tuple[ga.Model, float, dict[str, Any]]:
    """Return a random model and α; two of three models are symmetric under reversal of the tokens."""
    a, b = rng.uniform(0.3, 0.95, 2)
    if number % 3:
        b = a
    numbers = {"omega": rng.uniform(0, 0.8), "sigma": rng.uniform(0.2, 2.0), "lam": 10 ** rng.uniform(-3, 0)}
    alpha = float(np.exp(rng.uniform(np.log(0.3), np.log(5))))
    return ga.paper_model(**numbers, A=((a, 1 - a), (1 - b, b))), alpha, numbers | {"A": [a, b]}


def draw_problem(number: int, attempt: int) -> tuple[ga.Model, float, str, float, dict[str, Any]]:
    """Return model, α, branch and accuracy of one draw, and the model's parameters."""
    model, alpha, numbers = draw_model(np.random.default_rng([77, number, attempt]), number)
    return model, alpha, BRANCHES[number % 2], ASKED[number // 2 % 4], numbers


def compute_reference(number: int) -> dict[str, Any]:
    """Return the fixed point of one problem, its change by the last level, and the check by randomised points."""
    ended = []
    for attempt in range(DRAWS):
        model, alpha, branch, rtol, numbers = draw_problem(number, attempt)
        result = ga.solve_state_evolution(
            model, alpha, branch, rtol=1e-2, max_iter=MAX_ITER, max_work=WORK / 4, stability=False
        )
        ended.append(result.status.value)
        if result.status in (ga.Status.CONVERGED, ga.Status.INACCURATE):
            break
    else:
        raise RuntimeError(f"no fixed point in {DRAWS} draws: {ended}")
    row = {"attempt": attempt, "ended": ended, "branch": branch, "rtol": rtol, "alpha": alpha, **numbers}
    F, x, points = OverlapMap(model, alpha, panel_rule(model, FIRST)), result.overlaps, []
    root = newton(F, x, F.rule.initial_tolerance)
    slopes, packing, J = root.response_slopes, root.packing, root.jacobian
    for level in range(FIRST, LAST + 1):
        G = F.on(panel_rule(model, level))
        try:
            last = newton(G, x, max(SETTLED * rtol, 0.03 * G.rule.tol), jacobian=J, packing=packing)
            points.append(point_of(last, slopes, 1e-3 * rtol))
        except WorkExceeded:
            break
        x, J = points[-1].overlaps, last.jacobian
        if len(points) > 1 and (compute_change(points) <= SETTLED * rtol * points[-1].units).all():
            break
    fine = points[-1]
    row |= {"level": fine.root.F.rule.level, "numbers": split_numbers(fine, fine.numbers)}
    row |= {"moved": split_numbers(fine, compute_change(points)), "judged": refine_stability(F, fine)}
    return row | ({"beside": check_by_random_points(number, fine, rtol)} if rtol >= CHECKED else {})


def compute_change(points: list[Point]) -> np.ndarray:
    """Return the change of each number by the last level; infinite if there is only one level."""
    if len(points) == 1:
        return np.full(len(points[0].numbers), np.inf)
    return np.abs(points[-1].numbers - points[-2].numbers) + points[-1].uncertain


def split_numbers(point: Point, numbers: np.ndarray) -> dict[str, list[float]]:
    """Return a point's numbers as flat overlaps, losses and V̂; absolute values, as overlaps have either sign."""
    k = len(point.best)
    overlaps = point.root.packing.unpack(numbers[:k]).arrays()
    values_by_kind = {name: np.abs(values).ravel().tolist() for name, values in overlaps.items()}
    values_by_kind |= {
        name: [float(value)] for name, value in zip(("train_loss", "test_error"), numbers[k:], strict=False)
    }
    return values_by_kind | {"V_hat": numbers[k + LOSSES :].tolist()}


def refine_stability(F: OverlapMap, fine: Point) -> dict[str, dict[str, list[float]]]:
    """Return jump mass and replicon, and their changes by the last level."""
    values: list[dict[str, np.ndarray]] = []
    for level in STABILITY_LEVELS:
        try:
            hats = F.on(panel_rule(F.model, level)).images(fine.overlaps, squares=True)[0].hats
        except WorkExceeded:
            break
        values.append(
            {"jump_mass": hats.jump_mass.ravel(), "replicon": np.array([replicon(F.model, hats, F.response)])}
        )
    if len(values) < 2:
        return {}
    return {
        kind: {"numbers": v.tolist(), "moved": np.abs(v - values[-2][kind]).tolist()} for kind, v in values[-1].items()
    }


def check_by_random_points(number: int, fine: Point, rtol: float) -> list[float]:
    """Return the deviation by one Newton step on randomised points, in units of their error and the accuracy."""
    F, packing = fine.root.F, fine.root.packing
    here = packing.pack(fine.overlaps)
    _, samples = F.on(SobolRule(POINTS, REPLICAS, seed=(number,))).images(fine.overlaps)
    moves = np.array([fine.root.step(packing.pack(each.overlaps) - here) for each in samples])
    return (np.abs(moves.mean(axis=0)) / (half_width(moves) + rtol)).tolist()


PROBLEMS, QUICK = 200, 4
MAX_WORK = 3e5  # number of proximal problems of an average, fewer than for references
SHARE, FEW, AGREE = 0.95, 3.0, 0.9
KINDS = ("q", "m", "theta", "V", "train_loss", "test_error", "V_hat", "jump_mass", "replicon")
OVERLAPS = KINDS[:4]
NAMES = {"theta": "θ", "train_loss": "ε_t", "test_error": "ε_g", "V_hat": "V̂", "jump_mass": "jump mass"}
SOLVED = (ga.Status.CONVERGED, ga.Status.INACCURATE)


def solve(number, attempt):
    """Return numbers and errors as the public function states them."""
    model, alpha, branch, rtol, _ = draw_problem(number, attempt)
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
    return row | {"relative_error": se.relative_error, "numbers": flat, "worst": find_worst_error(se)}


def find_worst_error(se):
    """Return the largest error that the status CONVERGED limits, each in its unit."""
    o, e, root = se.overlaps, se.overlaps_error, np.sqrt(np.abs(se.overlaps.q).max())
    relative = [
        np.max(each) / np.abs(unit).max() for each, unit in ((e.q, o.q), (e.V, o.V), (se.V_hat_error, se.V_hat))
    ]
    relative += [np.max(e.m) / root, np.max(e.theta) / root]
    return float(max(*relative, se.train_loss_error / abs(se.train_loss), se.test_error_error / se.test_error))


def compare_numbers(row, known):
    """Return, for each kind, differences and uncertainties of the reference in units of stated errors."""
    differences = {}
    for kind in KINDS:
        beside = known["judged"].get(kind) or {part: known[part].get(kind) for part in ("numbers", "moved")}
        if beside["numbers"] is None:
            continue
        value, error = map(np.array, row["numbers"][kind])
        reference, moved = np.abs(beside["numbers"]), np.array(beside["moved"])
        there = (reference > 0) & np.isfinite(error)
        differences[kind] = np.stack([np.abs(value - reference)[there], moved[there]]) / error[there]
    return differences


def build_table(rows, references):
    """Return, by accuracy and kind, fractions within the stated errors, the largest ratio, and uncertain numbers."""
    table = {}
    for rtol in ASKED:
        mine = [compare_numbers(row, known) for row, known in zip(rows, references, strict=True)
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


def format_table(table):
    """Return a row for each kind and a column for each accuracy: the fraction, and the largest ratio in brackets."""
    lines = []
    for kind in KINDS:
        cells = [table[f"{rtol:g}", kind] for rtol in ASKED]
        words = [
            f"{100 * c['share']:.1f} % of {c['numbers']} ({c['largest']:.2g})" if c["numbers"] else "–" for c in cells
        ]
        lines.append([NAMES.get(kind, kind), *words])
    return markdown_table(["within the stated error", *(f"{rtol:g}" for rtol in ASKED)], lines)


def plan(quick):
    """Return the numbers of the problems; each is solved at the draw that its reference has found."""
    return {
        compute_reference: [{"number": number} for number in range(QUICK if quick else PROBLEMS)],
        solve: lambda references: [{"number": row["number"], "attempt": row["attempt"]} for row in references],
    }


def judge(verdict, references, rows):
    """Check stated errors against the references, and return the table."""
    ended = {status: sum(row["status"] == status for row in rows) for status in sorted({row["status"] for row in rows})}
    solved = sum("numbers" in row for row in rows)
    verdict.check(solved == len(rows), f"{solved} of {len(rows)} branches were found again; statuses: {ended}")
    table = build_table(rows, references)
    verdict.write_table(format_table(table))
    for (rtol, kind), cell in table.items():
        if cell["numbers"]:
            words = f"{100 * cell['share']:.1f} % of {cell['numbers']} within the stated error, median "
            words += f"{cell['median']:.2g}, at most {cell['largest']:.2g} times"
            words += f"; {cell['unsure']} with an uncertain reference"
            fine = cell["largest"] <= FEW if verdict.quick else cell["share"] >= SHARE
            verdict.check(fine, f"rtol {rtol}, {kind}: {words}")
    loose = [row["number"] for row in rows if row["status"] == "converged" and not row["worst"] <= 1.001 * row["rtol"]]
    verdict.check(not loose, f"converged means within rtol; not: {loose}")
    away = np.concatenate([np.zeros(0), *(known["beside"] for known in references if "beside" in known)])
    if len(away):
        share = float(np.mean(away <= 1))
        words = f"randomised points agree with the reference in {100 * share:.1f} % of {len(away)}"
        verdict.check(share >= AGREE, words)
    return {"table": {f"{rtol} {kind}": cell for (rtol, kind), cell in table.items()}, "statuses": ended}


def main():
    run_claim("stated_errors", __doc__, plan, judge)


if __name__ == "__main__":
    main()
