"""Bayes-optimal fixed points agree with closed forms and independent quadratures from α = 0.001 to 10 000.

Method: linear labels have a quadratic equation. For signs, logistic labels, binary weights, phase retrieval and
attention of two to four tokens, the scalar equation V = 1/(1 + α h(V)) is iterated from no knowledge and from almost
complete knowledge, with h by scipy's adaptive quadrature; test error and free entropy are computed in the same way.
Noisy intensities are averaged over a dense grid of fields, outputs and centers. Two classes from a softmax of two
columns are equivalent to logistic labels. All other label distributions and kinds of attention are solved on the same
grid of α.

Criterion: every problem has a stable fixed point at every α. The status is `converged` for all problems whose averages
are integrals, and for 95 % of all problems; close to a threshold, sets of random points may disagree, which gives
`inaccurate`. V, q, the test error and the free entropy differ from the references by at most their stated errors plus
the accuracy of the reference, 1e-9 of the value; averages over samples by at most twice their stated half-widths. V
never grows with α. (Bayes page of the manual.)
"""

import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import expit, gamma, log_ndtr

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import ALPHA, DARK, draw_legend
from validation._tools.drawing import figure
from validation._tools.report import Verdict, folder, options, pool
from validation._tools.resumable import run_trials
from validation._tools.tables import markdown_table

ALPHAS = [1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.7, 1.05, 2.0, 5.0, 10.0, 30.0, 100.0, 1e3, 1e4]
QUICK_ALPHAS = [1e-3, 1.05, 1e4]
REFERENCE = 1e-9  # accuracy of the references, relative
BINARY = ga.CoordinateLaw([0.5, 0.5], np.ones((2, 1)), np.zeros((2, 1)), [[1.0], [-1.0]], np.zeros((2, 1, 1)))
SPARSE = ga.coordinate_law(1.0, [0.0], ga.sparse_teacher(0.1), n_tokens=1)


def build_linear(noise, **more):
    return ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise), **more)


def build_logistic(temperature, **more):
    return ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(temperature), **more)


def build_intensity(noise, **more):
    return ga.glm_model(ga.PhaseRetrievalLoss(), ga.IntensityLabels(noise), **more)


def build_classes(t, **more):
    return ga.glm_model(ga.MultinomialLoss(), rank=t, **more)


INTEGRALS = {
    **{f"linear, noise {x:g}": build_linear(x) for x in (0.01, 0.1, 0.5, 2.0)},
    "binary weights, linear, noise 0.5": replace(build_linear(0.5), coordinates=BINARY),
    "perceptron": build_logistic(0.0),
    **{f"logistic, temperature {x:g}": build_logistic(x) for x in (0.1, 0.4, 1.0, 10.0)},
    "phase retrieval": build_intensity(0.0),
    **{f"attention, L = {L}": ga.attention_model(L, sigma=1.0) for L in (2, 3, 4)},
}
SAMPLED = {"noisy intensities, noise 0.5": build_intensity(0.5), "two classes": build_classes(2)}
OTHERS = {
    "linear without noise": build_linear(0.0),
    "linear, two columns, three tokens": build_linear(0.5, n_tokens=3, rank=2, sigma=[1.0, 0.5, 0.2]),
    "perceptron, three tokens": build_logistic(0.0, n_tokens=3, sigma=[1.0, 0.5, 0.2]),
    "binary weights, perceptron": replace(build_logistic(0.0), coordinates=BINARY),
    "binary weights, logistic": replace(build_logistic(0.4), coordinates=BINARY),
    "sparse weights, linear, noise 0.1": replace(build_linear(0.1), coordinates=SPARSE),
    "sparse weights, perceptron": replace(build_logistic(0.0), coordinates=SPARSE),
    "noisy intensities, two tokens": build_intensity(0.5, n_tokens=2, sigma=[1.0, 0.3]),
    "three classes": build_classes(3),
    "three classes, two tokens": build_classes(3, n_tokens=2, sigma=[1.0, 0.5]),
    "attention, three tokens of different covariances": ga.attention_model(
        3, coordinates=ga.coordinate_law(np.array([[1.0, 0.2, 0.5], [0.3, 0.9, 0.1]]), n_tokens=3)
    ),
    "attention of two columns, L = 2": ga.attention_model(2, 2, 2),
    "attention of two columns, L = 3": ga.attention_model(3, 2, 2),
    "attention of two columns, L = 4": ga.attention_model(4, 2, 2),
    "attention with score noise 0.3": ga.attention_model(2, sigma=1.0, score_noise=0.3),
}
MODELS = INTEGRALS | SAMPLED | OTHERS


