"""Gaps between the two lowest minima of the proximal problem of one field, at minima of finite d.

Method: phase retrieval ℓ(z) = ¼(z² − p)² with intensities p = u² + 1.5 N(0, 1), λ = 0.03, α = 4. GAMP runs from the
teacher's weights to zero gradient. With the response V = tr H⁻¹/d of the Hessian H, a sample with field z has the
cavity field ω = z + V ℓ'(z), and the minima of its proximal problem are the outer roots of z³ + (1/V − p) z = ω/V. The
fractions of samples whose gap is below ε, extrapolated to d → ∞ with 1/d, are compared with `gap_distribution` for
replica symmetry and for one step of breaking, `solve_broken`. Further steps would change little:
with one step, the replicon eigenvalues are 1.03 and 0.99, and the jump mass is 1 % of V̂.
Rows are stored when they end (--quick: d = 200, replica symmetry).

Criterion: all solutions converge, and 95 % of the runs end in a minimum. V and the fraction of gaps below each ε differ
from one step by less than 3 errors, and from replica symmetry by more than 5 errors.
(Page "Replica symmetry breaking" of the manual.)
"""

from functools import partial

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.rsb.gaps import gap_distribution
from gamp_attention.extensions.rsb.one_field import OneField
from gamp_attention.extensions.rsb.solve import Packing, iterate, newton
from gamp_attention.extensions.rsb.weights import Levels
from validation._tools.report import Verdict, options, plus_minus
from validation._tools.resumable import complete_instances, complete_parts
from validation._tools.tables import extrapolate, markdown_table, mean_and_error
from validation.claims.further_steps import difference

ALPHA, LAM, NOISE = 4.0, 0.03, 1.5
GAPS = np.array([0.1, 0.5, 2.0])
COUNTS = {500: 48, 1000: 24, 2000: 6}  # instances by d
START = {"q": 1.31, "theta": 0.876, "V": 0.313}  # near the replica-symmetric solution
RTOL, RESOLUTION, REACHED = 3e-2, 6, 1e-6
NUMBERS = ("V", "q", "theta", "train_loss")


def build_model():
    """Return the model."""
    return ga.glm_model(ga.PhaseRetrievalLoss(), ga.IntensityLabels(noise=NOISE), lam=LAM)


def run_cell(d, seed):
    """Return the numbers of the minimum of an instance, and the fractions of samples with gaps below ε."""
    data = ga.sample(build_model(), d, ALPHA, seed)
    run = ga.run_gamp(data, "semantic", "asymptotic", max_iter=2000)
    z, p, X = data.fields(run.Q).ravel(), np.asarray(data.labels).ravel(), np.asarray(data.tokens)[:, 0] / np.sqrt(d)
    V = np.trace(np.linalg.inv(X.T @ ((3 * z**2 - p)[:, None] * X) + LAM * np.eye(d))) / d  # ℓ''(z) = 3z² − p
    gap = measure_gaps(z, p, V)
    overlaps = {key: abs(float(value)) for key, value in run.overlaps.scalars().items()} | {"V": V}
    fractions = [float(np.mean(gap < size)) for size in GAPS]
    return [{"d": d, "seed": seed, "norm": run.gradient_norm, "lowest": run.lowest_eigenvalue,
             "train_loss": run.train_loss, "gaps": fractions, **overlaps}]  # fmt: skip


def measure_gaps(z, p, V):
    """Return the gap of each sample with field z (n,) and intensity p (n,); infinite without a second minimum."""
    omega = z + V * z * (z**2 - p)
    linear, constant = 1 / V - p, -omega / V
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = 1.5 * constant / linear * np.sqrt(-3 / linear)
        angle = np.arccos(cosine) / 3  # NaN unless there are three real roots
        roots = [2 * np.sqrt(-linear / 3) * np.cos(angle - 2 * np.pi * k / 3) for k in range(3)]
    outer = [np.max(roots, axis=0), np.min(roots, axis=0)]
    values = [0.25 * (root**2 - p) ** 2 + 0.5 * (root - omega) ** 2 / V for root in outer]
    return np.nan_to_num(np.abs(values[0] - values[1]), nan=np.inf)


