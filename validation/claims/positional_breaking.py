"""Positional branch with one step of replica symmetry breaking, against minima at finite d.

Method: the paper's model (ω = 0.3, σ = 0.5), α = 1.5, positional branch. `solve_broken(...)` at
the ground state and at fixed Parisi parameters (--quick: at one fixed Parisi parameter), each from the overlaps of
replica symmetry. The minima are the stored minima of GAMP from positional starts, extrapolated to d → ∞
(`rs_validity`, the asymptotic loss).

Criterion: all results converge; V decreases with the Parisi parameter; V + y (q_1 − q_0) is within 1 % of V with
replica symmetry; at the ground state V is nearer to the minima than V with replica symmetry.
(Page "Replica symmetry breaking" of the manual.)
"""

import numpy as np

import gamp_attention as ga
from validation._tools.catalog import ROOT, load_result
from validation._tools.drawing import figure
from validation._tools.report import run_claim
from validation._tools.tables import markdown_table

ALPHA, RTOL = 1.5, 1e-2
FIXED = (200.0, 400.0, 1600.0)
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#777777"


def judge(verdict):
    """Compute the numbers and check the criterion."""
    model = ga.paper_model()
    minima = load_result(ROOT / "results" / "rs_validity.json")["numbers"]
    measured = {name: minima[f"{ALPHA} asymptotic {name}"]["limit"] for name in ("V", "q", "m")}
    symmetric = ga.solve_state_evolution(model, ALPHA, "positional", rtol=1e-3, stability=False)
    symmetric_V = float(symmetric.overlaps.V[0, 0, 0])
    rows, curve = [], []

    def show(label, values):
        cells = [f"{value:.5g} ± {error:.1g}" for value, error in values]
        differences = [
            f"{abs(value - mean) / np.hypot(error, spread):.1f}"
            for (value, error), (mean, spread) in zip(values, measured.values(), strict=True)
        ]
        rows.append([label, *cells, *differences])

    show("replica symmetry", [numbers(symmetric, name) for name in measured])
    ground = None
    for y in FIXED[1:2] if verdict.quick else (*FIXED, None):
        se = ga.solve_broken(model, ALPHA, symmetric.overlaps, parisi=y, rtol=RTOL)
        label = f"y = {float(se.parisi[0]):.4g}" + (
            f" ± {float(se.parisi_error[0]):.1g} (ground state)" if y is None else ""
        )
        verdict.check(se.converged, f"{label}: {se.status.value} {se.message}")
        show(label, [numbers(se, name) for name in measured])
        V, V_error = numbers(se, "V")
        total = V + float(se.parisi[0]) * float(np.diff(se.levels[:, 0, 0, 0])[0])
        verdict.check(
            abs(total / symmetric_V - 1) < 0.01,
            f"{label}: V + y (q_1 − q_0) = {total:.4f}, within 1 % of V with replica symmetry",
        )
        curve.append([float(se.parisi[0]), V, V_error, se.train_loss, se.train_loss_error, float(se.replicons[0])])
        ground = curve[-1] if y is None else ground
    if ground is not None:
        V = [row[1] for row in sorted(curve)]
        verdict.check(all(np.diff(V) < 0), f"V decreases with the Parisi parameter: {V}")
        mean = measured["V"][0]
        verdict.check(abs(ground[1] - mean) < abs(symmetric_V - mean), "V of the ground state is nearer to the minima")
    show("minima of GAMP, d → ∞", list(measured.values()))
    rows[-1][4:] = [""] * 3
    columns = ["", "V", "q", "m", "V: difference/error", "q: difference/error", "m: difference/error"]
    verdict.write_table(markdown_table(columns, rows))
    symmetric_values = {"V": symmetric_V, "energy": symmetric.train_loss}
    return {"curve": curve, "ground": ground, "symmetric": symmetric_values, "minima": measured}


def numbers(se, name):
    """Return an overlap of the first token and its error."""
    value, error = (getattr(overlaps, name).ravel()[0] for overlaps in (se.overlaps, se.overlaps_error))
    return float(value), float(error)


def draw(stored, path):
    """Draw V against the Parisi parameter, with replica symmetry and the minima."""
    with figure(path, 1, 1, (6, 4.2)) as axes:
        ax = axes[0][0]
        y, V, error = np.array(sorted(stored["curve"]), dtype=float).T[:3]
        ax.errorbar(y, V, error, fmt="o-", color=BLUE, label="one step of breaking")
        ax.axhline(stored["symmetric"]["V"], color=GREY, ls="--", label="replica symmetry (y → 0)")
        mean, spread = stored["minima"]["V"]
        ax.axhspan(mean - spread, mean + spread, color=ORANGE, alpha=0.4, label="minima of GAMP, d → ∞")
        if stored["ground"] is not None:
            ax.plot(*stored["ground"][:2], "s", color=BLUE, ms=9, label="ground state")
        ax.set(xlabel="Parisi parameter y", ylabel="V", title="Positional branch, α = 1.5", xscale="log")
        ax.legend()


def main():
    run_claim("positional_breaking", __doc__, lambda quick: {}, judge, draw)


if __name__ == "__main__":
    main()
