"""Stated errors of solutions of state evolution, as lines of JSON; for `error_growth --base`.

A case is a model, α, a branch and the requested accuracy. All calls exist in commit 9144762, too. Later
checkouts solve each problem to a tenth of this accuracy as well. With "quick", only the first problems are solved.
"""

import json
import math
import sys
from typing import NamedTuple

import numpy as np

import gamp_attention as ga


@ga.register_loss
class AmplitudeLoss(NamedTuple):
    """Loss ½ (|z| − p)², for moduli p of the teacher's field."""

    def value(self, p, z):
        return 0.5 * (math.fabs(z[0, 0]) - p[0]) ** 2

    def floor(self, p):
        return 0.0


class Moduli:
    """Labels |u|."""

    def n_noise(self, n_tokens, rank):
        return 0

    def __call__(self, fields, noise):
        return np.abs(fields[:, 0, :1])


def list_cases():
    """Return the name of each case with model, α, branch and accuracy."""
    paper, noisy = ga.paper_model(), ga.paper_model(0.3)
    cases = {}
    for rtol in (1e-2, 1e-3, 1e-4, 1e-5):
        for branch in ("semantic", "positional"):
            cases[f"{branch}, α = 1.5, {rtol:g}"] = paper, 1.5, branch, rtol
    for alpha in (0.8, 1.2, 1.8):
        for branch in ("semantic", "positional"):
            cases[f"{branch}, ω = 0.3, α = {alpha}, 0.001"] = noisy, alpha, branch, 1e-3
    mixture = ga.mixture_model(
        [[0.4, 0.15], [0.1, 0.35]], [[0.5, -0.7], [0.3, -0.2]], sigma=[[0.4, 0.6], [0.5, 0.3]], teacher_mean=[0.4]
    )
    logistic, signs = ga.glm_model(ga.LogisticLoss(), lam=0.1), ga.LogisticLabels(0.0)
    amplitude = ga.glm_model(AmplitudeLoss(), Moduli(), lam=0.05)
    return cases | {
        "σ = 1.211, λ = 0.0051, 0.01": (ga.paper_model(0.155, sigma=1.211, lam=0.0051), 2.772, "semantic", 1e-2),
        "mixture, 0.01": (mixture, 2.0, "semantic", 1e-2),
        "three tokens, 0.01": (ga.attention_model(3), 2.0, "semantic", 1e-2),
        "two columns, 0.03": (ga.attention_model(2, 2, 2), 2.0, "semantic", 3e-2),
        "logistic loss, 0.01": (logistic, 3.0, "semantic", 1e-2),
        "logistic loss, 0.001": (logistic, 3.0, "semantic", 1e-3),
        "squared loss, 0.001": (ga.glm_model(ga.SquaredLoss(), lam=0.1), 2.0, "semantic", 1e-3),
        "squared loss, signs, 0.001": (ga.glm_model(ga.SquaredLoss(), signs, lam=0.2), 2.0, "semantic", 1e-3),
        "intensities, 0.01": (ga.glm_model(ga.PhaseRetrievalLoss(), lam=0.1), 3.0, "semantic", 1e-2),
        "moduli, 0.01": (amplitude, 3.0, "semantic", 1e-2),
    }


if __name__ == "__main__":
    for name, (model, alpha, branch, rtol) in list(list_cases().items())[: 4 if "quick" in sys.argv else None]:
        row = {"name": name, "rtol": rtol}
        accuracies = {"": rtol, "finer_": 0.1 * rtol} if hasattr(ga, "sequence_model") else {"": rtol}
        for prefix, accuracy in accuracies.items():
            found = ga.solve_state_evolution(model, alpha, branch, rtol=accuracy, stability=False)
            values = {"rule": found.rule, "status": found.status.value}
            values |= {key: getattr(found, key) for key in ("relative_error", "test_error", "test_error_error")}
            row |= {prefix + key: value for key, value in values.items()}
        print(json.dumps(row), flush=True)
