"""Bayes-optimal estimation of two-layer attention, a teacher that is given as a function only, and published values.

Method: y = softmax(s sᵀ), s = (c 1 + softmax(z₁ z₁ᵀ)) z₂ with two tokens, where z_k are the fields of column k (arXiv
2502.00901). (1) Posteriors of the package, which only receives this function, are compared with an integral that is
specific to this teacher: the log-odds l₁, l₂ of the rows of y give s₁ − s₂ = ±√(l₁ + l₂), s₁ = l₁/(s₁ − s₂) and
s₂ = −l₂/(s₁ − s₂), z₂ = (c 1 + A(z₁))⁻¹ s, and z₁ is integrated over a grid with the weight 1/|det(c 1 + A(z₁))|.
(2) The α from which the second layer is found, for several c, and the stages of both layers for c = 1. (3) State
evolution at c = 1. (4) Message passing at d = 400 from data alone. Published values are from the files of the authors
(SPOC-group/SequenceIndexModels); their averages are Monte Carlo estimates.

Criterion: posterior means agree with the integral: the mean square of their difference is at most 2 % of that of g, and
at the weakly informed state E[g gᵀ] agrees within four standard errors. No threshold is below 1/6, the value for a
teacher whose fields are known up to one sign, by more than its error. Published overlaps at c = 1 agree within our
error plus .03, up to α = .7. Message passing agrees with state evolution within four standard errors of its instances
plus the error of the theory. Other differences from published values are reported. (Page on Bayes-optimal estimation.)
"""

from dataclasses import replace

import numpy as np

import gamp_attention as ga
from gamp_attention._core.numerics import half_width
from gamp_attention.bayes.equations import Equations
from gamp_attention.experiments.figures import ALPHA, draw_legend
from gamp_attention.models.channels.choice import channel_of
from validation._tools.drawing import figure
from validation._tools.report import Verdict, folder, options, plus_minus, pool
from validation._tools.resumable import run_trials
from validation._tools.tables import markdown_table

# published: first threshold of the first and of the second layer, for each skip strength c
PUBLISHED_THRESHOLDS = {
    4.0: (0.196336, 0.0826556), 3.0: (0.304197, 0.0943289), 2.0: (0.513338, 0.111878), 1.25: (0.735679, 0.130861),
    0.875: (0.822851, 0.152003), 0.625: (0.796539, 0.173087), 0.5: (0.755212, 0.18644), 0.01: (0.332527, 0.189418),
}  # fmt: skip
# published overlaps of the first and the second layer at c = 1
PUBLISHED_OVERLAPS = {
    0.2: (0.0, 0.0293877), 0.266667: (0.0, 0.124407), 0.333333: (0.0, 0.293811), 0.4: (0.0, 0.498783),
    0.466667: (0.0, 0.675872), 0.533333: (0.0, 0.847031), 0.6: (0.0, 0.921225), 0.666667: (0.0, 0.95863),
    0.733333: (0.0, 0.973565), 0.8: (0.0, 0.984628), 0.866667: (0.349799, 0.989179), 0.933333: (0.565633, 0.993675),
    1.0: (0.614002, 0.994738), 1.066667: (0.722243, 0.99783), 1.133333: (0.773284, 0.997843), 1.2: (0.822613, 0.997843),
}  # fmt: skip
STATES = {"weakly informed": (1.0, 0.8), "second layer nearly known": (1.0, 0.05), "both layers": (0.4, 0.05)}
FIRST, STAGED, ALPHAS, RUNS = (4.0, 1.0, 0.5), (1.0,), (0.5,), ((0.5, 2),)
QUICK_FIRST, QUICK_STAGED, QUICK_ALPHAS, QUICK_RUNS = (1.0,), (), (), ()
N_POINTS, N_REPLICAS, DIM, MAX_ITER = 128, 4, 400, 30
STAGE_POINTS, STAGE_REPLICAS = 64, 3
N_NODES = 1024  # number of points of the posteriors that are compared with the integral
PUBLISHED_ERROR, MAX_ERROR, SIGMAS = 0.03, 0.02, 4.0


