"""
Weak signals in a few tokens
============================

One of ten tokens of a positive sample contains a weak signal; negative samples are noise. This example trains the query
of an attention layer by two gradient steps and its read-out by a convex fit, predicts both, and compares the test error
with a linear classifier of the mean token. :doc:`/token_distribution` explains the model.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import ndtr

import gamp_attention as ga

# %%
# The label is the class of a sample, and the signal is a spike along the teacher's column ξ. Columns of the student:
# the query, which selects tokens, and the read-out.
L, THETA = 10, 5.0
spikes = np.zeros((2, L, 1))
spikes[0, 0] = THETA


def attend(z):
    """Return the read-out, column 1, of the tokens that the query, column 0, selects softly."""
    weights = np.exp(z[:, 0] - z[:, 0].max())
    return weights @ z[:, 1] / weights.sum()


model = ga.sequence_model(
    lambda u, noise, c: 1.0 - 2.0 * c, attend, lambda y, f: np.logaddexp(0.0, -y * f), n_tokens=L, rank=2,
    teacher_rank=1, lam=0.1, intercept=True, classes=[0.5, 0.5], spikes=spikes,
)  # fmt: skip

# %%
# Theory of the first two steps of gradient descent from zero weights, and runs on samples. The first step aligns the
# read-out, the second step aligns the query.
S, rate, d = model.n_sources, 0.5, 300
zero = ga.Overlaps(np.zeros((S, 2, 2)), np.zeros((S, 2)), np.zeros((S, 2, 1)), np.full((S, 2, 2), np.nan))
alphas, theory, runs = [0.5, 1.0, 2.0, 4.0], [], []
for alpha in alphas:
    method = ga.GradientDescent(lr=rate / alpha)
    path = ga.trajectory(model, alpha, zero, method, n_iter=2, n_paths=512, n_replicas=2)
    theory.append(path.theta[2, 0, 0, 0] / np.sqrt(path.q[2, 0, 0, 0]))
    samples = [ga.sample(model, d, alpha, seed=seed) for seed in range(6)]
    queries = [
        ga.minimize_risk(data, np.zeros((d + 1, 2)), lr=rate / alpha, max_iter=2, tol=0).Q[:, 0] for data in samples
    ]
    runs.append([
        q @ data.Q_star[:, 0] / np.linalg.norm(q) / np.linalg.norm(data.Q_star)
        for q, data in zip(queries, samples, strict=True)
    ])  # fmt: skip

# %%
# The query of α = 2, scaled to norm 1, is fixed, and the read-out is fitted to new samples. The fields of the fixed
# query are known numbers of each sample: they are entries of the target, after the label. A query of norm 0 gives the
# mean token. The test error follows from the attention weights and from the overlaps of the fitted read-out.
cosine, rng = theory[2], np.random.default_rng(0)


def build_readout(query):
    """Return the model of the read-out at a query, which is a sum of ξ and an independent direction."""
    return ga.sequence_model(
        lambda u, noise, c: np.concatenate([np.array([1.0 - 2.0 * c]), u @ query]),
        lambda z: np.concatenate([np.zeros(1), z[:, 0]]),
        lambda y, z: np.logaddexp(0.0, -y[0] * attend(np.stack([y[1:], z[1:]], axis=1))),
        n_tokens=L, rank=1, teacher_rank=2, lam=0.1, convex=True, intercept=True, classes=[0.5, 0.5],
        spikes=np.concatenate([spikes, np.zeros((2, L, 1))], axis=2),
    )  # fmt: skip


def classification_error(run, norm):
    """Return the fraction of wrong signs, averaged over samples with random attention."""
    query, overlaps = norm * np.array([cosine, np.sqrt(1 - cosine**2)]), run.overlaps
    along = overlaps.theta[0, 0]
    across = np.sqrt(max(overlaps.q[0, 0, 0] - along @ along, 0))
    wrong = 0.0
    for y in (1, -1):
        fields = rng.standard_normal((20_000, L, 2))
        fields[:, 0, 0] += THETA * (y > 0)
        attention = np.exp(fields @ query)
        attention /= attention.sum(axis=1, keepdims=True)
        mean = (attention * (fields @ along)).sum(axis=1) + overlaps.m[1, 0]
        wrong += 0.5 * ndtr(-y * mean / (across * np.linalg.norm(attention, axis=1))).mean()
    return wrong


fits = [1.0, 2.0, 4.0]
errors = {}
for name, norm in (("attention", 1.0), ("mean token", 0.0)):
    known = build_readout(norm * np.array([cosine, np.sqrt(1 - cosine**2)]))
    errors[name] = [
        classification_error(ga.run_gamp(ga.sample(known, 150, alpha, seed=1), "random"), norm) for alpha in fits
    ]

# %%
figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.4), layout="constrained")
axes[0].plot(alphas, theory, color="#0072B2", label="theory")
axes[0].errorbar(alphas, np.mean(runs, axis=1), np.std(runs, axis=1), fmt="o", color="#0072B2", label=f"runs, d = {d}")
axes[0].set(xlabel="samples per dimension", ylabel="cosine of query and signal", ylim=(0.6, 1))
axes[0].legend()
for (name, values), color in zip(errors.items(), ("#0072B2", "#D55E00"), strict=True):
    axes[1].plot(fits, values, "o-", color=color, label=name)
axes[1].set(xlabel="samples per dimension of the fit", ylabel="test error", ylim=(0, 0.4))
axes[1].legend()
plt.show()
