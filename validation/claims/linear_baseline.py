"""Linear layers fitted at finite d approach the asymptotic baseline of equations (17) to (20) of the paper.

Method: fits at α = 1.5 with λ = 1e-4, over d and ω, on many instances.

Criterion: means over instances of Ŵ_11, Ŵ_12 and of the training loss are within three standard errors, plus an
allowance of order 1/d, of E T and α L ε_lin/2. Their standard deviations fall like 1/√d. The published test errors of
fits by Adam at d = 1000, ω = 0.02, are within three standard errors and 5/d of ε_lin.
"""

import numpy as np
from tqdm import tqdm

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import DARK, OMEGA
from gamp_attention.theory.linear import linear_baseline
from validation._tools.drawing import figure
from validation._tools.report import run_claim

ALPHA, TOKENS = 1.5, 2
PUBLISHED = {0.02: (0.003883, 0.000008)}  # authors' results_mean_standardA.csv, 44 fits at α = 0.09 to 1.83: mean, s.e.
NAMES = ("W_11", "W_12", "ε_t")
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")  # Okabe and Ito
ALLOWED = 3.0  # bias of means, at most, in standard deviations over √d: the square of ‖Q*‖²/d gives an O(1/d) bias
SHRINK = 0.35  # relative tolerance of the exponent -1/2 of the standard deviation


def fit_layer(data, lam=1e-4):
    """Return the minimizer W and the value, over d, of the risk Σ‖y − W x‖²/(2d) + (λ/2)‖W‖² of equation (18)."""
    gram = np.einsum("nid,njd->ij", data.tokens, data.tokens) / data.dim + lam * np.eye(data.n_tokens)
    W = np.linalg.solve(gram, np.einsum("nid,njd->ij", data.tokens, data.outputs) / data.dim).T
    square = np.sum((data.outputs - W @ data.tokens) ** 2) / (2 * data.dim)
    return W, (square + 0.5 * lam * np.sum(W**2)) / data.dim


def judge(verdict):
    """Compute the numbers and check the criterion."""
    sizes = {100: 40, 400: 40} if verdict.quick else {100: 200, 200: 200, 400: 200, 1000: 100, 2000: 40, 4000: 12}
    omegas = (0.0, 0.3) if verdict.quick else (0.0, 0.1, 0.3, 0.6, 0.9)
    numbers: dict[str, dict] = {}
    for omega in omegas:
        model = ga.paper_model(omega)
        base = linear_baseline(model)
        limit = np.array([*base.weights[0], 0.5 * ALPHA * TOKENS * base.test_error])
        error = np.array([*base.weights_error[0], ALPHA * base.test_error_error])
        table = {}
        for d, seeds in sizes.items():
            values = []
            for seed in tqdm(range(seeds), desc=f"ω={omega} d={d}", disable=None, leave=False):
                data = ga.sample(model, d, ALPHA, np.random.default_rng([d, seed, round(1000 * omega)]))
                weights, loss = fit_layer(data)
                values.append([*weights[0], loss])
            spread = np.std(values, axis=0, ddof=1)
            table[d] = {
                "mean": np.mean(values, axis=0),
                "spread": spread,
                "standard_error": spread / np.sqrt(seeds),
            }
        for i, name in enumerate(NAMES):
            away = {d: abs(row["mean"][i] - limit[i]) for d, row in table.items()}
            slack = {d: 3 * row["standard_error"][i] + ALLOWED * row["spread"][i] / d**0.5 for d, row in table.items()}
            worst = max(away, key=lambda d: away[d] / slack[d])
            verdict.check(
                away[worst] <= slack[worst] + error[i],
                f"ω={omega}: mean {name} within three standard errors + O(1/d); at worst {away[worst]:.1e} of "
                f"{slack[worst]:.1e}, at d={worst}",
            )
            slope = np.polyfit(np.log(list(table)), np.log([row["spread"][i] for row in table.values()]), 1)[0]
            verdict.check(
                abs(slope + 0.5) <= SHRINK * 0.5, f"ω={omega}: spread of {name} shrinks as d^{slope:.2f}, -1/2 expected"
            )
        numbers[str(omega)] = {"limit": limit, "error": error, "status": base.status.value, "finite_d": table}
    for omega, (published, error) in PUBLISHED.items():
        value = linear_baseline(ga.paper_model(omega)).test_error
        verdict.check(
            abs(value - published) <= 3 * error + 5 / 1000 * value,
            f"published fits at ω={omega}, d=1000: {published} ± {error:.0e}, here {value:.6f}",
        )
    return numbers


def draw(numbers, path):
    """Draw fits and their limits against ω, and deviations against d."""
    numbers = {omega: row for omega, row in numbers.items() if isinstance(row, dict) and "finite_d" in row}
    omegas, fine = [float(omega) for omega in numbers], np.linspace(0, 1, 51)
    tables = {float(omega): row["finite_d"] for omega, row in numbers.items()}
    limits = {float(omega): row["limit"] for omega, row in numbers.items()}
    sizes = list(tables[omegas[0]])
    curves = [linear_baseline(ga.paper_model(omega)) for omega in fine]
    with figure(path, 1, 3, (9.8, 3.8)) as axes:
        first, second, third = axes.flat
        first.plot(fine, [base.weights[0, 0] for base in curves], color=DARK, label="d → ∞")
        losses = [0.5 * ALPHA * TOKENS * base.test_error for base in curves]
        second.plot(fine, losses, color=DARK, label="d → ∞")
        for d, marker, color in zip((sizes[0], sizes[-1]), "so", COLORS, strict=False):
            rows = [tables[omega][d] for omega in omegas]
            for axis, i in ((first, 0), (second, 2)):
                mean, spread = ([row[name][i] for row in rows] for name in ("mean", "spread"))
                label = f"d = {d}"
                axis.errorbar(omegas, mean, spread, fmt=marker, ms=5, capsize=3, color=color, label=label)
        first.set(xlabel=OMEGA, ylabel=r"weight $\hat W_{11}$", title="weight of a token in its own output")
        second.set(xlabel=OMEGA, ylabel=r"training loss $\epsilon_t$", title="training loss, ± spread of one instance")
        second.legend()
        d = np.array(sizes, dtype=float)
        for omega, color, mark in zip(omegas, [*COLORS, DARK], "osD^v", strict=False):
            mean, error = (
                np.array([row[key][2] for row in tables[omega].values()]) / limits[omega][2]
                for key in ("mean", "standard_error")
            )
            shift = 1.03 ** (omegas.index(omega) - len(omegas) / 2)
            style = {"fmt": mark, "ms": 5, "capsize": 2, "color": color}
            third.errorbar(d * shift, mean, 2 * error, label=f"ω = {omega:g}", **style)
        third.axhline(1, color=DARK, lw=1)
        third.set(xlabel="dimension d", ylabel="mean training loss / limit", xscale="log",
                  title="mean, ± 2 standard errors")  # fmt: skip
        third.legend(ncols=2)


def main():
    run_claim("linear_baseline", __doc__, lambda quick: {}, judge, draw)


if __name__ == "__main__":
    main()