def solve(name, alpha, n_points, n_replicas):
    """Return all fixed points of a problem."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        points = ga.bayes_fixed_points(MODELS[name], alpha, n_points=n_points, n_replicas=n_replicas)
    return {
        "points": [
            {
                "V": float(np.trace(each.V.sum(axis=0))), "V_error": float(np.abs(each.V_error).sum()),
                "first": float(each.V[0, 0, 0]), "first_error": float(each.V_error[0, 0, 0]),
                "q": float(each.q[0, 0]), "q_error": float(each.q_error[0, 0]),
                "test_error": each.test_error, "test_error_error": each.test_error_error,
                "free_entropy": each.free_entropy, "free_entropy_error": each.free_entropy_error,
                "status": each.status.value, "stable": each.stable, "full": each.full,
            }
            for each in points
        ]
    }  # fmt: skip


def normal_density(x):
    """Return the standard normal density."""
    return np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)


def integrate(function, scale):
    """Return 2 ∫_0^∞ of a function that varies on a given scale, by adaptive quadrature in parts."""
    ends = np.unique(np.clip(np.concatenate([[0.0], scale * np.array([0.3, 1, 3, 6, 12, 40]), [2, 6, 12]]), 0, 12.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quad warns in parts in which the integrand is zero to rounding
        parts = [quad(function, a, b, epsabs=1e-18, epsrel=1e-13, limit=400)[0] for a, b in pairwise(ends)]
    return 2 * sum(parts)


def average_perceptron(V):
    """Return h = E g², E log Z and the test error for signs."""
    q, scale = 1 - V, np.sqrt(V / (1 - V))
    at = lambda z: z / scale  # noqa: E731

    def squares(z):
        return normal_density(z) * np.exp(-(at(z) ** 2) - np.log(2 * np.pi) - log_ndtr(at(z)) - log_ndtr(-at(z)))

    logs = lambda z: normal_density(z) * sum(np.exp(log_ndtr(s * at(z))) * log_ndtr(s * at(z)) for s in (1, -1))  # noqa: E731
    error = 4 / np.pi * np.arcsin(np.sqrt(V / 2)) if V < 0.5 else 2 / np.pi * np.arccos(q)
    return integrate(squares, scale) / V, integrate(logs, scale), float(error)


LINE = np.linspace(-11, 11, 6001)
WEIGHTS = normal_density(LINE) * (LINE[1] - LINE[0])


def average_logistic(V, temperature):
    """Return h, E log Z and the test error for logistic labels; sums of 6001 terms average over the field."""
    q = 1 - V

    def parts(z):
        x = (np.sqrt(q) * z + np.sqrt(V) * LINE) / temperature
        up, down = expit(x), expit(-x)
        return WEIGHTS @ up, WEIGHTS @ down, WEIGHTS @ (up * down) / temperature

    def squares(z):
        up, down, slope = parts(z)
        return normal_density(z) * slope**2 / max(up * down, 1e-300)

    def logs(z):
        up, down, _ = parts(z)
        return normal_density(z) * (up * np.log(up) + down * np.log(max(down, 1e-300)))

    def errors(z):
        up, down, _ = parts(z)
        return normal_density(z) * 4 * up * down

    scale = max(np.sqrt(V), temperature) / np.sqrt(q)
    return tuple(integrate(each, scale) for each in (squares, logs, errors))


def average_signs(V, L):
    """Return Σ_l E g_l², E log Z and the test error of phase retrieval, for fields known up to a common sign."""
    q, share = 1 - V, 2 ** (1 - L / 2) / gamma(L / 2)

    def average(function):
        def radial(r):
            kappa = r * np.sqrt(q / V)
            return share * r ** (L - 1) * np.exp(-0.5 * r * r) * (WEIGHTS @ function(kappa**2 + kappa * LINE, r))

        return 0.5 * integrate(radial, np.sqrt(V / q))

    if q < 0.5:
        total = (average(lambda h, r: r * r * np.tanh(h) ** 2) - L * q) / V**2
    else:
        total = L / V - average(lambda h, r: r * r / np.cosh(np.clip(h, -300, 300)) ** 2) / V**2
    wrong = average(lambda h, r: np.logaddexp(0, -2 * h))
    return total, wrong - 0.5 * L - np.log(2) - 0.5 * L * np.log(2 * np.pi * V), 4 * q * V + 2 * V**2


def average_intensities(V, noise):
    """Return h, E log Z and the test error of noisy intensities, by sums over centers, outputs and fields."""
    total = logs = 0.0
    x = np.linspace(-8, 8, 321)
    for z in np.linspace(-6, 6, 121)[60:]:
        omega = z * np.sqrt(1 - V)
        S = omega + np.sqrt(V) * x
        high = max(S.min() ** 2, S.max() ** 2)
        low = 0.0 if S.min() < 0 < S.max() else min(S.min() ** 2, S.max() ** 2)
        y = np.linspace(low - 8 * noise, high + 8 * noise, 1 + int((high - low + 16 * noise) / (0.2 * noise)))
        kernel = normal_density((y[:, None] - S**2) / noise) / noise * normal_density(x) * (x[1] - x[0])
        Z, slope = kernel.sum(axis=1), kernel @ x / np.sqrt(V)
        weight = (1 if z == 0 else 2) * normal_density(z) * 0.1 * (y[1] - y[0])
        seen = Z > 1e-290
        total += weight * np.sum(slope[seen] ** 2 / Z[seen])
        logs += weight * np.sum(Z[seen] * np.log(Z[seen]))
    return total, logs, 4 * (1 - V) * V + 2 * V**2 + noise**2


def find_fixed_points(alpha, h, update):
    """Return V from no knowledge and from almost complete knowledge, by iteration and then a root search."""
    solutions = []
    for V in (1 - 1e-3, 1e-12):
        for _ in range(1000):
            V, last = update(alpha * h(V)), V
            if abs(V / last - 1) < 1e-3 or V < 1e-13:
                break
        if V > 1 - 1e-7 or V < 1e-11:
            solutions.append(1.0 if V > 0.5 else 0.0)
            continue
        excess = lambda x: np.log(update(alpha * h(np.exp(x)))) - x  # noqa: E731
        reach = 0.02
        while excess(np.log(V) - reach) * excess(min(np.log(V) + reach, -1e-9)) > 0 and reach < 2:
            reach *= 2
        if reach >= 2:  # the iteration leads to no knowledge, or to complete knowledge
            solutions.append(1.0 if V > 0.5 else 0.0)
            continue
        solutions.append(float(np.exp(brentq(excess, np.log(V) - reach, min(np.log(V) + reach, -1e-9), xtol=1e-13))))
    return solutions


def apply_gaussian_prior(hats):
    """Return V for weights N(0, 1) from the conjugate parameter."""
    return 1 / (1 + hats)


def apply_binary_prior(hats):
    """Return V = E[1 − tanh²(s + √s z)] for weights ±1 from the conjugate parameter s."""

    def unknown(z):
        both = [np.cosh(np.clip(hats + sign * np.sqrt(hats) * z, -300, 300)) ** -2.0 for sign in (1, -1)]
        return normal_density(z) * np.mean(both)

    return integrate(unknown, 1.0)


def compute_reference(name, alpha):
    """Return V, test error and Φ of the uninformed and the informed solution; NaN without a reference."""
    kind, number = name, float(name.split()[-1]) if name.split()[-1][0].isdigit() else 0.0
    if name.startswith("linear"):
        b = number**2 + alpha - 1
        root = np.hypot(b, 2 * number)
        V = 2 * number**2 / (b + root) if b > 0 else 0.5 * (root - b)
        s = alpha / (V + number**2)
        entropy = -0.5 * alpha * (np.log(2 * np.pi * (V + number**2)) + 1) + 0.5 * (s * V - np.log1p(s))
        return [{"V": V, "test_error": V + number**2, "free_entropy": entropy}] * 2
    if name.startswith("binary"):
        V = find_fixed_points(alpha, lambda V: 1 / (V + number**2), apply_binary_prior)
        return [{"V": v, "test_error": v + number**2, "free_entropy": np.nan} for v in V]
    size = 1
    if kind == "perceptron":
        averages = average_perceptron
    elif kind.startswith("logistic"):
        averages = lambda V: average_logistic(V, number)  # noqa: E731
    elif kind == "two classes":
        averages = lambda V: average_logistic(V, np.sqrt(0.5))  # noqa: E731
    elif kind.startswith("noisy"):
        averages = lambda V: average_intensities(V, number)  # noqa: E731
    else:
        size = 1 if kind == "phase retrieval" else int(number)
        averages = lambda V: average_signs(V, size)  # noqa: E731
    rows = []
    for V in find_fixed_points(alpha, lambda V: averages(V)[0], apply_gaussian_prior):
        if V in (0.0, 1.0):
            rows.append({"V": V, "test_error": np.nan, "free_entropy": np.nan})
            continue
        h, log_z, error = averages(V)
        entropy = alpha * log_z + 0.5 * (alpha * h * V - np.log1p(alpha * h))
        known = kind != "two classes"
        rows.append({"V": V, "test_error": error if known and not kind.startswith("attention") else np.nan,
                     "free_entropy": entropy if known else np.nan})  # fmt: skip
    return rows


def store_reference(name, alpha):
    """Return the references of a problem as a row, stored apart from the package's results."""
    return {"ends": compute_reference(name, alpha)}