def solve(k):
    """Return the numbers of the solution with k steps, and the probabilities of gaps below ε on two grids."""
    model, one = build_model(), np.ones(1)
    problem = OneField(model, ALPHA)
    if k == 0:
        packing = Packing(one, 0, False, True)
        start = Levels(START["q"] * one[None], 0 * one, START["theta"] * one, START["V"] * one)
        x = iterate(problem, packing, packing.pack(start, np.zeros(0)), 5)
        root = newton(problem, packing, x, 1e-6, 1)
        levels, parisi = packing.unpack(root.x)[0], np.zeros(0)
        converged = bool(root.size < 1e-4)
        numbers = {"train_loss": problem.weights.free_energy(levels, root.hats, parisi)}
        numbers |= {"q": float(levels.q[-1, 0]), "theta": float(levels.theta[0]), "V": float(levels.V[0])}
    else:
        block = np.ones((1, 1, 1))
        start = ga.Overlaps(START["q"] * block, 0 * block[0], START["theta"] * block, START["V"] * block)
        se = ga.solve_broken(model, ALPHA, start, steps=k, rtol=RTOL)
        converged, parisi = se.converged, se.parisi
        theta, V = se.overlaps.theta[:, 0, 0], se.overlaps.V[:, 0, 0]
        levels = Levels(se.levels[:, :, 0, 0], 0 * one, theta, V)
        numbers = {name: abs(float(value)) for name, value in se.overlaps.scalars().items()}
        numbers["train_loss"] = se.train_loss
    probabilities = [gap_distribution(problem, levels, parisi, GAPS, RESOLUTION - i).probability for i in range(2)]
    return numbers | {
        "converged": converged,
        "levels": levels.q[:, 0],
        "parisi": parisi,
        "gaps": probabilities[0],
        "gaps_error": np.abs(probabilities[1] - probabilities[0]),
    }


def main():
    args = options(__doc__)
    verdict = Verdict("proximal_gaps", args)
    steps, counts = (range(1), {200: 4}) if args.quick else (range(2), COUNTS)
    quick = "_quick" if args.quick else ""
    parts = {f"k = {k}": partial(solve, k) for k in steps}
    theory = complete_parts(args.out / f"proximal_gaps{quick}_parts.json", parts)
    rows = complete_instances(verdict.path("_runs.jsonl"), run_cell, counts)
    minima = [row for row in rows if row["norm"] < REACHED and row["lowest"] > 0]
    verdict.check(len(minima) >= 0.95 * len(rows), f"{len(minima)} of {len(rows)} runs end in a minimum")
    for name, numbers in theory.items():
        verdict.check(numbers["converged"], f"{name}: the solution converged")
    if args.quick:
        verdict.end({})
        return
    keys = [*NUMBERS, *(f"P(gap < {gap:g})" for gap in GAPS)]
    measured, table = {}, []
    by_size = {d: [row for row in minima if row["d"] == d] for d in counts}
    for number, key in enumerate(keys):
        index = number - len(NUMBERS)
        values = {
            d: mean_and_error([row[key] if index < 0 else row["gaps"][index] for row in chosen])
            for d, chosen in by_size.items()
        }
        limit = extrapolate([*values], *zip(*values.values(), strict=True))
        measured[key] = [list(pair) for pair in (*values.values(), limit)]
        expected = [
            [each[key], 0.0] if index < 0 else [each["gaps"][index], each["gaps_error"][index]]
            for each in theory.values()
        ]
        away = [difference(limit, pair) for pair in expected]
        predictions = [f"{value:.4g} ({each:.1f})" for (value, _), each in zip(expected, away, strict=True)]
        table.append([key, *(plus_minus(*pair) for pair in measured[key]), *predictions])
        if index >= 0 or key == "V":
            claim = (
                f"{key} of minima differs by {away[1]:.1f} errors from one step, {away[0]:.1f} from replica symmetry"
            )
            verdict.check(abs(away[1]) < 3 and abs(away[0]) > 5, claim)
    columns = ["", *(f"d = {d}" for d in counts), "d → ∞", "replica symmetry (difference/error)",
               "one step (difference/error)"]  # fmt: skip
    verdict.write_table(markdown_table(columns, table))
    verdict.end({"theory": theory, "measured": measured})


if __name__ == "__main__":
    main()