def build_model(c):
    """Return two-layer attention with skip strength c."""

    def softmax(scores):
        weights = np.exp(scores - scores.max(axis=1)[:, None])
        return weights / weights.sum(axis=1)[:, None]

    def layers(z):
        second = (c * np.eye(2) + softmax(np.outer(z[:, 0], z[:, 0]))) @ z[:, 1]
        return softmax(np.outer(second, second))

    return ga.sequence_model(lambda u, noise: layers(u), layers, n_tokens=2, rank=2)


def integrate_fibre(y, omega, V, c=1.0, reach=6.0, n_nodes=301):
    """Return posterior means (n, 2, 2) of the fields by an integral over the fields of the first layer.

    Parameters
    ----------
    y : (n, 2, 2) targets.
    omega, V : (n, 2, 2) prior means, and prior variances (2,) of both columns.
    c : skip strength.
    """
    l1, l2 = np.log(y[:, 0, 0] / y[:, 0, 1]), np.log(y[:, 1, 1] / y[:, 1, 0])
    s = np.stack([l1, -l2], axis=1) / np.sqrt(l1 + l2)[:, None]
    line = np.linspace(-reach, reach, n_nodes)
    grid = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    means = np.empty((len(y), 2, 2))
    for i in range(len(y)):
        z1 = omega[i, :, 0] + np.sqrt(V[0]) * grid
        scores = np.exp(z1[:, :, None] * z1[:, None, :])
        B = c * np.eye(2) + scores / scores.sum(axis=2, keepdims=True)
        det = B[:, 0, 0] * B[:, 1, 1] - B[:, 0, 1] * B[:, 1, 0]
        z2 = np.stack(
            [B[:, 1, 1] * s[i, 0] - B[:, 0, 1] * s[i, 1], B[:, 0, 0] * s[i, 1] - B[:, 1, 0] * s[i, 0]], axis=1
        )
        z2 = np.stack([z2, -z2]) / det[:, None]
        logs = -0.5 * np.sum(grid**2, axis=1) - np.log(np.abs(det))
        logs = logs - 0.5 * np.sum((z2 - omega[i, :, 1]) ** 2, axis=2) / V[1]
        weight = np.exp(logs - logs.max())
        means[i, :, 0] = weight.sum(axis=0) @ z1 / weight.sum()
        means[i, :, 1] = np.einsum("sj,sja->a", weight, z2) / weight.sum()
    return means


def compute(part, value, seed):
    """Return one part of the numbers; `part` is its name, and `value` is c, α or the name of a state."""
    if part == "posterior":
        V, rng, n = np.array(STATES[value]), np.random.default_rng(seed), 50
        omega = np.sqrt(1 - V) * rng.standard_normal((n, 2, 2))
        u = omega + np.sqrt(V) * rng.standard_normal((n, 2, 2))
        channel = replace(channel_of(build_model(1.0)), n_nodes=N_NODES)
        y = channel.observe(u, np.zeros((n, 0)))
        found = channel.posterior(y, omega, np.tile(np.diag(V), (2, 1, 1)))
        exact = (integrate_fibre(y.reshape(n, 2, 2), omega, V) - omega) / V
        halves = (found.halves.mean - omega) / V
        products = (halves[0] * halves[1] - exact**2).mean(axis=1)
        return {
            "squares": (exact**2).mean(axis=(0, 1)).tolist(),
            "errors": (((found.mean - omega) / V - exact) ** 2).mean(axis=(0, 1)).tolist(),
            "bias": products.mean(axis=0).tolist(),
            "bias_error": (products.std(axis=0) / np.sqrt(n)).tolist(),
        }
    if part == "linear response":
        rng = np.random.default_rng(seed)
        growths = np.array([Equations(build_model(value), 384, rng).linear_growth() for _ in range(6)])
        return {"alpha": float(1 / growths.mean()), "half": float(half_width(1 / growths))}
    if part == "stages":
        found = ga.bayes_thresholds(build_model(value), n_points=STAGE_POINTS, n_replicas=STAGE_REPLICAS, seed=seed)
        return {"stages": [[list(s.columns), s.alpha, s.alpha_error] for s in found.stages]}
    if part == "evolution":
        found = ga.solve_bayes_state_evolution(
            build_model(1.0), value, n_points=N_POINTS, n_replicas=N_REPLICAS, seed=seed
        )
        return {
            "q": np.diagonal(found.q).tolist(), "q_error": np.diagonal(found.q_error).tolist(),
            "test_error": found.test_error, "test_error_error": found.test_error_error, "status": found.status.value,
        }  # fmt: skip
    data = ga.sample(build_model(1.0), DIM, value, seed=seed)
    run = ga.run_bayes_amp(data, max_iter=MAX_ITER, tol=1e-2)
    return {
        "overlap": np.abs(np.diagonal(run.overlap)).tolist(), "norm": np.diagonal(run.Q.T @ run.Q / DIM).tolist(),
        "status": run.status.value, "residual": run.residual,
    }  # fmt: skip


