"""Figure 3 (center, right): the phase diagram in (α, ω) by state evolution.

Method: a grid of 25 × 25 cells, both branches to a relative accuracy of 1e-3, and boundaries with errors at 12 of its
ω. Δε_t = ε_t(positional) − ε_t(semantic) is positive if the semantic minimum is the global one. ε_lin − ε_g is positive
if the global minimum beats the linear baseline. Gray: a branch does not exist. Crosses: from both starts all weights go
to zero, as at finite d, since Q = 0 is a minimum then. `phase_diagram_other` uses the same code.

Criterion: every cell is solved, or is known not to exist. The sign of Δε_t, and the existence of branches, agree with
the boundaries at every ω that has both. α_c <= α_l at every ω of the boundaries; a counterexample fails. The boundaries
have the requested accuracy.
"""

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import ALPHA, DARK, OMEGA, draw_legend
from validation._tools import landscape as land
from validation._tools.drawing import BOUNDARIES, build_branch_colormap, figure
from validation._tools.report import begin, pool

ZERO = 1e-7  # q below which weights are on their way to zero
MARGIN = 2e-3  # distance in α from a boundary below which the accuracy of the grid decides
LINES = (
    ("alpha_c", BOUNDARIES["alpha_c"], {"fmt": "o-", "ms": 4, "mfc": DARK}),
    ("alpha_l", BOUNDARIES["alpha_l"], {"fmt": "s--", "ms": 4, "mfc": "white"}),
    ("semantic_from", "semantic branch appears", {"fmt": "^-", "ms": 6, "lw": 1}),
    ("semantic_stable_from", "semantic branch becomes stable", {"fmt": "P-.", "ms": 6, "lw": 1, "mfc": "white"}),
    ("positional_from", "positional branch appears", {"fmt": "d:", "ms": 6, "lw": 1.4}),
    ("positional_to", "positional branch ends", {"fmt": "v:", "ms": 6, "lw": 1.4}),
    ("positional_stable_to", "positional branch becomes unstable", {"fmt": "X-.", "ms": 6, "lw": 1, "mfc": "white"}),
)


def run_study(description, matrix):
    """Run the script of one target, whose results have the suffix `_other` for the matrix of figure 9."""
    args, verdict = begin("phase_diagram" + ("" if matrix == "paper" else "_other"), description, draw, workers=True)
    with pool(args) as executor:
        grid = land.compute_diagram(args, matrix, executor)
        bounds = land.compute_boundaries(args, matrix, executor)
    rows = land.flatten_rows(grid)
    numbers = build_tables(rows, matrix) | {
        "matrix": matrix, "probed": bounds.values,
        "lines": {name: bounds.line(name)[0] for name in bounds.lines},
        "errors": {name: bounds.line(name)[1] for name in bounds.lines},
        "notes": {name: [line.note for line in found_lines] for name, found_lines in bounds.lines.items()},
    }  # fmt: skip
    check_criterion(verdict, rows, bounds, numbers)
    verdict.end(numbers, draw)


def build_tables(rows, matrix):
    """Return losses as matrices (α, ω), NaN if a branch does not exist, and the drawn differences."""
    alphas, omegas = (np.array(sorted({row[name] for row in rows})) for name in ("alpha", "omega"))
    empty = np.full((len(alphas), len(omegas)), np.nan)
    value = {f"{branch} {key}": empty.copy() for branch in land.BRANCHES for key in ("train_loss", "test_error")}
    zero = np.zeros(empty.shape, dtype=int)  # number of branches that lead to zero weights
    for row in rows:
        place = np.searchsorted(alphas, row["alpha"]), np.searchsorted(omegas, row["omega"])
        zero[place] += row["status"] == "lost" and row["q"] < ZERO
        if row["status"] in ("converged", "inaccurate"):
            for key in ("train_loss", "test_error"):
                value[f"{row['branch']} {key}"][place] = row[key]
    semantic, positional = (value[f"{branch} train_loss"] for branch in land.BRANCHES)
    deeper = (semantic <= positional) | np.isnan(positional)  # whether the semantic minimum is the global one
    error = np.where(deeper, value["semantic test_error"], value["positional test_error"])
    baseline = [ga.linear_baseline(land.build_model(matrix, omega)).test_error for omega in omegas]
    return {"alphas": alphas, "omegas": omegas, "baseline": baseline, **value, "zero": zero,
            "difference": positional - semantic, "gain": np.array(baseline) - error}  # fmt: skip


