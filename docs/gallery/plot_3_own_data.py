"""
Train on your own arrays
========================

Message passing needs only two arrays, tokens and outputs, but no teacher and no distribution of the tokens.
This example trains a layer on tokens whose entries are random signs, and on outputs of a rule that is not an attention
layer, and compares its error on test samples with simpler predictions.
"""

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga

rng = np.random.default_rng(0)
n, L, d = 1800, 3, 300

# %%
# The rule: each token is replaced by the mean of all tokens of its sample on the same side of a hidden plane, and noise
# is added. The layer does not know the plane.
tokens = 0.5 * rng.choice([-1.0, 1.0], size=(n, L, d))
hidden = rng.standard_normal(d)
side = np.sign(tokens @ hidden)
same_side = (side[:, :, None] == side[:, None, :]).astype(float)
clean = same_side / same_side.sum(axis=2, keepdims=True) @ tokens
outputs = clean + 0.1 * rng.standard_normal(clean.shape)
positions = rng.standard_normal((L, d)) / np.sqrt(d)

# %%
# A third of the samples is reserved for testing. Without a teacher, the risk is the exact risk of the layer itself, and
# all initial weights except "semantic" are possible. Here several runs start from different initial weights, and the
# run with the lowest training loss is selected. ``ga.train(train)`` does both in one call.
train = ga.Dataset(tokens[:1200], outputs[:1200], positions, lam=0.01)
runs = [ga.run_gamp(train, "random", risk="exact", damping=0.3, seed=seed) for seed in range(4)]
runs.append(ga.run_gamp(train, "positional", risk="exact", damping=0.3))
for start, run in zip([*range(4), "positional"], runs, strict=True):
    print(f"start {start!s:<10} {run.status.value:<9} {run.n_iter:>4} iterations, loss {run.train_loss:.6f}")
best = min((run for run in runs if run.converged), key=lambda run: run.train_loss)

# %%
# Mean squared errors on the test samples: of the layer, of the mean of all tokens, and of the token without attention.
test = slice(1200, n)
test_data = ga.Dataset(tokens[test], outputs[test], positions)
S = test_data.student(test_data.fields(best.Q))
predictions = {
    "layer of GAMP": S @ (tokens[test] + positions),
    "mean of all tokens": np.broadcast_to(tokens[test].mean(axis=1, keepdims=True), tokens[test].shape),
    "the token itself": tokens[test],
}
for name, prediction in predictions.items():
    print(f"{name:<20}{np.mean((clean[test] - prediction) ** 2):.4f}")

# %%
# Left: the weights against the normal of the hidden plane, one dot for each coordinate. (Q and −Q define the same
# layer.) Right: the attention of the first to the second token, for samples in which both are on the same side of the
# plane and for samples in which they are not.
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.axhline(0, color="0.6", lw=0.5)
cosine = hidden @ best.Q[:, 0] / np.linalg.norm(hidden) / np.linalg.norm(best.Q)
left.plot(hidden, np.sign(cosine) * best.Q[:, 0], "o", ms=3, color="0.2")
left.set(
    xlabel="normal of the hidden plane",
    ylabel="weights Q",
    title=f"a dot for each coordinate; cosine {abs(cosine):.2f}",
)
same = same_side[test, 0, 1] > 0
for selected, label, color in ((same, "the same side", "C0"), (~same, "different sides", "C1")):
    right.hist(S[selected, 0, 1], np.linspace(0, 1, 41), color=color, alpha=0.7, label=label)
right.set(xlabel="attention $S_{12}$", ylabel="number of samples", title="attention of token 1 to token 2")
right.legend(title="the two tokens are on")