def plan(quick):
    """Return the arguments of all parts."""
    staged, alphas, runs = (QUICK_STAGED, QUICK_ALPHAS, QUICK_RUNS) if quick else (STAGED, ALPHAS, RUNS)
    states = [("posterior", state, 0) for state in STATES]
    first = [("linear response", c, 0) for c in (QUICK_FIRST if quick else FIRST)]
    rest = [("evolution", alpha, 0) for alpha in alphas]
    rest += [("amp", alpha, seed) for alpha, n in runs for seed in range(n)]
    rest += [("stages", c, 0) for c in staged]
    return [dict(zip(("part", "value", "seed"), each, strict=True)) for each in states + first + rest]


def published(alpha, layer):
    """Return the published overlap of a layer at α, interpolated between neighbouring points."""
    points = sorted(PUBLISHED_OVERLAPS)
    return float(np.interp(alpha, points, [PUBLISHED_OVERLAPS[point][layer] for point in points]))


def draw(numbers, path):
    """Draw overlaps against α with the published curve, and thresholds against the skip strength."""
    rows = numbers["rows"]
    with figure(path, 1, 2, (9.6, 4.2)) as axes:
        left, right = axes[0]
        alphas = sorted(PUBLISHED_OVERLAPS)
        for layer, colour in enumerate(("C0", "C1")):
            values = [PUBLISHED_OVERLAPS[alpha][layer] for alpha in alphas]
            left.plot(alphas, values, "--", color=colour, label=f"layer {layer + 1}, published")
            mine = [row for row in rows if row["part"] == "evolution"]
            left.errorbar(
                [row["value"] for row in mine], [row["q"][layer] for row in mine],
                [row["q_error"][layer] for row in mine], fmt="o", color=colour,
                label=f"layer {layer + 1}, state evolution",
            )  # fmt: skip
            runs = [row for row in rows if row["part"] == "amp"]
            left.plot(
                [row["value"] for row in runs], [row["overlap"][layer] for row in runs], "x", color=colour,
                label=f"layer {layer + 1}, d = {DIM}",
            )  # fmt: skip
        left.set(xlabel=ALPHA, ylabel="overlap with the teacher")
        first = sorted((row for row in rows if row["part"] == "linear response"), key=lambda row: row["value"])
        right.errorbar(
            [row["value"] for row in first], [row["alpha"] for row in first], [row["half"] for row in first],
            fmt="o-", color="C1", label="layer 2, linear response",
        )  # fmt: skip
        cs = sorted(PUBLISHED_THRESHOLDS)
        right.plot(cs, [PUBLISHED_THRESHOLDS[c][1] for c in cs], "--", color="C1", label="layer 2, published")
        right.axhline(1 / 6, color="C7", lw=1, ls=":", label="1/6")
        stages = [row for row in rows if row["part"] == "stages"]
        seconds = [(row["value"], *row["stages"][1][1:]) for row in stages if len(row["stages"]) > 1]
        if seconds:
            right.errorbar(*zip(*seconds, strict=True), fmt="s", color="C0", label="layer 1, stages")
        right.plot(cs, [PUBLISHED_THRESHOLDS[c][0] for c in cs], "--", color="C0", label="layer 1, published")
        right.set(xlabel="skip strength c", ylabel="α from which a layer is found")
        draw_legend(left, right, columns=4)


