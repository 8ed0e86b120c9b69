"""Spectral starts have the overlap with the teacher that the theory for d → ∞ predicts.

Method: on the paper's model with ω = 0.2 and σ = 0.8, for the weights that fit single samples, for the Hessian at zero,
and for the posterior weights that use the teacher's map, without and with noise on the scores, at sample complexities
on both sides of the threshold at which an eigenvalue leaves the bulk; for posterior weights this is weak recovery. At
finite d the lowest eigenvectors are computed on sampled data, in the number that the theory has outside the bulk (one
if there is none), and the squared projections of the teacher's and the positions' directions on their span are averaged
over instances.

Criterion: above the threshold, eigenvalues and squared projections, extrapolated linearly in 1/d, are within four
standard errors of the theory, whose errors are included. Below it, squared projections at the largest d are less
than 0.05 and four standard errors, and the lowest eigenvalue, extrapolated linearly in d^(−2/3), the fluctuation of
edges, is at the edge of the bulk within 3 % and four standard errors. Complexities with a strength within a quarter of
1 are drawn without a criterion, as finite d is neither above nor below. (Starts page of the manual.)
"""

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import ALPHA, DARK, draw_legend
from validation._tools.drawing import figure
from validation._tools.report import plus_minus, run_claim
from validation._tools.tables import extrapolate, markdown_table, mean_and_error

ALPHAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
SIZES = {500: 48, 1000: 32, 2000: 16}
QUICK_ALPHAS, QUICK_SIZES = (0.1, 1.5), {200: 12, 400: 8}
CASES = {  # weights, further parameters of the model, and sample complexities
    "fitted": ("fitted", {}, ALPHAS),
    "hessian": ("hessian", {}, ALPHAS),
    "posterior": ("posterior", {}, (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)),
    "posterior, s = 0.3": ("posterior", {"noise": 0.3}, (0.2, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)),
}
FAR, MAX_PROJECTION, AT_EDGE = 0.25, 0.05, 0.03  # distance of the strength from 1; projection; relative eigenvalue
KEPT = 3  # number of eigenvectors of an instance


def build_model(noise):
    """Return the model of all trials."""
    return ga.paper_model(omega=0.2, sigma=0.8, score_noise=noise)


def predict(case, weights, alpha, noise, quick):
    """Return the numbers of the theory."""
    size = {"n_points": 1024, "n_replicas": 3} if quick else {"n_points": 16384, "n_replicas": 6}
    return ga.spectral_overlap(build_model(noise), alpha, weights, **size).to_dict()


def measure(case, weights, alpha, noise, d, seed):
    """Return the lowest eigenvalues of one instance, and squared projections of directions on their eigenvectors."""
    data = ga.sample(build_model(noise), d, alpha, seed)
    posterior = weights == "posterior"
    directions_found = ga.posterior_directions(data, KEPT) if posterior else ga.spectral_directions(data, KEPT, weights)
    directions = {"teacher": data.Q_star[:, 0], "positions": data.positions[0]}
    shares = {name: ((directions_found.vectors[:, :, 0] @ v) ** 2 / (v @ v)).tolist() for name, v in directions.items()}
    return {"eigenvalues": directions_found.eigenvalues.tolist(), **shares}


def check_complexity(verdict, case, alpha, theory, rows, sizes):
    """Check one sample complexity and return the numbers that are drawn."""
    k, strength = len(theory["eigenvalues"]), theory["strength"]
    lowest = max(k, 1)
    values = {
        **{f"eigenvalue {j + 1}": lambda row, j=j: row["eigenvalues"][j] for j in range(lowest)},
        "teacher": lambda row: sum(row["teacher"][:lowest]),
        "positions": lambda row: sum(row["positions"][:lowest]),
    }
    expected = {
        **{f"eigenvalue {j + 1}": (theory["eigenvalues"][j], theory["eigenvalues_error"][j]) for j in range(k)},
        **{
            name: (float(np.sum(np.square(theory[name]))), float(2 * np.dot(theory[name], theory[f"{name}_error"])))
            for name in ("teacher", "positions")
        },
    }
    summary, judged = {}, abs(strength - 1) > FAR
    for name, value in values.items():
        table = {d: mean_and_error([value(row) for row in rows if row["d"] == d]) for d in sizes}
        means, errors = np.transpose(list(table.values()))
        limit, error = extrapolate(list(sizes), means, np.maximum(errors, 1e-12), 1.0 if k else 2 / 3)
        summary[name] = {"limit": limit, "error": error, "theory": expected.get(name), "sizes": table}
        where = f"{case}, α = {alpha}: {name}"
        if not judged:
            continue
        if k and (name.startswith("eigenvalue") or expected[name][0] > 0.01):
            mean, own = expected[name]
            allowed = 4 * error + own
            text = f"{where} {plus_minus(limit, error)} for d → ∞, theory {plus_minus(mean, own)}"
            verdict.check(abs(limit - mean) <= allowed, text)
        elif name.startswith("eigenvalue"):
            edge = theory["edge"]
            text = f"{where} {plus_minus(limit, error)} for d → ∞, the edge is {edge:.4f}"
            verdict.check(abs(limit - edge) <= AT_EDGE * abs(edge) + 4 * error, text)
        else:
            (first, _), (last, spread) = table[min(sizes)], table[max(sizes)]
            text = (
                f"{where} has a squared projection of {last:.3f} at d = {max(sizes)}, {first:.3f} at d = {min(sizes)}"
            )
            verdict.check(last <= MAX_PROJECTION + 4 * spread, text)
    return summary