def compare(row, ends, sampled):
    """Return the differences at one α in units of the allowed differences, and the largest relative one for V."""
    stable = [point for point in row["points"] if point["stable"]]
    tokens = int(row["name"].split("= ")[1]) if row["name"].startswith("attention") else 1
    ratios, relative = [], 0.0
    for point, end in zip((stable[0], stable[-1]), ends, strict=True):
        V = end["V"] * tokens
        pairs = [("V", V), ("test_error", end["test_error"]), ("free_entropy", end["free_entropy"])]
        if row["name"] == "two classes":  # labels do not depend on the sum of the columns
            pairs = [("first", 0.5 * (1 + V))]
        elif not row["name"].startswith("attention"):
            pairs.append(("q", 1 - V))
        for what, wanted in pairs:
            value, error = point[what], point[f"{what}_error"]
            if wanted is None or value is None or not np.isfinite(wanted) or not np.isfinite(value):
                continue
            allowed = (2 if sampled else 1) * error + REFERENCE * abs(wanted) * (1e3 if sampled else 1)
            if end["V"] in (0.0, 1.0):  # the reference only implies V < 1e-11
                allowed += 1e-10
            if what == "free_entropy":
                allowed += REFERENCE * row["alpha"]
            ratios.append(float(abs(value - wanted) / allowed) if allowed else float(value != wanted))
        if V > 1e-10:
            first = point["first"] if row["name"] == "two classes" else point["V"]
            relative = max(relative, abs(first / pairs[0][1] - 1))
    return ratios, relative