def main():
    args = options(__doc__, draw=True, workers=True)
    verdict = Verdict("deep_attention", args)
    if args.draw:
        draw(verdict.stored(), verdict.path(".png"))
        return
    with pool(args) as executor:
        rows = run_trials(folder(args, verdict.name), compute, plan(args.quick), executor)
    by = {(row["part"], row["value"], row["seed"]): row for row in rows}
    table = []
    for state in STATES:
        row = by["posterior", state, 0]
        part = max(e / s for e, s in zip(row["errors"], row["squares"], strict=True) if s > 1e-9)
        verdict.check(part < MAX_ERROR, f"posterior, {state}: mean square error of g is {part:.1%} of its square")
        if state == "weakly informed":
            sigmas = abs(row["bias"][1]) / row["bias_error"][1]
            verdict.check(sigmas < SIGMAS, f"E[g gᵀ], {state}: {sigmas:.1f} standard errors from the integral")
    for (part, c, _), row in sorted(by.items(), key=lambda item: str(item[0])):
        if part == "linear response":
            text = f"layer 2 at c = {c:g} from α = {plus_minus(row['alpha'], row['half'])}"
            verdict.check(row["alpha"] > 1 / 6 - row["half"], f"{text}, not below 1/6")
            known = PUBLISHED_THRESHOLDS.get(c, (None, None))[1]
            table.append([f"layer 2, c = {c:g}", plus_minus(row["alpha"], row["half"]), known or "–"])
        if part == "stages":
            for columns, alpha, error in row["stages"]:
                layers = ", ".join(str(column + 1) for column in columns)
                table.append([f"stages, c = {c:g}: layer {layers}", plus_minus(alpha, error), "–"])
            order = [columns for columns, _, _ in row["stages"]]
            verdict.check(order == [[1], [0]], f"c = {c:g}: the second layer is found before the first")
    for alpha in QUICK_ALPHAS if args.quick else ALPHAS:
        row = by["evolution", alpha, 0]
        known, mine, error = published(alpha, 1), row["q"][1], row["q_error"][1]
        text = f"layer 2 at α = {alpha:g}: q = {plus_minus(mine, error)}, published {known:.3f}"
        verdict.check(abs(mine - known) < error + PUBLISHED_ERROR, text)
        table.append([f"q, layer 2, α = {alpha:g}", plus_minus(mine, error), f"{known:.3f}"])
        table.append([f"q, layer 1, α = {alpha:g}", plus_minus(row["q"][0], row["q_error"][0]), "0"])
        shown = plus_minus(row["test_error"], row["test_error_error"])
        table.append([f"test error, α = {alpha:g}", shown, "–"])
    for alpha, n in QUICK_RUNS if args.quick else RUNS:
        overlaps = np.array([by["amp", alpha, seed]["overlap"] for seed in range(n)])
        mean = overlaps.mean(axis=0)
        spread = overlaps.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.full(2, np.nan)
        for layer in (1, 0):
            shown = plus_minus(float(mean[layer]), float(spread[layer]))
            table.append([f"d = {DIM}, layer {layer + 1}, α = {alpha:g}", shown, f"{published(alpha, layer):.3f}"])
        theory = by.get(("evolution", alpha, 0))
        if theory is not None:
            ratio = abs(mean[1] - theory["q"][1]) / (spread[1] + theory["q_error"][1] / SIGMAS)
            verdict.check(ratio < SIGMAS, f"d = {DIM}, α = {alpha:g}: {ratio:.1f} standard errors from state evolution")
    verdict.write_table(markdown_table(["quantity", "this package", "published"], table))
    verdict.end({"rows": rows}, draw)


if __name__ == "__main__":
    main()
