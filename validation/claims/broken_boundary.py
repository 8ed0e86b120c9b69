"""The changes of phase boundaries by one step of replica symmetry breaking on both branches.

Method: the founding paper's model (σ = 0.5) at several ω (--quick: one). α_c, at which both branches have equal
training loss, and the α at which the semantic branch appears are the stored values of `phase_diagram`. By how much one
step moves them is computed by the function `find_changes`, which `phase_boundaries(..., rsb=1)` calls as well. Parts
that ended are stored, so that a rerun continues.

Criterion: all changes are found; breaking lowers both α by more than the error of the change.
(Page "Replica symmetry breaking" of the manual.)
"""

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import figure
from gamp_attention.extensions.phases.breaking import find_changes
from gamp_attention.extensions.phases.scan import Boundary
from validation._tools.catalog import ROOT, load_result
from validation._tools.report import run_claim
from validation._tools.tables import markdown_table

OMEGAS = (0.1, 0.22, 0.3, 0.38)  # values of ω
UNKNOWN = Boundary.none("none: not computed")
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#777777"


def known_boundary(omega, name):
    """Return a stored boundary of the phase diagram at ω."""
    diagram = load_result(ROOT / "results" / "phase_diagram.json")
    index = diagram["probed"].index(omega)
    return Boundary(diagram["lines"][name][index], diagram["errors"][name][index], "")


def find_change(omega, name):
    """Return the change of one boundary at ω by one step, and its error."""
    both = {"alpha_c": UNKNOWN, "semantic_from": UNKNOWN} | {name: known_boundary(omega, name)}
    return {"change": list(find_changes(ga.paper_model(omega=omega), *both.values())[f"{name}_change"])}


def plan(quick):
    """Return the boundaries."""
    omegas, names = ((0.3,), ("alpha_c",)) if quick else (OMEGAS, ("alpha_c", "semantic_from"))
    return {find_change: [{"omega": omega, "name": name} for omega in omegas for name in names]}


def judge(verdict, changes):
    """Check that both boundaries are lowered."""
    omegas = list(dict.fromkeys(row["omega"] for row in changes))
    found = {(row["omega"], row["name"]): row["change"] for row in changes}
    lines = {}
    for name in ("alpha_c", "semantic_from"):
        lines[name] = [list(known_boundary(omega, name)) for omega in omegas]
        lines[f"{name}_change"] = [found.get((omega, name), list(UNKNOWN)) for omega in omegas]
    rows = []
    for k, omega in enumerate(omegas):
        alpha, change, start, end = (lines[name][k] for name in NAMES)
        verdict.check(bool(np.isfinite(change[0])), f"ω = {omega}: the change of α_c is found")
        claim = f"ω = {omega}: α_c changes by {change[0]:.6f} ± {change[1]:.1g}, downwards"
        verdict.check(change[0] < -change[1], claim)
        cells = ["", ""]
        if np.isfinite(end[0] or np.nan):
            claim = f"ω = {omega}: the end of the semantic branch changes by {end[0]:.3f} ± {end[1]:.1g}, downwards"
            verdict.check(end[0] < -end[1], claim)
            cells = [f"{end[0]:.3f} ± {end[1]:.1g}", f"{100 * end[0] / start[0]:.0f}"]
        rows.append([
            f"{omega}", f"{alpha[0]:.5f} ± {alpha[1]:.1g}", f"{1e4 * change[0]:.2f} ± {1e4 * change[1]:.1g}",
            f"{100 * change[0] / alpha[0]:.3f}", f"{start[0]:.4f} ± {start[1]:.1g}", *cells,
        ])  # fmt: skip
    columns = ["ω", "α_c, replica symmetry", "change of α_c by one step, 10⁻⁴", "in %",
               "semantic branch from α, replica symmetry", "change by one step", "in %"]  # fmt: skip
    verdict.write_table(markdown_table(columns, rows))
    return {"omegas": omegas, "lines": lines}


NAMES = ("alpha_c", "alpha_c_change", "semantic_from", "semantic_from_change")


def draw(stored, path):
    """Draw both boundaries, and the change of α_c."""
    omega, lines = np.array(stored["omegas"]), stored["lines"]
    (alpha, _), (change, error), (start, _) = (
        np.array([row[:2] for row in lines[name]], dtype=float).T for name in NAMES[:3]
    )
    with figure(path, 1, 2, (10, 4)) as axes:
        left, right = axes[0]
        left.plot(omega, alpha, "o-", color=BLUE, label="$α_c$")
        left.plot(omega, start, "s--", color=GREY, label="semantic branch appears")
        end, end_error = np.array([row[:2] for row in lines["semantic_from_change"]], dtype=float).T
        left.errorbar(omega, start + end, end_error, fmt="D", color=ORANGE, label="semantic branch appears, one step")
        left.set(xlabel="ω", ylabel="α", title="Boundaries")
        left.legend()
        right.errorbar(omega, 1e4 * change, 1e4 * error, fmt="o-", color=BLUE, label="$α_c$")
        right.set(xlabel="ω", ylabel="change of α, $10^{-4}$", title="Change of $α_c$ by one step of breaking")


def main():
    run_claim("broken_boundary", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
