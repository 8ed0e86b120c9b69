"""Positional branch with one and two steps of replica symmetry breaking, against minima at finite d.

Method: the founding paper's model (σ = .5), positional branch. (1) ω = .3, α = 1.5: `solve_state_evolution(...,
rsb=1)` at the ground state and at fixed Parisi parameters (--quick: at one fixed Parisi parameter), each from the
overlaps of replica symmetry, and two steps, refined from overlaps near their solution. The minima are the stored minima
of GAMP from positional starts, extrapolated to d → ∞ (`rs_validity`, the asymptotic loss). (2) The change of α_c, at
which both branches have equal training loss: α_c with replica symmetry is stored by `phase_diagram`. Breaking raises
the training loss of the positional branch by a small amount δ there, so that α_c changes by δ/(E_s' − E_p'), with the
slopes of the training losses of both branches in α. (3) The replicon of the semantic branch at α_c and at the α at
which it appears. Parts that ended are stored, so that a rerun continues.

Criterion: all results converge, or reach the stated error with two steps; V decreases with the Parisi parameter and
with the number of steps; V + Σ_j y_j (q_j − q_{j−1}) is within 1 % of V with replica symmetry; at the ground state V is
nearer to the minima than V with replica symmetry; α_c decreases for all ω, and the semantic branch is stable.
(Page "Replica symmetry breaking" of the manual.)
"""

import numpy as np

import gamp_attention as ga
from gamp_attention.experiments.figures import figure
from gamp_attention.state_evolution.rsb.solve import Packing, refine_levels
from gamp_attention.state_evolution.rsb.two_fields import TwoFields
from gamp_attention.state_evolution.rsb.weights import Levels
from validation._tools.catalogue import ROOT, load_result
from validation._tools.report import Verdict, options
from validation._tools.resumable import complete_parts
from validation._tools.tables import markdown_table

ALPHA, RTOL = 1.5, 1e-2
FIXED = (200.0, 400.0, 1600.0)
OMEGAS = (0.14, 0.22, 0.3, 0.38)
BLUE, ORANGE, GREY, GREEN = "#0072B2", "#D55E00", "#777777", "#009E73"
# Starts of two steps at ω = .3, near the solutions that `solve_state_evolution(..., rsb=2)` finds: α, then V, m, q_0 to
# q_2, y_1 and y_2 on the coarsest grids of the refinement
TWO_STEPS = ((1.5, 12.6448, 0.25515, (0.04812297, 0.0490758, 0.04927947), (554.13, 1865.4)),)
SLOPE_STEP = 0.02  # step in α of the slopes of the training losses


