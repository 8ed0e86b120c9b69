"""The change of the phase boundary α_c by one step of replica symmetry breaking on the positional branch.

Method: the founding paper's model (σ = .5). At α_c both branches have equal training loss; α_c with replica symmetry is
stored by `phase_diagram`. One step of breaking raises the training loss of the positional branch by a small amount δ
there, so that α_c changes by δ/(E_s' − E_p'), with the slopes of the training losses of both branches in α. The error
of δ is the change of F by the last refinement of the grids, times 1.5. In addition, the replicon of the semantic branch
at α_c and .01 above the α at which it appears: if it is below 1, breaking does not move this line. Parts that ended are
stored, so that a rerun continues (--quick is the same).

Criterion: the result with one step converges and lowers α_c; replicons of the semantic branch are below 1.
(Page "Replica symmetry breaking" of the manual.)
"""

import numpy as np

import gamp_attention as ga
from gamp_attention.state_evolution.rsb.two_fields import TwoFields
from gamp_attention.state_evolution.rsb.weights import Levels
from validation._tools.catalogue import ROOT, load_result
from validation._tools.report import Verdict, options
from validation._tools.resumable import complete_parts
from validation._tools.tables import markdown_table

RTOL = 0.1
OMEGAS = (0.3,)
FINER = 2  # resolution of the energy of one step; its overlaps are solved at resolutions 0 and 1
SAFETY = 1.5  # error in units of the change by the last refinement
SLOPE_STEP = 0.02  # step in α of the slopes of the training losses


def main():
    args = options(__doc__)
    verdict = Verdict("broken_boundary", args)
    diagram, results = load_result(ROOT / "results" / "phase_diagram.json"), {}
    parts = {}
    for omega in OMEGAS:
        index = diagram["probed"].index(omega)
        at = [(diagram["lines"][name][index], diagram["errors"][name][index]) for name in BOUNDARIES]
        parts[f"ω = {omega}"] = lambda omega=omega, at=at: shift_boundary(omega, *at)
        parts[f"F, ω = {omega}"] = lambda omega=omega, at=at: refine_energy(omega, at[0][0], results[f"ω = {omega}"])
    quick = "_quick" if args.quick else ""
    for name, part in parts.items():  # later parts use the results of earlier parts
        results |= complete_parts(args.out / f"broken_boundary{quick}_parts.json", {name: part})
    verdict.write_table(boundary_table(results, verdict))
    verdict.end({"results": results})


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
    for omega in OMEGAS:
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


if __name__ == "__main__":
    main()
