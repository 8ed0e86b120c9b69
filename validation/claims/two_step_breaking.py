"""Two steps of replica symmetry breaking on the positional branch, and the change of α_c by breaking.

Method: the founding paper's model (σ = .5), positional branch. (1) ω = .3, α = 1.5: two steps at the ground state,
refined from overlaps near the solution that `solve_state_evolution(..., rsb=2)` finds on its coarsest grids. The minima
are the stored minima of GAMP from positional starts, extrapolated to d → ∞ (`rs_validity`, the asymptotic loss); one
step is stored by `positional_breaking`. (2) The change of α_c, at which both branches have equal training loss: α_c
with replica symmetry is stored by `phase_diagram`. One step of breaking raises the training loss of the positional
branch by a small amount δ there, so that α_c changes by δ/(E_s' − E_p'), with the slopes of the training losses of both
branches in α. (3) The replicon of the semantic branch at α_c and .01 above the α at which it appears: below 1, breaking
does not move this line. Parts that ended are stored, so that a rerun continues (--quick: ω = .3 only).

Criterion: the equations of two steps are solved; V + Σ_j y_j (q_j − q_{j−1}) is within 1 % of V with replica symmetry;
V with two steps is below V with one step; all results with one step converge and lower α_c; replicons of the semantic
branch are below 1. (Page "Replica symmetry breaking" of the manual.)
"""

import numpy as np

import gamp_attention as ga
from gamp_attention.experiments.figures import figure
from gamp_attention.state_evolution.rsb.solve import ROUGH, Packing, evaluate, jacobian, refine_levels
from gamp_attention.state_evolution.rsb.two_fields import TwoFields
from gamp_attention.state_evolution.rsb.weights import Levels
from validation._tools.catalogue import ROOT, load_result
from validation._tools.report import Verdict, options
from validation._tools.resumable import complete_parts
from validation._tools.tables import markdown_table

ALPHA, RTOL = 1.5, 0.1
OMEGAS = (0.3, 0.38)
BLUE, GREY = "#0072B2", "#777777"
# Start of two steps at ω = .3 near the solution of `solve_state_evolution(..., rsb=2)`: α, V, m, q_0 to q_2, and
# y_1 and y_2
TWO_STEPS = (ALPHA, 12.6448, 0.25515, (0.04812297, 0.0490758, 0.04927947), (554.13, 1865.4))
FINER = 2  # resolution of the energy of one step; its overlaps are solved at resolutions 0 and 1
SAFETY = 1.5  # error in units of the change by the last refinement
SLOPE_STEP = 0.02  # step in α of the slopes of the training losses


def main():
    args = options(__doc__)
    verdict = Verdict("two_step_breaking", args)
    minima = load_result(ROOT / "results" / "rs_validity.json")["numbers"]
    measured = {name: minima[f"{ALPHA} asymptotic {name}"]["limit"] for name in ("V", "q", "m")}
    diagram = load_result(ROOT / "results" / "phase_diagram.json")
    one = load_result(ROOT / "results" / "positional_breaking.json")
    parts = {}
    for omega in OMEGAS[:1] if args.quick else OMEGAS:
        index = diagram["probed"].index(omega)
        at = [(diagram["lines"][name][index], diagram["errors"][name][index]) for name in BOUNDARIES]
        parts[f"ω = {omega}"] = lambda omega=omega, at=at: shift_boundary(omega, *at)
        parts[f"F, ω = {omega}"] = lambda omega=omega, at=at: refine_energy(omega, at[0][0], results[f"ω = {omega}"])
    if not args.quick:
        parts["two steps"] = lambda: solve_two_steps(*TWO_STEPS)
    quick = "_quick" if args.quick else ""
    results = {}
    for name, part in parts.items():  # later parts use the results of earlier parts
        results |= complete_parts(args.out / f"two_step_breaking{quick}_parts.json", {name: part})
    text = "" if args.quick else step_table(results["two steps"], one, measured, verdict) + "\n\n"
    verdict.write_table(text + boundary_table(results, verdict))
    verdict.end({"results": results, "minima": measured}, draw)


def step_table(two, one, measured, verdict):
    """Return the numbers of replica symmetry, one step, two steps and of the minima as a table."""
    rows = []
    for name in measured:
        value, error = two[name]
        mean, spread = measured[name]
        rows.append([f"{name}, two steps", f"{value:.5g} ± {error:.1g}", f"{mean:.5g} ± {spread:.1g}",
                     f"{abs(value - mean) / np.hypot(error, spread):.1f}"])  # fmt: skip
    rows += [[f"q_{j}", f"{q:.5f}", "", ""] for j, q in enumerate(two["levels"])]
    for key, name in (("parisi", "y"), ("replicons", "replicon"), ("complexity", "y² ∂F/∂y")):
        first = 0 if key == "replicons" else 1
        rows += [[f"{name}, level {j}", f"{v:.4g} ± {e:.1g}", "", ""] for j, (v, e) in enumerate(two[key], start=first)]
    rows.append(["F", f"{two['energy'][0]:.7f} ± {two['energy'][1]:.1g}", "", ""])
    verdict.check(two["residual"] < RTOL, f"two steps: largest residual {two['residual']:.1g}; {two['status']}")
    ground = one["ground"]
    verdict.check(two["V"][0] < ground[1], f"V is {two['V'][0]:.4f} with two steps, {ground[1]:.4f} with one")
    total = two["V"][0] + sum(y[0] * gap for y, gap in zip(two["parisi"], np.diff(two["levels"]), strict=True))
    near = abs(total / one["symmetric"]["V"] - 1) < 0.01
    verdict.check(near, f"V + Σ_j y_j (q_j − q_(j−1)) = {total:.4f}, within 1 % of V with replica symmetry")
    return markdown_table(["ω = 0.3, α = 1.5", "value", "minima of GAMP, d → ∞", "difference/error"], rows)