def main():
    args = options(__doc__)
    verdict = Verdict("positional_breaking", args)
    minima = load_result(ROOT / "results" / "rs_validity.json")["numbers"]
    measured = {name: minima[f"{ALPHA} asymptotic {name}"]["limit"] for name in ("V", "q", "m")}
    diagram = load_result(ROOT / "results" / "phase_diagram.json")
    parts = {"symmetric": solve_symmetric}
    fixed = FIXED[1:2] if args.quick else FIXED
    if not args.quick:
        parts["y = nan"] = lambda: solve_one_step(np.nan)
        parts |= {f"two steps, α = {start[0]:.5g}": lambda s=start: solve_two_steps(*s) for start in TWO_STEPS}
        for omega in OMEGAS:
            index = diagram["probed"].index(omega)
            at = {name: (diagram["lines"][name][index], diagram["errors"][name][index]) for name in BOUNDARIES}
            parts[f"ω = {omega}"] = lambda omega=omega, at=at: shift_boundary(omega, *at.values())
    parts |= {f"y = {y:.4g}": lambda y=y: solve_one_step(y) for y in fixed}
    quick = "_quick" if args.quick else ""
    results = complete_parts(args.out / f"positional_breaking{quick}_parts.json", parts)
    rows = []

    def show(label, values):
        cells = [f"{value:.5g} ± {error:.1g}" for value, error in values]
        differences = [
            f"{abs(value - mean) / np.hypot(error, spread):.1f}"
            for (value, error), (mean, spread) in zip(values, measured.values(), strict=True)
        ]
        rows.append([label, *cells, *differences])

    symmetric = results["symmetric"]
    show("replica symmetry", [symmetric[name] for name in measured])
    steps = {name: r for name, r in results.items() if r.get("alpha") == ALPHA}
    steps = dict(sorted(steps.items(), key=lambda item: (len(item[1]["parisi"]), item[1]["parisi"][0])))
    for name, r in steps.items():
        y = ", ".join(f"{value:.4g} ± {error:.1g}" if error else f"{value:.4g}" for value, error in r["parisi"])
        ground = " (ground state)" if r["parisi"][0][1] else ""
        label = f"{len(r['parisi'])} step{'s' * (len(r['parisi']) > 1)}, y = {y}{ground}"
        good = r["status"] == "converged" or (len(r["parisi"]) == 2 and r["residual"] < 1e-3)
        verdict.check(good, f"{name}: {r['status']} {r['message']}")
        show(label, [r[quantity] for quantity in measured])
        total = r["V"][0] + sum(y[0] * gap for y, gap in zip(r["parisi"], np.diff(r["levels"]), strict=True))
        verdict.check(
            abs(total / symmetric["V"][0] - 1) < 0.01,
            f"{name}: V + Σ_j y_j (q_j − q_(j−1)) = {total:.4f}, within 1 % of V with replica symmetry",
        )
    show("minima of GAMP, d → ∞", list(measured.values()))
    rows[-1][4:] = [""] * 3
    columns = ["", "V", "q", "m", "V: difference/error", "q: difference/error", "m: difference/error"]
    text = markdown_table(columns, rows)
    if not args.quick:
        one, two = results["y = nan"], results[f"two steps, α = {ALPHA:.5g}"]
        V = [results[f"y = {y:.4g}"]["V"][0] for y in FIXED]
        verdict.check(all(np.diff(V) < 0), f"V decreases with the Parisi parameter: {V}")
        mean = measured["V"][0]
        closer = abs(one["V"][0] - mean) < abs(symmetric["V"][0] - mean)
        verdict.check(closer, "V of the ground state is nearer to the minima than V with replica symmetry")
        verdict.check(
            two["V"][0] < one["V"][0], f"V decreases with a second step: {one['V'][0]:.4g}, {two['V'][0]:.4g}"
        )
        text += "\n\n" + energy_table(results) + "\n\n" + boundary_table(results, verdict)
    verdict.write_table(text)
    verdict.end({"results": results, "minima": measured}, draw)


BOUNDARIES = ("alpha_c", "semantic_from")


def solve_symmetric():
    """Return numbers of replica symmetry."""
    se = ga.solve_state_evolution(ga.paper_model(), ALPHA, "positional", rtol=1e-6, stability=False)
    values = {name: numbers(se, name) for name in ("V", "q", "m")}
    return values | {"energy": (se.train_loss, se.train_loss_error), "overlaps": se.overlaps.arrays()}


def solve_one_step(y):
    """Return numbers of one step at a Parisi parameter, or at the ground state if it is NaN."""
    model = ga.paper_model()
    start = ga.solve_state_evolution(model, ALPHA, "positional", rtol=1e-3, stability=False).overlaps
    se = ga.solve_state_evolution(model, ALPHA, start, rsb=1, parisi=None if np.isnan(y) else y, rtol=RTOL)
    return summarize(se) | {"alpha": ALPHA}


def summarize(se):
    """Return the numbers of a result with breaking."""
    return {
        **{name: numbers(se, name) for name in ("V", "q", "m")},
        "energy": (se.train_loss, se.train_loss_error),
        "levels": se.levels[:, 0, 0, 0],
        "parisi": list(zip(se.parisi, se.parisi_error, strict=True)),
        "replicons": list(zip(se.replicons, se.replicons_error, strict=True)),
        "complexity": list(zip(se.complexity, se.complexity_error, strict=True)),
        "status": se.status.value,
        "message": se.message,
        "residual": se.residual,
    }


