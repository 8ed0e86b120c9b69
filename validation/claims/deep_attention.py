"""Bayes-optimal estimation of two-layer attention, a teacher that is a function, and published values.

Method: y = softmax(s sᵀ), s = (c 1 + softmax(z₁ z₁ᵀ)) z₂ with two tokens, where z_k are the fields of column k (arXiv
2502.00901). (1) The α from which the second layer is found, for several c. (2) State evolution at c = 1. Published
values are from the files of the authors (SPOC-group/SequenceIndexModels); their averages are Monte Carlo estimates.

Criterion: no threshold is below 1/6, the value for a teacher whose fields are known up to one sign, by more than its
error. Published overlaps of the last layer agree within our error plus 0.03. Other differences from published values
are reported. (Page "Sequence models" of the manual.)
"""

import numpy as np

import gamp_attention as ga
from gamp_attention._tools.statistics import half_width
from gamp_attention.extensions.bayes.equations import Equations
from gamp_attention.extensions.comparison.figures import ALPHA, draw_legend
from validation._tools.agreement import softmax
from validation._tools.drawing import figure
from validation._tools.report import plus_minus, run_claim
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
FIRST = (4.0, 2.0, 1.25, 1.0, 0.875, 0.625, 0.5, 0.01)
ALPHAS = (0.233, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1)
QUICK_FIRST, QUICK_ALPHAS = (1.0,), ()
FIRST_POINTS, FIRST_REPLICAS = 8192, 4
N_POINTS, N_REPLICAS = 4096, 4
LAM, PUBLISHED_ERROR = 0.01, 0.03


def build_model(c):
    """Return two-layer attention with skip strength c."""

    def layers(z):
        mixing = c * np.eye(2) + softmax(np.outer(z[:, 0], z[:, 0]))
        s = mixing @ z[:, 1]
        return softmax(np.outer(s, s))

    return ga.sequence_model(lambda u, noise: layers(u), layers, n_tokens=2, rank=2, lam=LAM)


def compute(part, value, seed):
    """Return one part of the numbers; `part` is its name, and `value` is c or α."""
    if part == "linear response":
        rng = np.random.default_rng(seed)
        model = build_model(value)
        growths = [Equations(model, FIRST_POINTS, rng).growth() for _ in range(FIRST_REPLICAS)]
        alphas = 1 / np.array(growths)
        return {"alpha": float(alphas.mean()), "half": float(half_width(alphas))}
    model, size = build_model(1.0), {"n_points": N_POINTS, "n_replicas": N_REPLICAS}
    found = ga.solve_bayes_state_evolution(model, value, **size, seed=seed)
    return {"q": np.diagonal(found.q).tolist(), "q_error": np.diagonal(found.q_error).tolist()}


def plan(quick):
    """Return the arguments of all parts."""
    parts = [("linear response", c, 0) for c in (QUICK_FIRST if quick else FIRST)]
    if not quick:
        parts += [("evolution", alpha, 0) for alpha in ALPHAS]
    return {compute: [dict(zip(("part", "value", "seed"), each, strict=True)) for each in parts]}


def published(alpha, layer):
    """Return the published overlap of a layer at α, interpolated between neighboring points."""
    points = sorted(PUBLISHED_OVERLAPS)
    return float(np.interp(alpha, points, [PUBLISHED_OVERLAPS[point][layer] for point in points]))


def draw(numbers, path):
    """Draw overlaps against α with published curves."""
    with figure(path, 1, 1, (6.4, 4.2)) as axes:
        axis, alphas, rows = axes[0, 0], sorted(PUBLISHED_OVERLAPS), numbers["rows"]
        for layer, color in enumerate(("C0", "C1")):
            values = [PUBLISHED_OVERLAPS[alpha][layer] for alpha in alphas]
            axis.plot(alphas, values, "--", color=color, label=f"layer {layer + 1}, published")
            axis.errorbar(
                [row["value"] for row in rows], [row["q"][layer] for row in rows],
                [row["q_error"][layer] for row in rows], fmt="o-", color=color,
                label=f"layer {layer + 1}, state evolution",
            )  # fmt: skip
        axis.set(xlabel=ALPHA, ylabel="overlap with the teacher")
        draw_legend(axis, columns=2)


def rows_at(rows, part, value):
    """Return the rows of a part at a value."""
    return [row for row in rows if row["part"] == part and row["value"] == value]


def judge(verdict, rows):
    """Check thresholds and state evolution."""
    table = []
    for row in (row for row in rows if row["part"] == "linear response"):
        c, shown = row["value"], plus_minus(row["alpha"], row["half"])
        verdict.check(row["alpha"] > 1 / 6 - row["half"], f"layer 2 at c = {c:g} from α = {shown}, not below 1/6")
        known = PUBLISHED_THRESHOLDS.get(c, (None, None))[1]
        table.append([f"layer 2 from α, c = {c:g}", shown, f"{known:.3f}" if known else "–"])
    if not verdict.quick:
        judge_complete(verdict, rows, table)
    verdict.write_table(markdown_table(["quantity", "this package", "published"], table))
    return {"rows": [row for row in rows if row["part"] == "evolution"]}


def judge_complete(verdict, rows, table):
    """Check the parts that only the complete run has, and add their rows to the table."""
    for alpha in ALPHAS:
        (row,) = rows_at(rows, "evolution", alpha)
        for layer in (1, 0):
            value, error, known = row["q"][layer], row["q_error"][layer], published(alpha, layer)
            shown = plus_minus(value, error)
            table.append([f"q, layer {layer + 1}, α = {alpha:g}", shown, f"{known:.3f}"])
            if layer:
                text = f"layer 2, α = {alpha:g}: q = {shown}, published {known:.3f}"
                verdict.check(abs(value - known) < error + PUBLISHED_ERROR, text)


def main():
    run_claim("deep_attention", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
