"""Random instances of every model family of the manual, for runs with default settings (`default_runs`)."""

import json
import sys
import time

import numpy as np

import gamp_attention as ga
from docs.examples.sigmoid_attention import SigmoidAttention

SIZES, ALPHAS, LAMBDAS, SIGMAS = (50, 1000), (0.3, 4.0), (1e-3, 1.0), (0.3, 1.5)
NOISES = (0.03, 1.0)
MAX_ENTRIES = 1e7  # number of entries of the tokens; d is reduced to stay below
# the same limit for families with slow proximal steps
MAX_SLOW = {"more tokens and columns": 2e5, "sigmoid attention": 2e5}
RISKS = {"exact": 2, "asymptotic": 1}  # relative frequencies, if both are defined


def draw_log_uniform(rng, low, high):
    """Return a number that is uniform on a logarithmic scale."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def draw_numbers(rng):
    """Return random σ and λ, the parameters of all families."""
    return {"sigma": float(rng.uniform(*SIGMAS)), "lam": draw_log_uniform(rng, *LAMBDAS)}


def draw_matrix(rng, L=2):
    """Return a random positional matrix, in half of the cases with rows that sum to one."""
    A = rng.dirichlet(np.ones(L), size=L) if rng.random() < 0.5 else rng.normal(size=(L, L))
    return A.tolist()


def build_paper(rng):
    return ga.paper_model(omega=float(rng.uniform(0, 0.9)), A=draw_matrix(rng), **draw_numbers(rng))


def build_larger(rng):
    L, r = ((3, 1), (4, 1), (5, 1), (2, 2), (3, 2))[rng.integers(5)]
    return ga.attention_model(L, r, int(rng.integers(1, r + 1)), **draw_numbers(rng))


def build_other_map(rng):
    student = ga.DotProductAttention(temperature=draw_log_uniform(rng, 0.5, 2), causal=bool(rng.integers(2)))
    return ga.attention_model(int(rng.integers(2, 4)), student=student, **draw_numbers(rng))


def build_untied(rng):
    student = ga.DotProductAttention(tied=False, causal=bool(rng.integers(2)))
    return ga.attention_model(2, 2, 1, student=student, **draw_numbers(rng))


def build_linear(rng):
    tau = (1.0, 1.0) if rng.random() < 0.5 else (1.0, -1.0)
    return ga.attention_model(student=ga.DotProductAttention(softmax=False), tau=tau, **draw_numbers(rng))


def build_sigmoid(rng):
    return ga.attention_model(student=SigmoidAttention(draw_log_uniform(rng, 0.5, 3)), **draw_numbers(rng))


def build_mixture(rng):
    means = rng.normal(size=(2, 2)) * rng.uniform(0.1, 0.5)
    law = rng.dirichlet(np.ones(4)).reshape(2, 2)
    sigma = rng.uniform(*SIGMAS, size=(2, 2))
    return ga.mixture_model(law.tolist(), means.tolist(), sigma=sigma.tolist(), lam=draw_numbers(rng)["lam"])


def build_coordinates(rng):
    laws = (
        ga.coordinate_law(ga.power_law_spectrum(float(rng.uniform(0.3, 1.5)), 8)),
        ga.coordinate_law([[0.1, 0.5], [0.4, 0.2], [0.25, 0.05]]),
        ga.coordinate_law(teacher=ga.sparse_teacher(0.2, variance=5.0)),
        ga.coordinate_law(tau=ga.sign_positions(2)),
    )
    return ga.attention_model(coordinates=laws[rng.integers(len(laws))], lam=draw_numbers(rng)["lam"])


def build_lasso(rng):
    """Return a model with the lasso or the elastic net."""
    l2 = 0.0 if rng.random() < 0.5 else draw_log_uniform(rng, *LAMBDAS)
    return ga.paper_model(
        omega=float(rng.uniform(0, 0.6)), sigma=draw_numbers(rng)["sigma"],
        penalty=ga.ElasticNet(l2, draw_log_uniform(rng, 1e-3, 0.1)),
    )  # fmt: skip


def build_labels(rng):
    """Return a generalized linear model with noisy labels."""
    own = draw_numbers(rng)
    choice = rng.integers(4)
    if choice == 0:
        return ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=float(rng.uniform(0, 1))), **own)
    if choice == 1:
        return ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(temperature=float(rng.uniform(0, 2))), **own)
    if choice == 2:
        return ga.glm_model(ga.MultinomialLoss(), rank=3, **own)
    return ga.glm_model(ga.PhaseRetrievalLoss(), ga.IntensityLabels(noise=float(rng.uniform(0, 1))), **own)


def build_noisy(where):
    """Return a function that draws the paper's model as user arrays, with noise on the scores or on the outputs."""

    def make(rng, d, alpha):
        clean, noise = ga.sample(build_paper(rng), d, alpha, rng), draw_log_uniform(rng, *NOISES)
        n, L, _ = clean.tokens.shape
        if where == "scores":
            outputs = clean.outputs + noise * rng.standard_normal((n, L, L)) @ clean.tokens
        else:
            outputs = clean.outputs + noise * rng.standard_normal(clean.outputs.shape)
        own = ga.Dataset(clean.tokens, outputs, clean.positions, lam=clean.penalty.strength)
        return own, clean.Q_star

    return make


FAMILIES = {
    "paper": build_paper,
    "more tokens and columns": build_larger,
    "causal, other temperatures": build_other_map,
    "untied keys": build_untied,
    "linear attention": build_linear,
    "sigmoid attention": build_sigmoid,
    "mixtures": build_mixture,
    "other coordinate laws": build_coordinates,
    "lasso, elastic net": build_lasso,
    "labels": build_labels,
    "noisy scores": build_noisy("scores"),
    "noisy outputs": build_noisy("outputs"),
}


def build_instance(family, seed):
    """Return data, start and risk of one run."""
    rng = np.random.default_rng([seed, list(FAMILIES).index(family)])
    d, alpha = round(draw_log_uniform(rng, *SIZES)), float(rng.uniform(*ALPHAS))
    start = ("semantic", "positional", "random")[rng.integers(3)]
    if family.startswith("noisy"):
        data, Q_star = FAMILIES[family](rng, d, alpha)
        return data, Q_star if start == "semantic" else start, "exact"
    model = FAMILIES[family](rng)
    d = min(d, int(np.sqrt(MAX_SLOW.get(family, MAX_ENTRIES) / (alpha * model.n_tokens))))
    data = ga.sample(model, d, alpha, rng)
    risk = str(rng.choice(list(RISKS), p=np.array(list(RISKS.values())) / sum(RISKS.values())))
    if start == "positional" and not data.positions.any():
        start = "random"
    return data, start, risk if has_asymptotic_risk(data) else "exact"


def has_asymptotic_risk(data):
    """Return whether the asymptotic risk is defined, in addition to the exact risk."""
    try:
        data.terms("asymptotic")
    except ValueError:
        return False
    return True


def main(seeds):
    """Run message passing with default settings on the first instances and print each time as a line of JSON.

    `default_runs --base` starts this in two checkouts of the package.
    """
    for seed in range(seeds):
        for family in FAMILIES:
            data, start, risk = build_instance(family, seed)
            if seed == 0:
                ga.run_gamp(data, start, risk, max_iter=2)  # compile before the time is measured
            began = time.process_time()
            result = ga.run_gamp(data, start, risk)
            row = {"family": family, "seed": seed, "seconds": time.process_time() - began}
            print(json.dumps(row | {"status": result.status.value, "n_iter": result.n_iter}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
