"""Spectrum of the Hessian at minima, against its limit for d → ∞, and whether positional minima are marginal.

Method: the paper's model (ω = 0.3, σ = 0.5, λ = 0.01), α = 1.5, asymptotic loss, both branches. GAMP runs to zero
gradient, and `hessian_spectrum` gives the density, the lowest eigenvalues and the eigenvalues outside the bulk of each
minimum. Means at several d are extrapolated to d → ∞, linear in 1/d, and lowest eigenvalues linear in d^(−2/5) (density
∝ x^(3/2) of rare samples). `limiting_spectrum` gives the predictions; on the positional branch also with one step of
replica symmetry breaking, at the Parisi parameter of the stored ground state (`positional_breaking`), not with --quick.

Criterion: the density differs from the predicted density by at most 0.05 in L1 distance at a resolution of 0.001;
eigenvalues outside the bulk and their projections agree within 4 standard errors plus the stated error. Lowest
eigenvalues are reported. (Page "Curvature" of the manual.)
"""

import numpy as np

import gamp_attention as ga
from validation._tools.catalog import ROOT, load_result
from validation._tools.drawing import figure
from validation._tools.report import plus_minus, run_claim
from validation._tools.tables import extrapolate, markdown_table, mean_and_error, round_curve

ALPHA = 1.5
SEEDS = {250: 12, 500: 8, 1000: 6, 2000: 3}  # instances by d
X, WIDTH = np.linspace(-0.004, 0.1, 79), 1e-3  # points and resolution of densities
EDGE = np.geomspace(2e-4, 2e-2, 30)  # points of the density near the lower edge
EDGE_WIDTH = 2e-5  # resolution there
N_POINTS = 2048  # points of averages of the theory
N_LOWEST = 12  # number of lowest eigenvalues
BRANCHES = ("semantic", "positional")
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#777777"


def run_cell(branch, d, seed):
    """Return the numbers of one minimum."""
    data = ga.sample(ga.paper_model(0.3), d, ALPHA, 60_000 + seed)
    run = ga.run_gamp(data, branch, "asymptotic", max_iter=1000)
    spectrum = ga.hessian_spectrum(data, run.Q, "asymptotic", n_eigenvalues=N_LOWEST, n_probes=4, n_steps=200)
    spans = [np.linalg.svd(columns, full_matrices=False)[0] for columns in (data.Q_star, run.Q, data.positions.T)]
    spans[2] = spans[2][:, :1]  # both positions are opposite
    outside = [
        [float(value), *(float(np.linalg.norm(span.T @ vector)) for span in spans)]
        for value, vector in zip(spectrum.highest[-2:], spectrum.highest_vectors[-2:], strict=True)
    ]
    return {
        "gradient_norm": run.gradient_norm, "lowest": round_curve(spectrum.lowest, 7),
        "outside": outside,
        "density": round_curve(spectrum.density(X, WIDTH)[0]) if d == max(SEEDS) else None,
    }  # fmt: skip


def predict(branch, response, steps):
    """Return the predicted spectrum at a fixed point of state evolution."""
    model = ga.paper_model(0.3)
    se = ga.solve_state_evolution(model, ALPHA, branch, response=response, rtol=1e-3, stability=False)
    if steps:
        ground = load_result(ROOT / "results" / "positional_breaking.json")["ground"]
        se = ga.solve_broken(model, ALPHA, se.overlaps, steps=steps, parisi=ground[:1], rtol=1e-2)
    spectrum = ga.limiting_spectrum(model, ALPHA, se, X, WIDTH, n_points=N_POINTS)
    near = ga.limiting_spectrum(model, ALPHA, se, EDGE, EDGE_WIDTH, n_points=N_POINTS)
    return spectrum.to_dict() | {"near": near.density}


def plan(quick):
    """Return the instances and the predictions."""
    sizes = {200: 4, 400: 4} if quick else SEEDS
    solutions = [("semantic", "stein", 0), ("positional", "stein", 0)]
    solutions += [] if quick else [("positional", "derivative", 0), ("positional", "stein", 1)]
    return {
        run_cell: [
            {"branch": b, "d": d, "seed": s} for b in BRANCHES for d, seeds in sizes.items() for s in range(seeds)
        ],
        predict: [dict(zip(("branch", "response", "steps"), each, strict=True)) for each in solutions],
    }


def judge(verdict, rows, predictions):
    """Check eigenvalues outside the bulk and densities against the predictions."""
    names = {"derivative": ", derivative", 1: ", one step"}
    theory = {
        each["branch"] + names.get(each["response"], "") + names.get(each["steps"], ""): each for each in predictions
    }
    reached = [row for row in rows if row["gradient_norm"] <= 1e-8]
    verdict.check(len(reached) == len(rows), f"{len(reached)} of {len(rows)} runs end at gradient norm <= 1e-8")
    table = [*outside_rows(verdict, reached, theory), *lowest_rows(reached, theory)]
    sizes = sorted({row["d"] for row in rows})
    verdict.write_table(
        markdown_table(["branch", "quantity", *(f"d = {d}" for d in sizes), "d → ∞", "prediction"], table)
    )
    compare_densities(verdict, reached, theory)
    kept = [{key: row[key] for key in ("branch", "d", "lowest", "density")} for row in reached]
    return {"rows": kept, "theory": theory}