SHOWN = {  # problems in the picture and their labels
    "linear, noise 0.1": "linear regression, noise 0.1", "perceptron": "perceptron",
    "logistic, temperature 0.4": "logistic regression, temperature 0.4",
    "binary weights, linear, noise 0.5": "binary weights, linear, noise 0.5", "phase retrieval": "phase retrieval",
    "attention, L = 2": "attention, 2 tokens", "attention, L = 4": "attention, 4 tokens",
}  # fmt: skip


def draw(numbers, path):
    """Draw the posterior variance against α: the package as lines, references as circles."""
    ends = {(row["name"], row["alpha"]): row["ends"] for row in numbers["references"]}
    with figure(path, 1, 1, (7.5, 5)) as axes:
        axis = axes[0, 0]
        for k, (name, label) in enumerate(SHOWN.items()):
            mine = sorted((row for row in numbers["rows"] if row["name"] == name), key=lambda row: row["alpha"])
            alphas = [row["alpha"] for row in mine]
            unit = float(np.trace(MODELS[name].coordinates.rho.sum(axis=0)))
            V = [next(p for p in row["points"] if p["stable"])["V"] / unit for row in mine]
            axis.plot(alphas, np.maximum(V, 1e-12), color=f"C{k}", label=label)
            marks = [ends[name, alpha][0]["V"] for alpha in alphas]
            axis.plot(alphas, np.maximum(marks, 1e-12), "o", ms=4, mfc="none", color=f"C{k}")
        axis.plot([], [], "o", ms=4, mfc="none", color=DARK, label="independent quadrature")
        axis.set(xscale="log", yscale="log", xlabel=ALPHA, ylim=(3e-11, 2),
                 ylabel="posterior variance / prior variance of the weights")  # fmt: skip
        draw_legend(axis, columns=3)


