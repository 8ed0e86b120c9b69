"""
Finding the relevant token, with one head and with several
==========================================================

Only one of the tokens of a sample determines its target, and its index is not given. This example shows that softmax
attention reaches the smallest possible error, that linear attention does not, and that several heads specialize one
after another.
:doc:`/sequence_models` explains the models.
"""

from itertools import product

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga

# %%
# The mean of the relevant token is shifted by √ν along the key k*, the first column of the teacher; the target is its
# field with the second column. The place is the class of the sample.
NU, L, NOISE = 4.0, 2, 0.5


def select(z):
    """Return the value, column 1, of the token that column 0 selects softly."""
    weights = np.exp(z[:, 0] - z[:, 0].max())
    return weights @ z[:, 1] / weights.sum()


def build(nu):
    """Return spiked single-location regression."""
    spikes = [[[np.sqrt(nu) * (token == place), 0] for token in range(L)] for place in range(L)]
    return ga.sequence_model(
        lambda u, noise, place: u[place, 1] + NOISE * noise[0],
        select, n_tokens=L, rank=2, n_noise=1, lam=0.5, classes=[1 / L] * L, spikes=spikes,
    )  # fmt: skip


# %%
# With k = √ν k* and v = v* the student is the posterior mean of the target. Its risk is the Bayes risk, which decreases
# exponentially with ν; the risk of the best linear attention is L/(ν + L²/(L − 1)).
signals, risks = np.linspace(0.5, 12, 8), []
for nu in signals:
    model = build(nu)
    size = np.tile(np.diag([np.sqrt(nu), 1.0]), (2 * L, 1, 1))
    means = model.coordinates.spikes @ size[0]
    weights = ga.Overlaps(q=size**2, m=means, theta=size, V=np.full(size.shape, np.nan))
    at = ga.trajectory(model, 1.0, weights, ga.SinglePass(), n_iter=1)  # the test error before the first step
    risks.append(2 * at.test_error[0] - NOISE**2)

# %%
# Message passing on 1200 samples follows state evolution at every iteration.
data = ga.sample(build(NU), d=300, alpha=4.0, seed=0)
run = ga.run_gamp(data, "semantic", damping=0.3, max_iter=12, tol=0)
path = ga.trajectory(data.instance_model(), 4.0, "semantic", ga.MessagePassing(damping=0.3), n_iter=12, n_paths=2048)
print(f"largest difference in q: {np.abs(run.history.q - path.q).max():.3f}")

# %%
# Four heads with a common normalization, and a token whose spike is one of 0.5 k₁ ± 3 k₂ ± 2 k₃. Theory of gradient
# descent on new samples at every step: all heads align with the mean spike k₁ first, then separate along k₂, which has
# the larger variance, and then along k₃.
heads, signs = 4, list(product((1, -1), repeat=2))
spikes = np.zeros((L * len(signs), L, 4))
for number, (token, sign) in enumerate(product(range(L), signs)):
    spikes[number, token, :3] = [0.5, 3 * sign[0], 2 * sign[1]]


def several(z):
    """Return the value, last column, with the exponentials of all heads, normalized together."""
    weights = np.exp(z[:, :heads] - z[:, :heads].max()).sum(axis=1)
    return weights @ z[:, heads] / weights.sum()


model = ga.sequence_model(
    lambda u, noise, c: u[c // len(signs), 3], several, n_tokens=L, rank=heads + 1, teacher_rank=4, lam=1e-3,
    classes=[1 / len(spikes)] * len(spikes), spikes=spikes,
)  # fmt: skip
S, theta = model.n_sources, 0.01 * np.random.default_rng(0).standard_normal((heads + 1, 4))
theta[heads] = 0
start = ga.Overlaps(
    q=np.tile(0.01 * np.eye(heads + 1), (S, 1, 1)),
    m=model.coordinates.spikes @ theta.T,
    theta=np.tile(theta, (S, 1, 1)),
    V=np.full((S, heads + 1, heads + 1), np.nan),
)
descent = ga.trajectory(model, 4.0, start, ga.SinglePass(lr=0.05), n_iter=250, n_paths=512, n_replicas=2)

# %%
figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.4), layout="constrained")
axes[0].semilogy(signals, risks, "o-", color="#0072B2", label="softmax (Bayes risk)")
axes[0].semilogy(signals, L / (signals + L**2 / (L - 1)), color="#D55E00", label="best linear")
axes[0].set(xlabel="signal strength ν", ylabel="population risk", ylim=(8e-3, 1.5))
axes[0].legend()
for column, (name, color) in enumerate((("key", "#0072B2"), ("value", "#D55E00"))):
    axes[1].plot(path.theta[:, 0, column, column], color=color, label=f"{name}, state evolution")
    axes[1].plot(run.history.theta[:, 0, column, column], "o", color=color, label=f"{name}, GAMP")
axes[1].set(xlabel="iteration", ylabel="overlap with the teacher")
axes[1].legend()
for feature, color in enumerate(("0.5", "#0072B2", "#D55E00")):
    for head in range(heads):
        label = f"$k_{feature + 1}$" if head == 0 else None
        axes[2].plot(descent.theta[:, 0, head, feature], color=color, label=label)
axes[2].set(xlabel="step of gradient descent", ylabel="overlap of a head")
axes[2].legend()
plt.show()