def summary(rows, branch, value, power=1.0):
    """Return means with errors at every d, and the limit with its error."""
    sizes = sorted({row["d"] for row in rows})
    groups = [[value(row) for row in rows if (row["branch"], row["d"]) == (branch, d)] for d in sizes]
    pairs = [mean_and_error(group) for group in groups]
    return pairs, extrapolate(sizes, *zip(*pairs, strict=True), power)


def outside_rows(verdict, rows, theory):
    """Return table rows of the eigenvalues above the bulk, with checks against the predictions."""
    table = []
    for branch in BRANCHES:
        predicted = theory[branch]
        for k in range(len(predicted["eigenvalues"])):
            place = k - len(predicted["eigenvalues"])
            for column, name in enumerate(("eigenvalues", "teacher", "weights", "positions")):
                value, error = predicted[name][place], predicted[f"{name}_error"][place]
                if name != "eigenvalues" and value < 0.1:
                    continue
                label = "eigenvalue" if name == "eigenvalues" else f"projection on {name}"
                pairs, limit = summary(rows, branch, lambda row, p=place, c=column: row["outside"][p][c])
                difference = abs(limit[0] - value) / (limit[1] + error / 4)
                verdict.check(difference < 4, f"{branch} {label} {place}: {limit} against {value:.4f} ± {error:.1g}")
                cells = [plus_minus(*pair) for pair in (*pairs, limit, (value, error))]
                table.append([branch, label if name != "eigenvalues" else f"{label} outside", *cells])
    return table


def lowest_rows(rows, theory):
    """Return table rows of lowest eigenvalues."""
    table = []
    for branch in BRANCHES:
        names = [name for name in theory if name.startswith(branch)]
        edges = "; ".join(
            f"{plus_minus(theory[name]['lower_edge'], theory[name]['lower_edge_error'])}{name[len(branch) :]}"
            for name in names
        )
        pairs, limit = summary(rows, branch, lambda row: row["lowest"][0], 2 / 5)
        cells = [plus_minus(*pair) for pair in (*pairs, limit)]
        table.append([branch, "lowest eigenvalue, linear in d^(−2/5)", *cells, edges])
    return table


def compare_densities(verdict, rows, theory):
    """Check the L1 distances between measured and predicted densities."""
    for name, predicted in theory.items():
        measured = [row["density"] for row in rows if row["branch"] == name.split(",")[0] and row["density"]]
        if not measured:
            continue
        distance = float(np.trapezoid(np.abs(np.mean(measured, axis=0) - predicted["density"]), X))
        verdict.check(distance < 0.05, f"{name}: L1 distance of densities {distance:.3f}, below 0.05")


def draw(stored, path):
    """Draw densities with eigenvalues outside, and the densities near the lower edge."""
    theory, rows = stored["theory"], stored["rows"]
    with figure(path, 1, 2, (9.6, 4)) as axes:
        for branch, color in zip(BRANCHES, (BLUE, ORANGE), strict=True):
            ax, predicted = axes[0][0], theory[branch]
            ax.plot(X, predicted["density"], color=color, label=f"{branch}, d → ∞")
            measured = [row["density"] for row in rows if row["branch"] == branch and row["density"]]
            if measured:
                ax.plot(X[::2], np.mean(measured, axis=0)[::2], ".", color=color, label="instances")
            for value in predicted["eigenvalues"]:
                ax.axvline(value, color=color, ls=":")
            at = sorted({row["d"] for row in rows})
            ax = axes[0][1]
            largest = [row for row in rows if row["branch"] == branch and row["d"] == at[-1]]
            x = np.sort([value for row in largest for value in row["lowest"]])
            x = x[x <= min((row["lowest"][-1] for row in largest), default=0.0)]  # all eigenvalues below are known
            ax.plot(x, np.arange(1, len(x) + 1) / (max(len(largest), 1) * at[-1]), ".", color=color)
            for name, style in ((branch, "-"), (f"{branch}, one step", "--")):
                if name in theory:
                    near = np.array(theory[name]["near"])
                    total = np.concatenate([[0], np.cumsum(np.diff(EDGE) * (near[1:] + near[:-1]) / 2)])
                    ax.plot(EDGE, total, style, color=color, label=name)
        axes[0][0].set(xlabel="eigenvalue", ylabel="density", xlim=(-0.004, 0.25))
        axes[0][0].set(title="density, and eigenvalues outside (dotted)")
        axes[0][1].set(
            xscale="log", yscale="log", xlabel="eigenvalue x", ylabel="fraction of eigenvalues below x",
            title="lower edge", xlim=(1e-3, 1.5e-2), ylim=(1e-4, 1e-1),
        )  # fmt: skip
        axes[0][1].set(xticks=[1e-3, 3e-3, 1e-2], xticklabels=["0.001", "0.003", "0.01"])
        axes[0][1].tick_params(axis="x", which="minor", labelbottom=False)
        for ax, location in zip(axes[0], ("upper right", "upper left"), strict=True):
            # between the dotted lines of both branches in the first panel
            beside = {"bbox_to_anchor": (0.92, 1)} if ax is axes[0][0] else {}
            ax.legend(fontsize=9, loc=location, **beside)


def main():
    run_claim("curvature", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
