"""Replica symmetry breaking: values of k steps against published values of three models.

Method: (1) the Sherrington-Kirkpatrick model, energy per spin: the recursion over fields with |ω| innermost, minimized
over overlaps and Parisi parameters. (2) Phase retrieval with amplitudes and no overlap with the signal, α = 3, noise of
variance 0.001, ridge λ = 1e-7: `solve_broken(..., steps=k)` for k = 1, 2 (--quick: 1), and F at fixed Parisi
parameters. The published values are from the code of Lucibello, Saglietti and Lu (2019), without ridge. (3) The
spherical perceptron that counts errors of random labels (arXiv 2302.14112): errors at α = 3, the α at which there is an
error per weight. k → ∞ is extrapolated from k = 1, 2, 3 in (1) and (3).

Criterion: |value − published| ≤ stated error + one unit of the last published digit. (Page "Replica symmetry breaking"
of the manual.)
"""

import numpy as np
from scipy.optimize import minimize

import gamp_attention as ga
from gamp_attention.extensions.rsb.broken import extrapolate_steps
from validation._tools.drawing import figure
from validation._tools.glasses import amplitude_model, magnet_energy, perceptron_capacity, solve_perceptron
from validation._tools.report import run_claim
from validation._tools.tables import markdown_table

ALPHA, RTOL = 3.0, 1e-4
PUBLISHED = {
    "F": (0.2927849, 1e-6),
    "q_0": (0.4725506, 1e-6),
    "q_1": (1.355108, 1e-6),
    "V": (0.4234896, 1e-6),
    "y": (1.76699, 1e-5),
}
SYMMETRIC = 0.2068  # published at noise variance 0.001 by extrapolation from 0.0015 (0.20717) and 0.0031 (0.20824)
MAGNET = {1: (0.7652, 1e-4), 2: (0.7636, 1e-4)}
MAGNET_LIMIT = (0.763166727, 1e-9)  # Oppermann, Schmidt and Sherrington (2007)
ERRORS = {0: (0.097516, 1e-6)}  # least number of errors per weight at α = 3
ERRORS_LIMIT = (0.117601, 1e-6)
CAPACITY = {0: (7.647695, 1e-6), 1: (6.71570, 1e-5)}  # α at which it is 1
CAPACITY_LIMIT = (6.6980, 1e-4)
BLUE, ORANGE = "#0072B2", "#D55E00"


def solve_magnet(k):
    """Return the energy of the magnet with k steps, and its change on finer grids."""

    def parameters(x):
        sizes = np.exp(np.append(x[:k], 0.0))
        return np.cumsum(sizes)[:-1] / sizes.sum(), np.cumsum(np.exp(x[k:]))

    start = np.append(np.zeros(k), np.log(np.diff(2.5 ** np.arange(k), prepend=0.0)))
    best = minimize(lambda x: magnet_energy(*parameters(x)), start, method="BFGS", options={"gtol": 1e-6})
    finer = magnet_energy(*parameters(best.x), spacing=0.3)
    return finer, abs(finer - best.fun)


def judge(verdict):
    """Compute the numbers and check the criterion."""
    rows, records = [], []

    def compare(model, name, value, error, published=None):
        ratio = None if published is None else abs(value - published[0]) / (error + published[1])
        rows.append([model, name, f"{value:.7g}", f"{error:.1g}", "" if published is None else f"{published[0]:.7g}",
                     "" if ratio is None else f"{ratio:.2f}"])  # fmt: skip
        records.append({"model": model, "name": name, "value": value, "error": error, "published": published})
        if ratio is not None:
            verdict.check(ratio <= 1, f"{model}, {name}: {value:.7g} ± {error:.1g}, published {published[0]:.7g}")

    def climb(model, name, steps, solve, published, limit):
        values = []
        for k in steps:
            value, error = solve(k)
            compare(model, f"{name}, k = {k}", value, error, published.get(k))
            values.append(value)
        if max(steps) == 3:
            compare(model, f"{name}, k → ∞", *extrapolate_steps(values[-3:]), limit)
        return values

    last = 2 if verdict.quick else 3
    climb("magnet", "energy", range(1, last + 1), solve_magnet, MAGNET, MAGNET_LIMIT)
    solutions = {k: solve_perceptron(3.0, k) for k in range(last + 1)}
    errors = {k: (s.energy, s.energy_error) for k, s in solutions.items()}
    climb("perceptron", "errors per weight, α = 3", range(last + 1), errors.get, ERRORS, ERRORS_LIMIT)
    climb("perceptron", "α with one error per weight", range(last + 1),
          lambda k: perceptron_capacity(k, 7.65 if k == 0 else 6.7), CAPACITY, CAPACITY_LIMIT)  # fmt: skip
    model = amplitude_model(np.sqrt(0.001))
    best = {}
    for k in (1,) if verdict.quick else (1, 2):
        se = best[k] = ga.solve_broken(model, ALPHA, "random", steps=k, rtol=RTOL)
        verdict.check(se.converged, f"phase retrieval, k = {k}: {se.status.value} {se.message}; {se.validity}")
        values = {
            "F": (se.train_loss, se.train_loss_error),
            "V": (se.overlaps.V[0, 0, 0], se.overlaps_error.V[0, 0, 0]),
        }
        values |= {f"q_{j}": (se.levels[j, 0, 0, 0], se.levels_error[j, 0, 0, 0]) for j in range(k + 1)}
        values |= {("y" if k == 1 else f"y_{j + 1}"): (se.parisi[j], se.parisi_error[j]) for j in range(k)}
        if k == 1:  # F is flat, so that the published overlaps belong to the published y rather than to the maximum
            near = ga.Overlaps(se.overlaps.q, se.overlaps.m, se.overlaps.theta, se.overlaps.V)
            at = ga.solve_broken(model, ALPHA, near, parisi=PUBLISHED["y"][0], rtol=RTOL)
            values["V"] = at.overlaps.V[0, 0, 0], at.overlaps_error.V[0, 0, 0]
            values |= {f"q_{j}": (at.levels[j, 0, 0, 0], at.levels_error[j, 0, 0, 0]) for j in range(2)}
        for name, (value, error) in values.items():
            compare("phase retrieval", f"{name}, k = {k}", value, error, PUBLISHED.get(name) if k == 1 else None)
    columns = ["model", "quantity", "value", "error", "published", "difference/error"]
    verdict.write_table(markdown_table(columns, rows))
    energies = {0: SYMMETRIC} | {k: se.train_loss for k, se in best.items()}
    stored = {"values": records, "energies": list(energies.items())}
    return stored | {"symmetric": errors[0][0]}


def draw(stored, path):
    """Draw the ground state energy of phase retrieval against the number of steps."""
    with figure(path, 1, 1, (6, 4.2)) as axes:
        right = axes[0, 0]
        steps, energies = np.array(stored["energies"], dtype=float).T
        right.plot(steps[1:], energies[1:], "o-", color=BLUE, label="this package")
        style = {"color": ORANGE, "mfc": "none", "ms": 10, "label": "published (k = 0: extrapolated in noise)"}
        right.plot([0, 1], [SYMMETRIC, PUBLISHED["F"][0]], "D", **style)
        right.set(xlabel="number of steps k", ylabel="ground state energy", xticks=steps)
        right.legend()


def main():
    run_claim("replica_symmetry_breaking", __doc__, lambda quick: {}, judge, draw)


if __name__ == "__main__":
    main()
