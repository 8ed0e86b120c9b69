"""How far minima at finite d are from the replica-symmetric prediction where the proximal map jumps, model by model."""

import numpy as np

import gamp_attention as ga
from gamp_attention._core.text import plain
from gamp_attention.data.risk import overlaps, risk_at, susceptibility
from validation._tools.report import Verdict, folder, options, pool
from validation._tools.trials import run_trials
from validation.claims._jump_rows import rows

D, SEEDS, OTHER_D = 800, 8, {400: 16, 1600: 6}
QUICK_D, QUICK_SEEDS, QUICK_RTOL = 200, 6, 1e-2
MAX_ITER = 200  # of message passing, before L-BFGS goes on
RISK = "asymptotic"
FORMS = ("stein", "derivative")


def prediction(name, rtol):
    """Both fixed points of a row, and what could tell how far minima are from them."""
    row, found = rows()[name], {}
    for form in FORMS:
        se = ga.solve_state_evolution(row.model, row.alpha, row.branch, variance=form, rtol=rtol, stable=False)
        found[form] = {
            "status": se.status.value, "error": se.error, **se.overlaps.arrays(), "train_loss": se.train_loss,
            "test_error": se.test_error, "V_hat": se.V_hat, "jump_mass": se.jump_mass, "replicon": se.replicon,
            "jump_mass_error": se.jump_mass_error, "validity": se.validity,
        }  # fmt: skip
    return plain(found)


def minimum(name, d, seed, method):
    """A minimum of the risk of one instance, from the start of the branch by message passing or by L-BFGS alone."""
    row = rows()[name]
    data = ga.sample(row.model, d, row.alpha, np.random.default_rng([d, seed]))
    Q, how = row.branch, "descent"
    if method == "gamp":
        run = ga.run_gamp(data, row.branch, RISK, max_iter=MAX_ITER)
        Q, how = run.Q, run.status.value
    if how not in ("converged", "settled"):
        Q = ga.minimize_risk(data, Q, RISK, "lbfgs").Q
    at = risk_at(data, Q, RISK)
    found = overlaps(data, Q, susceptibility(data, at, Q))
    return plain(found.arrays() | {"train_loss": at.train_loss, "gradient_norm": at.gradient_norm, "how": how})


def collect(found):
    """Predictions by name, and minima of all rows."""
    names = [row.name for row in rows().values() if row.quick or not found.quick]
    d, seeds = (QUICK_D, QUICK_SEEDS) if found.quick else (D, SEEDS)
    with pool(found) as executor:
        cells = folder(found, "jump_gaps")
        wanted = [{"name": name, "rtol": QUICK_RTOL if found.quick else rows()[name].rtol} for name in names]
        predicted = {row["name"]: row for row in run_trials(cells / "predictions", prediction, wanted, executor)}
        wanted = [{"name": name, "d": d, "seed": seed, "method": "gamp"} for name in names for seed in range(seeds)]
        more = [name for name in names if rows()[name].more]
        wanted += [{"name": name, "d": d, "seed": seed, "method": "lbfgs"} for name in more for seed in range(seeds)]
        if not found.quick:
            sizes = [(size, seed) for size, many in OTHER_D.items() for seed in range(many)]
            wanted += [{"name": name, "d": d, "seed": s, "method": "gamp"} for d, s in sizes for name in more]
        return predicted, run_trials(cells / "minima", minimum, wanted, executor)


def main():
    found = options(__doc__, draw=True, workers=True)
    verdict = Verdict("jump_gaps", found)
    predicted, minima = collect(found)
    verdict.end({"predicted": predicted, "minima": minima})


if __name__ == "__main__":
    main()
