"""Replica symmetry breaking: values of k steps against published values of three models.

Method: (1) the Sherrington-Kirkpatrick model, energy per spin: the recursion over fields with |ω| innermost, minimised
over overlaps and Parisi parameters. (2) Phase retrieval with amplitudes and no overlap with the signal, α = 3, noise of
variance .001, ridge λ = 1e-7: `solve_state_evolution(..., rsb=k)` for k = 1, 2 (--quick: 1), and F at fixed Parisi
parameters. The published values are those of the code of Lucibello, Saglietti and Lu (2019), without ridge.
(3) The spherical perceptron that counts errors of random labels (arXiv 2302.14112).

Criterion: |value − published| ≤ stated error + one unit of the last published digit.
(Page "Replica symmetry breaking" of the manual.)
"""

import numpy as np
from scipy.optimize import minimize

import gamp_attention as ga
from gamp_attention.experiments.figures import figure
from validation._tools.glasses import amplitude_model, magnet_energy, solve_perceptron
from validation._tools.report import Verdict, options
from validation._tools.tables import markdown_table

ALPHA, RTOL = 3.0, 1e-4
PUBLISHED = {
    "F": (0.2927849, 1e-6),
    "q_0": (0.4725506, 1e-6),
    "q_1": (1.355108, 1e-6),
    "V": (0.4234896, 1e-6),
    "y": (1.76699, 1e-5),
}
SYMMETRIC = 0.2068  # published at noise variance .001 by extrapolation from .0015 (.20717) and .0031 (.20824)
MAGNET = {1: (0.7652, 1e-4), 2: (0.7636, 1e-4)}
PERCEPTRON = {("RS errors per weight, α = 3", 3.0, 0): (0.097516, 1e-6), ("RS, α = 7.647695", 7.647695, 0): (1.0, 1e-6),
              ("1RSB, α = 6.71570", 6.71570, 1): (1.0, 1e-5)}  # fmt: skip
BLUE, ORANGE = "#0072B2", "#D55E00"
FIXED = (0.8, 1.3, 1.8, 2.4, 3.2)


def solve_magnet(k):
    """Return the energy of the magnet with k steps, and its change on finer grids."""

    def parameters(x):
        sizes = np.exp(np.append(x[:k], 0.0))
        return np.cumsum(sizes)[:-1] / sizes.sum(), np.cumsum(np.exp(x[k:]))

    start = np.append(np.zeros(k), np.log(np.diff(2.5 ** np.arange(k), prepend=0.0)))
    best = minimize(lambda x: magnet_energy(*parameters(x)), start, method="BFGS", options={"gtol": 1e-6})
    finer = magnet_energy(*parameters(best.x), spacing=0.3)
    return finer, abs(finer - best.fun)


def main():
    args = options(__doc__)
    verdict = Verdict("replica_symmetry_breaking", args)
    rows, records = [], []

    def compare(model, name, value, error, published=None):
        ratio = None if published is None else abs(value - published[0]) / (error + published[1])
        rows.append([model, name, f"{value:.7g}", f"{error:.1g}", "" if published is None else f"{published[0]:.7g}",
                     "" if ratio is None else f"{ratio:.2f}"])  # fmt: skip
        records.append({"model": model, "name": name, "value": value, "error": error, "published": published})
        if ratio is not None:
            verdict.check(ratio <= 1, f"{model}, {name}: {value:.7g} ± {error:.1g}, published {published[0]:.7g}")

    for k in (1, 2) if args.quick else (1, 2, 3):
        compare("magnet", f"energy, k = {k}", *solve_magnet(k), MAGNET.get(k))
    for (name, alpha, k), published in PERCEPTRON.items():
        solution = solve_perceptron(alpha, k)
        compare("perceptron", name, solution.energy, solution.energy_error, published)
    for k in (1, 2) if args.quick else (1, 2, 3):
        solution = solve_perceptron(3.0, k)
        compare("perceptron", f"errors per weight, α = 3, k = {k}", solution.energy, solution.energy_error)
    model = amplitude_model(np.sqrt(0.001))
    best = {}
    for k in (1,) if args.quick else (1, 2):
        se = best[k] = ga.solve_state_evolution(model, ALPHA, "random", rsb=k, rtol=RTOL)
        verdict.check(se.converged, f"phase retrieval, k = {k}: {se.status.value} {se.message}; {se.validity}")
        values = {
            "F": (se.train_loss, se.train_loss_error),
            "V": (se.overlaps.V[0, 0, 0], se.overlaps_error.V[0, 0, 0]),
        }
        values |= {f"q_{j}": (se.levels[j, 0, 0, 0], se.levels_error[j, 0, 0, 0]) for j in range(k + 1)}
        values |= {("y" if k == 1 else f"y_{j + 1}"): (se.parisi[j], se.parisi_error[j]) for j in range(k)}
        for name, (value, error) in values.items():
            compare("phase retrieval", f"{name}, k = {k}", value, error, PUBLISHED.get(name) if k == 1 else None)
    curve = []
    start = ga.Overlaps(best[1].overlaps.q, np.zeros((1, 1)), np.zeros((1, 1, 1)), best[1].overlaps.V)
    for y in FIXED[1:4] if args.quick else FIXED:
        se = ga.solve_state_evolution(model, ALPHA, start, rsb=1, parisi=y, rtol=1e-2)
        curve.append([y, se.train_loss, se.train_loss_error, se.complexity[0], se.status.value])
    columns = ["model", "quantity", "value", "error", "published", "difference/error"]
    verdict.write_table(markdown_table(columns, rows))
    energies = {0: SYMMETRIC} | {k: se.train_loss for k, se in best.items()}
    verdict.end({"values": records, "curve": curve, "energies": list(energies.items())}, draw)


def draw(stored, path):
    """Draw F against the Parisi parameter, and the ground state energy against the number of steps."""
    with figure(path, 1, 2, (11, 4.2)) as axes:
        left, right = axes[0]
        good = np.array([row[:2] for row in stored["curve"] if row[-1] in ("converged", "inaccurate")], dtype=float)
        left.plot(good[:, 0], good[:, 1], "o-", color=BLUE, label="one step at fixed y")
        left.plot(PUBLISHED["y"][0], PUBLISHED["F"][0], "D", color=ORANGE, label="published maximum")
        left.set(xlabel="Parisi parameter y", ylabel="free energy F", title="Phase retrieval, α = 3")
        left.legend()
        steps, energies = np.array(stored["energies"], dtype=float).T
        right.plot(steps[1:], energies[1:], "o-", color=BLUE, label="this package")
        right.plot(
            [0, 1],
            [SYMMETRIC, PUBLISHED["F"][0]],
            "D",
            color=ORANGE,
            mfc="none",
            ms=10,
            label="published (k = 0: extrapolated in noise)",
        )
        right.set(xlabel="number of steps k", ylabel="ground state energy", xticks=steps)
        right.legend()


if __name__ == "__main__":
    main()
