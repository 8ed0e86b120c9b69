"""State evolution of the distribution that `law_of` estimates from arrays predicts message passing on them.

Method: arrays come from planted models, rotated into a random basis, with α = 2 and d = 400; `law_of` receives tokens,
outputs and the teacher's weights and map only. Cases: a power law of eigenvalues; covariances of different shapes;
tokens that include their positions; logistic regression. Overlaps q and θ with the teacher, training loss and test
error are compared with message passing on the data's asymptotic risk, and with the state evolution of the instance
itself.

Criterion: in every case, the means over instances of the ratios of predictions from arrays to predictions from the
exact model, and to message passing, are within 5 % of 1, or 3 standard errors if that is more. (Page "The distribution
of your tokens" of the manual.)
"""

from itertools import product

import numpy as np

import gamp_attention as ga
from validation._tools.report import plus_minus, run_claim
from validation._tools.tables import markdown_table, mean_and_error

ALPHA, D = 2.0, 400
SEEDS = {"power law": 6, "shapes": 6, "positions in tokens": 6, "logistic": 6}
NAMES = ("q", "theta", "train_loss", "test_error")
NEAR = 0.05


def build_model(case):
    """Return the model that a case is drawn from."""
    power = ga.power_law_spectrum(1.0, 20)
    if case == "shapes":
        values = np.stack([power.values, np.full(20, 0.25)], axis=1)
        return ga.attention_model(coordinates=ga.coordinate_law(values))
    if case == "logistic":
        return ga.glm_model(ga.LogisticLoss(), lam=0.1)
    return ga.attention_model(coordinates=ga.coordinate_law(power))


def rotate(data, case, rng):
    """Return the samples in a random basis, as a user has them, and the teacher's weights there."""
    basis, _ = np.linalg.qr(rng.standard_normal((data.dim, data.dim)))
    tokens, p = data.tokens @ basis, data.positions @ basis
    if case == "logistic":
        return ga.LabelledDataset(tokens, data.labels, ga.LogisticLoss(), lam=data.lam), basis.T @ data.Q_star
    if case == "positions in tokens":
        return ga.Dataset(tokens + p, data.outputs @ basis, lam=data.lam), basis.T @ data.Q_star
    return ga.Dataset(tokens, data.outputs @ basis, p, lam=data.lam), basis.T @ data.Q_star


def solve(model, alpha):
    """Return the predictions of state evolution."""
    se = ga.solve_state_evolution(model, alpha, rtol=3e-3, max_work=1e8, stability=False)
    overlaps = se.overlaps.scalars()
    values = {"q": float(overlaps["q"]), "theta": float(abs(overlaps["theta"]))}
    return values | {"train_loss": se.train_loss, "test_error": se.test_error, "status": se.status.value}


def compare_instance(case, d, seed):
    """Return message passing on one instance, and predictions from its arrays and from the exact model."""
    rng = np.random.default_rng([d, seed, 33])
    data = ga.sample(build_model(case), d, ALPHA, rng)
    own, weights = rotate(data, case, rng)
    target = data.model.teacher
    law = ga.law_of(own, weights, target=target, noise=0.0)
    if case == "positions in tokens":  # the teacher's fields do not contain the positions
        law = ga.law_of(own, weights, target=ShiftedTeacher(target, own.source_means @ weights / np.sqrt(d)), noise=0.0)
    gamp = ga.run_gamp(data, "semantic", "asymptotic")
    of = gamp.overlaps.scalars()
    measured = {"q": float(of["q"]), "theta": float(abs(of["theta"])), "train_loss": gamp.train_loss}
    measured |= {"test_error": ga.sampled_test_error(data, gamp.Q, n_samples=4000, seed=seed)[0]}
    return {
        "found": measured, "law": solve(law, ALPHA), "instance": solve(data.instance_model(), ALPHA),
        "converged": bool(gamp.converged), "strong": list(law.strong),
    }  # fmt: skip


class ShiftedTeacher:
    """The teacher's map T of fields minus their means."""

    def __init__(self, teacher, shift):
        self.teacher, self.shift, self.even = teacher, shift, False

    def __call__(self, u):
        """Targets (..., L, L)."""
        return self.teacher(u - self.shift)


def plan(quick):
    """Return the instances of all cases."""
    d, seeds = (100, {"power law": 2, "positions in tokens": 2}) if quick else (D, SEEDS)
    return {
        compare_instance: [{"case": c, "d": d, "seed": seed} for c, count in seeds.items() for seed in range(count)],
    }


def judge(verdict, rows):
    """Check predictions from arrays against runs and the exact model."""
    lines = []
    for case, beside in product(dict.fromkeys(row["case"] for row in rows), ("found", "instance")):
        mine = [row for row in rows if row["case"] == case]
        ratios = {name: mean_and_error([row["law"][name] / row[beside][name] for row in mine]) for name in NAMES}
        word = "message passing" if beside == "found" else "exact model"
        lines.append([case, len(mine), word, *(plus_minus(*ratio) for ratio in ratios.values())])
        good = all(abs(mean - 1) <= max(NEAR, 3 * error) for mean, error in ratios.values())
        words = ", ".join(f"{name} {plus_minus(*ratio)}" for name, ratio in ratios.items())
        verdict.check(verdict.quick or good, f"{case}, over {word}: {words}")
    verdict.write_table(markdown_table(["case", "instances", "compared with", "q", "θ", "ε_t", "ε_g"], lines))
    return {"rows": rows}


def main():
    run_claim("token_distribution", __doc__, plan, judge)


if __name__ == "__main__":
    main()