def main():
    args = options(__doc__, draw=True, workers=True)
    verdict = Verdict("bayes_edges", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    alphas = QUICK_ALPHAS if args.quick else ALPHAS
    size = {"n_points": 256, "n_replicas": 4} if args.quick else {"n_points": 1024, "n_replicas": 4}
    plan = [{"name": name, "alpha": alpha} | size for name in MODELS for alpha in alphas]
    known = [{"name": name, "alpha": alpha} for name in (*INTEGRALS, *SAMPLED) for alpha in alphas]
    if args.quick:
        known = [each for each in known if not each["name"].startswith("noisy")]
    with pool(args) as executor:
        rows = run_trials(folder(args, verdict.name), solve, plan, executor)
        references = run_trials(folder(args, f"{verdict.name}_references"), store_reference, known, executor)
    ends = {(row["name"], row["alpha"]): row["ends"] for row in references}
    verdict.check(len(rows) == len(plan), f"{len(rows)} of {len(plan)} problems are solved without an exception")
    verdict.check(len(references) == len(known), f"{len(references)} of {len(known)} references are computed")
    stable = [[p["status"] == "converged" for p in row["points"] if p["stable"]] for row in rows]
    verdict.check(all(stable), f"{sum(map(bool, stable))} of {len(rows)} have a stable fixed point")
    sure = [each for each in stable if any(each)]
    verdict.check(len(sure) >= 0.95 * len(rows), f"{len(sure)} of {len(rows)} have a stable fixed point that converged")
    heads = ("problem", "stable fixed points converged", "numbers compared", "V differs by at most",
             "fraction of the allowed difference")  # fmt: skip
    table = []
    for name in MODELS:
        mine = [row for row in rows if row["name"] == name]
        done = [p["status"] == "converged" for row in mine for p in row["points"] if p["stable"]]
        if name in INTEGRALS:
            verdict.check(all(done), f"{name}: all {len(done)} stable fixed points converged")
        V = [next(p for p in row["points"] if p["stable"]) for row in sorted(mine, key=lambda row: row["alpha"])]
        falls = all(b["V"] <= a["V"] + a["V_error"] + b["V_error"] for a, b in pairwise(V))
        verdict.check(falls, f"{name}: V never grows with α")
        cells = [f"{sum(done)} of {len(done)}", "–", "–", "–"]
        both = [(row, ends[name, row["alpha"]]) for row in mine if (name, row["alpha"]) in ends]
        if both:
            compared = [compare(row, end, name in SAMPLED) for row, end in both]
            ratios, relative = [r for each, _ in compared for r in each], max(each for _, each in compared)
            verdict.check(
                max(ratios) <= 1, f"{name}: within {max(ratios):.2f} of the allowed difference, {len(ratios)} numbers"
            )
            cells[1:] = [f"{len(ratios)}", f"{relative:.0e}", f"{max(ratios):.2f}"]
        table.append([name, *cells])
    verdict.write_table(markdown_table(heads, table))
    verdict.end({"rows": rows, "references": references}, draw)


if __name__ == "__main__":
    main()