def solve_two_steps(alpha, V, m, q, parisi):
    """Return numbers of two steps from a start near the solution, with one refinement of the grids."""
    problem, one = TwoFields(ga.paper_model(), alpha), np.ones(2)
    packing = Packing(problem.signs, 2, True, False)
    levels = Levels(np.outer(q, one), m * problem.signs, 0 * one, V * one)
    s = refine_levels(problem, packing, packing.pack(levels, np.array(parisi)), RTOL, max_resolution=1)
    levels, parisi, _, indicators = s.point
    q_error = float(s.error[1:4] @ [levels.q[0, 0], *levels.gaps[:, 0]])
    return {
        "V": (levels.V[0], s.error[0] * levels.V[0]),
        "q": (levels.q[-1, 0], q_error),
        "m": (levels.m[0], s.error[4] * np.sqrt(levels.q[-1, 0])),
        "energy": (s.energy, s.energy_error),
        "levels": levels.q[:, 0],
        "parisi": list(zip(parisi, s.error[5:] * parisi, strict=True)),
        "replicons": list(zip(indicators.replicons, s.indicator_errors.replicons, strict=True)),
        "complexity": list(zip(indicators.complexity, s.indicator_errors.complexity, strict=True)),
        "status": s.status.value,
        "message": s.message,
        "residual": s.residual,
        "alpha": alpha,
    }


def shift_boundary(omega, crossing, appearance):
    """Return the change of α_c by one step of breaking, and the stability of the semantic branch."""
    model, (alpha, alpha_error) = ga.paper_model(omega=omega), crossing
    pair = {
        branch: [
            ga.solve_state_evolution(model, at, branch, rtol=tol, stability=False)
            for at, tol in ((alpha - SLOPE_STEP, 1e-5), (alpha, 1e-6), (alpha + SLOPE_STEP, 1e-5))
        ]
        for branch in ("semantic", "positional")
    }
    slopes = {branch: (high.train_loss - low.train_loss) / (2 * SLOPE_STEP) for branch, (low, _, high) in pair.items()}
    semantic, symmetric = (results[1] for results in pair.values())
    slope = slopes["semantic"] - slopes["positional"]
    broken = ga.solve_state_evolution(model, alpha, symmetric.overlaps, rsb=1, rtol=3e-2)
    gain = broken.train_loss - symmetric.train_loss
    gain_error = broken.train_loss_error + symmetric.train_loss_error
    near = ga.solve_state_evolution(model, appearance[0] + 0.01, "semantic", rtol=1e-4, stability=False)
    return {
        "alpha_c": (alpha, alpha_error),
        "gain": (gain, gain_error),
        "slope": slope,
        "shift": (gain / slope, abs(gain_error / slope)),
        "V": (symmetric.overlaps.V[0, 0, 0], broken.overlaps.V[0, 0, 0]),
        "step": summarize(broken),
        "semantic": [[se.replicon, se.status.value, float(se.jump_mass.max())] for se in (semantic, near)],
        "appears": appearance,
    }


def energy_table(results):
    """Return the energies, Parisi parameters and replicons of the ground states as a table."""
    rows = []
    names = ["y = nan", *(name for name in results if name.startswith("two steps"))]
    for name in names:
        r = results[name]
        lists = (", ".join(f"{value:.4g} ± {error:.1g}" for value, error in r[key]) for key in ("parisi", "replicons"))
        overlaps = ", ".join(f"{value:.5f}" for value in r["levels"])
        rows.append([f"{r['alpha']:.5g}", f"{len(r['parisi'])}", f"{r['energy'][0]:.9f} ± {r['energy'][1]:.1g}",
                     overlaps, *lists])  # fmt: skip
    return markdown_table(["α", "steps", "F", "q_0, …, q_k", "Parisi parameters", "replicons"], rows)