TITLES = {
    "fitted": "fitted weights", "hessian": "Hessian weights", "posterior": "posterior weights",
    "posterior, s = 0.3": "posterior weights, noise s = 0.3 on the scores",
}  # fmt: skip


def draw(numbers, path):
    """Draw squared projections against α: theory as lines, instances as points."""
    table = numbers["table"]
    with figure(path, 2, 2, (9.6, 7.6)) as axes:
        for axis, case in zip(axes.flat, CASES, strict=True):
            mine = [row for row in table if row["case"] == case]
            for name, color in (("teacher", "C0"), ("positions", "C1")):
                alphas = [row["alpha"] for row in mine]
                predicted = [np.sum(np.square(row["theory"][name])) for row in mine]
                axis.plot(alphas, predicted, color=color, label=f"on the {name}, theory")
                for d, mark in zip(mine[0]["told"][name]["sizes"], "v^o", strict=False):
                    mean, error = np.array([row["told"][name]["sizes"][d] for row in mine]).T
                    style = {"fmt": mark, "color": color, "alpha": 0.7, "ms": 5}
                    axis.errorbar(alphas, mean, 2 * error, label=f"on the {name}, d = {d}", **style)
            axis.axhline(0, color=DARK, lw=0.5)
            axis.set(title=TITLES[case], xscale="log", xlim=(0.04, 5))
            ticks = [0.05, 0.1, 0.2, 0.5, 1, 2, 4]
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.xaxis.minorticks_off()
        for axis in axes[1]:
            axis.set_xlabel(ALPHA)
        for axis in axes[:, 0]:
            axis.set_ylabel("squared projection of the eigenvectors")
        draw_legend(axes[0, 1], columns=4)


def plan(quick):
    """Return the predictions and the instances."""
    sizes = QUICK_SIZES if quick else SIZES
    points = [
        {"case": case, "weights": weights, "alpha": alpha, "noise": more.get("noise", 0.0)}
        for case, (weights, more, alphas) in CASES.items() for alpha in (QUICK_ALPHAS if quick else alphas)
    ]  # fmt: skip
    return {
        predict: [point | {"quick": quick} for point in points],
        measure: [point | {"d": d, "seed": seed} for point in points for d, n in sizes.items() for seed in range(n)],
    }


def judge(verdict, theories, rows):
    """Check all sample complexities, and return the drawn numbers."""
    table, lines, sizes = [], [], sorted({row["d"] for row in rows})
    heads = ("weights", "α", "strength", "eigenvalues", "theory", "teacher", "theory", "positions", "theory")
    for theory in theories:
        case, alpha = theory["case"], theory["alpha"]
        mine = [row for row in rows if (row["case"], row["alpha"]) == (case, alpha)]
        summary = check_complexity(verdict, case, alpha, theory, mine, sizes)
        table.append({"case": case, "alpha": alpha, "theory": theory, "told": summary})
        seen = [plus_minus(v["limit"], v["error"]) for name, v in summary.items() if name.startswith("eigenvalue")]
        values = ", ".join(map(plus_minus, theory["eigenvalues"], theory["eigenvalues_error"]))
        edge = values or f"edge {theory['edge']:.3f}"
        cells = [case, f"{alpha:g}", f"{theory['strength']:.2f}", ", ".join(seen), edge]
        for name in ("teacher", "positions"):
            cells += [plus_minus(summary[name]["limit"], summary[name]["error"]), plus_minus(*summary[name]["theory"])]
        lines.append(cells)
    verdict.write_table(markdown_table(heads, lines))
    return {"table": table}


def main():
    run_claim("spectral_starts", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