def check_criterion(verdict, rows, bounds, numbers):
    bad = [row for row in rows if row["status"] not in ("converged", "lost")]
    verdict.check(not bad, f"{len(rows) - len(bad)} of {len(rows)} cells are solved, or known not to exist")
    verdict.check(bounds.converged, f"boundaries have the accuracy asked for: {[m for m in bounds.messages if m]}")
    wrong, compared = find_disagreements(numbers)
    verdict.check(not wrong, f"{compared} cells agree with the boundaries at their ω, except {wrong}")
    (c, c_error), (l, l_error) = bounds.line("alpha_c"), bounds.line("alpha_l")
    order = []
    for omega, *values in zip(bounds.values, c, l, c_error, l_error, strict=True):
        if values[0] - values[1] > values[2] + values[3]:
            order.append(f"ω = {omega:g}: α_c = {values[0]:.5f} > α_l = {values[1]:.5f}")
    both = int(np.isfinite(c + l).sum())
    verdict.check(both > 0 and not order, f"α_c <= α_l at the {both} of {len(c)} ω that have both, except {order}")


def find_disagreements(numbers):
    """Return cells that contradict the boundaries at their ω, and the number of compared cells.

    A cell contradicts them by the existence of a branch or by the sign of Δε_t.
    """
    wrong, compared, lines = [], 0, numbers["lines"]
    for k, omega in enumerate(numbers["probed"]):
        j = int(np.argmin(np.abs(numbers["omegas"] - omega)))
        at = {name: values[k] for name, values in lines.items()}
        for i, alpha in enumerate(numbers["alphas"]):
            near = any(abs(alpha - value) < MARGIN for value in at.values())
            if near or alpha < land.LOWEST:
                continue
            compared += 1
            for branch in land.BRANCHES:
                low, high = at[f"{branch}_from"], at[f"{branch}_to"]
                expected = not (alpha < low or alpha > high) and not lacks_branch(numbers, branch, k)
                if expected != bool(np.isfinite(numbers[f"{branch} train_loss"][i, j])):
                    wrong.append(f"α={alpha:.3f} ω={omega:g}: {branch} branch {'missing' if expected else 'there'}")
            difference = numbers["difference"][i, j]
            if np.isfinite(difference + at["alpha_c"]) and (difference > 0) != (alpha > at["alpha_c"]):
                wrong.append(f"α={alpha:.3f} ω={omega:g}: sign of Δε_t")
    return wrong, compared


def lacks_branch(numbers, branch, k):
    return "nowhere" in numbers["notes"][f"{branch}_from"][k]


def draw(numbers, path):
    colors = build_branch_colormap(missing="#BBBBBB")
    from matplotlib.colors import CenteredNorm

    names = ((r"training loss, $\varepsilon_t$(positional) − $\varepsilon_t$(semantic)", "difference"),
             (r"test error, $\varepsilon_{\rm lin} - \varepsilon_g$ of the global minimum", "gain"))  # fmt: skip
    alphas, omegas, probed = (land.to_array(numbers[name]) for name in ("alphas", "omegas", "probed"))
    with figure(path, 1, 2, (9.8, 6)) as axes:
        for axis, (title, name) in zip(axes[0], names, strict=True):
            values = np.ma.masked_invalid(1e3 * land.to_array(numbers[name]))
            mesh = axis.pcolormesh(omegas, alphas, values, cmap=colors, norm=CenteredNorm(), shading="nearest")
            axis.figure.colorbar(mesh, ax=axis, label=r"$10^{-3}$")
            i, j = np.nonzero(np.atleast_2d(numbers.get("zero", [])) == len(land.BRANCHES))  # older runs have none
            if len(i):
                axis.plot(omegas[j], alphas[i], "x", color=DARK, ms=5, label="all weights go to zero")
            for line, label, style in LINES:
                value, error = land.to_array(numbers["lines"][line]), land.to_array(numbers["errors"][line])
                inside = np.where(value <= alphas.max(), value, np.nan)
                if np.isfinite(inside).any():
                    style = {"color": DARK, "lw": 1.4} | style
                    axis.errorbar(probed, inside, error, capsize=2, label=label, **style)
            axis.set(title=title, xlabel=OMEGA, ylabel=ALPHA, ylim=(0, None))
        draw_legend(axes[0, 0], columns=3)
        name = "A = [[0.6, 0.4], [0.4, 0.6]]" if numbers["matrix"] == "paper" else "A = [[0.3, 0.7], [0.8, 0.2]]"
        axes[0, 0].figure.suptitle(
            f"{name}; blue: the semantic minimum is lower (left), attention has a lower error\n"
            "than the linear layer (right); gray: no such solution"
        )


def main():
    run_study(__doc__, "paper")


if __name__ == "__main__":
    main()