BOUNDARIES = ("alpha_c", "semantic_from")


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
    x = packing.pack(levels, np.array(parisi))
    J = jacobian(lambda at: evaluate(problem, packing, at, ROUGH)[0], x, evaluate(problem, packing, x, ROUGH)[0])
    s = refine_levels(problem, packing, x, RTOL, max_resolution=1, J=J)
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
            for at, tol in ((alpha - SLOPE_STEP, 1e-4), (alpha, 1e-6), (alpha + SLOPE_STEP, 1e-4))
        ]
        for branch in ("semantic", "positional")
    }
    slopes = {branch: (high.train_loss - low.train_loss) / (2 * SLOPE_STEP) for branch, (low, _, high) in pair.items()}
    semantic, symmetric = (results[1] for results in pair.values())
    slope = slopes["semantic"] - slopes["positional"]
    broken = ga.solve_state_evolution(model, alpha, symmetric.overlaps, rsb=1, rtol=RTOL)
    near = ga.solve_state_evolution(model, appearance[0] + 0.01, "semantic", rtol=1e-4, stability=False)
    return {
        "alpha_c": (alpha, alpha_error),
        "symmetric": (symmetric.train_loss, symmetric.train_loss_error),
        "slope": slope,
        "V": (symmetric.overlaps.V[0, 0, 0], broken.overlaps.V[0, 0, 0]),
        "step": summarize(broken),
        "semantic": [[se.replicon, se.status.value, float(se.jump_mass.max())] for se in (semantic, near)],
        "appears": appearance,
    }


def refine_energy(omega, alpha, known):
    """Return F of one step on grids that are finer by one refinement; F is stationary in the given overlaps."""
    problem, one, step = TwoFields(ga.paper_model(omega=omega), alpha), np.ones(2), known["step"]
    levels = Levels(np.outer(step["levels"], one), step["m"][0] * problem.signs, 0 * one, step["V"][0] * one)
    parisi = np.array([step["parisi"][0][0]])
    energy = problem.weights.free_energy(levels, problem.hats(levels, parisi, FINER), parisi)
    return energy, SAFETY * abs(energy - step["energy"][0])


def boundary_table(results, verdict):
    """Return the changes of α_c as a table."""
    rows = []
    for omega in [o for o in OMEGAS if f"ω = {o}" in results]:
        r = results[f"ω = {omega}"]
        verdict.check(r["step"]["status"] == "converged", f"ω = {omega}: {r['step']['status']} {r['step']['message']}")
        gain, shift = change_of_boundary(results, omega)
        verdict.check(shift[0] + shift[1] < 0, f"ω = {omega}: α_c changes by {shift[0]:.6f} ± {shift[1]:.1g}")
        stable = all(replicon < 1 for replicon, _, _ in r["semantic"])
        verdict.check(stable, f"ω = {omega}: replicons of the semantic branch are {r['semantic']}")
        replicon, error = r["step"]["replicons"][0]
        rows.append([
            f"{omega}", f"{r['alpha_c'][0]:.5f} ± {r['alpha_c'][1]:.1g}", f"{gain[0]:.3g} ± {gain[1]:.1g}",
            f"{1e4 * shift[0]:.2f} ± {1e4 * shift[1]:.1g}", f"{r['V'][0]:.4g}, {r['V'][1]:.4g}",
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


def change_of_boundary(results, omega):
    """Return the change of the positional training loss at α_c by one step, and the change of α_c, with errors."""
    r, (energy, error) = results[f"ω = {omega}"], results[f"F, ω = {omega}"]
    gain, gain_error = energy - r["symmetric"][0], error + r["symmetric"][1]
    return (gain, gain_error), (gain / r["slope"], abs(gain_error / r["slope"]))


def draw(stored, path):
    """Draw the changes of α_c against ω."""
    results = stored["results"]
    omegas = [omega for omega in sorted(OMEGAS) if f"ω = {omega}" in results]
    shifts = np.array([change_of_boundary(results, omega)[1] for omega in omegas])
    with figure(path, 1, 1, (6, 4.2)) as axes:
        ax = axes[0][0]
        ax.errorbar(omegas, 1e4 * shifts[:, 0], 1e4 * shifts[:, 1], fmt="o-", color=BLUE)
        ax.axhline(0, color=GREY, ls="--")
        ax.set(xlabel="ω", ylabel="change of α_c, units of 10⁻⁴", title="One step of breaking − replica symmetry")


if __name__ == "__main__":
    main()