def boundary_table(results, verdict):
    """Return the changes of α_c as a table."""
    rows = []
    for omega in OMEGAS:
        r = results[f"ω = {omega}"]
        verdict.check(r["step"]["status"] == "converged", f"ω = {omega}: {r['step']['status']} {r['step']['message']}")
        verdict.check(r["shift"][0] + r["shift"][1] < 0, f"ω = {omega}: α_c changes by {r['shift'][0]:.6f}")
        stable = all(replicon < 1 for replicon, _, _ in r["semantic"])
        verdict.check(stable, f"ω = {omega}: replicons of the semantic branch are {r['semantic']}")
        replicon, error = r["step"]["replicons"][0]
        rows.append([
            f"{omega}", f"{r['alpha_c'][0]:.5f} ± {r['alpha_c'][1]:.1g}", f"{r['gain'][0]:.3g} ± {r['gain'][1]:.1g}",
            f"{1e4 * r['shift'][0]:.2f} ± {1e4 * r['shift'][1]:.1g}", f"{r['V'][0]:.4g}, {r['V'][1]:.4g}",
            f"{replicon:.3f} ± {error:.1g}", f"{r['semantic'][0][0]:.3f}",
            f"{r['appears'][0]:.4f} ± {r['appears'][1]:.1g}", f"{r['semantic'][1][0]:.3f}",
        ])  # fmt: skip
    columns = ["ω", "α_c, replica symmetry", "change of the positional training loss", "change of α_c, 10⁻⁴",
               "V without and with one step", "outer replicon", "semantic replicon at α_c", "semantic branch from α",
               "replicon .01 above"]  # fmt: skip
    return markdown_table(columns, rows)


def numbers(se, name):
    """Return an overlap of the first token and its error."""
    value, error = (getattr(overlaps, name).ravel()[0] for overlaps in (se.overlaps, se.overlaps_error))
    return float(value), float(error)


def draw(stored, path):
    """Draw V against the Parisi parameter, with replica symmetry and the minima, and the changes of α_c."""
    results = stored["results"]
    with figure(path, 1, 2, (12, 4.2)) as axes:
        ax, right = axes[0]
        steps = [r for r in results.values() if "parisi" in r and len(r["parisi"]) == 1]
        y, V, error = np.array(sorted([r["parisi"][0][0], *r["V"]] for r in steps)).T
        ax.errorbar(y, V, error, fmt="o-", color=BLUE, label="one step of breaking")
        ax.axhline(results["symmetric"]["V"][0], color=GREY, ls="--", label="replica symmetry (y → 0)")
        mean, spread = stored["minima"]["V"]
        ax.axhspan(mean - spread, mean + spread, color=ORANGE, alpha=0.4, label="minima of GAMP, d → ∞")
        if "y = nan" in results:
            ground = results["y = nan"]
            ax.plot(ground["parisi"][0][0], ground["V"][0], "s", color=BLUE, ms=9, label="ground state, one step")
            two = results[f"two steps, α = {ALPHA:.5g}"]
            ends = [value for value, _ in two["parisi"]]
            ax.errorbar(ends, [two["V"][0]] * 2, [two["V"][1]] * 2, fmt="D-", color=GREEN,
                        label="ground state, two steps (y_1, y_2)")  # fmt: skip
            shifts = np.array([results[f"ω = {omega}"]["shift"] for omega in OMEGAS])
            right.errorbar(OMEGAS, 1e4 * shifts[:, 0], 1e4 * shifts[:, 1], fmt="o-", color=BLUE)
            right.axhline(0, color=GREY, ls="--")
            right.set(xlabel="ω", ylabel="change of α_c, units of 10⁻⁴", title="α_c with one step − replica symmetry")
        ax.set(xlabel="Parisi parameter y", ylabel="V", title="Positional branch, ω = 0.3, α = 1.5", xscale="log")
        ax.legend()


if __name__ == "__main__":
    main()
