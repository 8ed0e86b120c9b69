"""
Bring your own data
===================

Arrays of tokens and outputs are all that is needed: no teacher, and no law of the tokens. Here the tokens are made of
signs, and the outputs by a rule that is not an attention layer.
"""

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga

rng = np.random.default_rng(0)
n, L, d = 1800, 3, 300

# %%
# The rule: each token is replaced by the mean of those on its side of a hidden plane, itself among them; then noise.
tokens = 0.5 * rng.choice([-1.0, 1.0], size=(n, L, d))
hidden = rng.standard_normal(d)
side = np.sign(tokens @ hidden)
alike = (side[:, :, None] == side[:, None, :]).astype(float)
clean = alike / alike.sum(axis=2, keepdims=True) @ tokens
outputs = clean + 0.1 * rng.standard_normal(clean.shape)
positions = rng.standard_normal((L, d)) / np.sqrt(d)

# %%
# A third is kept aside. Own arrays have the exact risk, that of the layer itself, and every start but "semantic", which
# needs a teacher. Here are some, each by itself, of which the one of least training loss is taken;
# ``run_gamp(train, "spectral", n_starts=8)`` does both at once.
train = ga.Dataset(tokens[:1200], outputs[:1200], positions, lam=0.01)
runs = [ga.run_gamp(train, "random", risk="exact", damping=0.3, seed=seed) for seed in range(4)]
runs.append(ga.run_gamp(train, "positional", risk="exact", damping=0.3))
for start, run in zip([*range(4), "positional"], runs, strict=True):
    print(f"start {start!s:<10} {run.status.value:<9} {run.n_iter:>4} iterations, loss {run.train_loss:.6f}")
best = min((run for run in runs if run.converged), key=lambda run: run.train_loss)

# %%
# Errors on the sentences kept aside, of the layer, of the mean of all tokens and of no attention.
aside = slice(1200, n)
unseen = ga.Dataset(tokens[aside], outputs[aside], positions)
S = unseen.student(unseen.fields(best.Q))
guesses = {
    "GAMP's layer": S @ (tokens[aside] + positions),
    "mean of all tokens": np.broadcast_to(tokens[aside].mean(axis=1, keepdims=True), tokens[aside].shape),
    "the token itself": tokens[aside],
}
for name, guess in guesses.items():
    print(f"{name:<20}{np.mean((clean[aside] - guess) ** 2):.4f}")

# %%
# Left: the weights against the normal of the hidden plane, one dot a coordinate; Q and −Q are the
# same layer. Right: the attention between
# the first two tokens, where these are on one side of the plane and where they are not.
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.axhline(0, color="0.6", lw=0.5)
cosine = hidden @ best.Q[:, 0] / np.linalg.norm(hidden) / np.linalg.norm(best.Q)
left.plot(hidden, np.sign(cosine) * best.Q[:, 0], "o", ms=3, color="0.2")
left.set(xlabel="normal of the hidden plane", ylabel="Q", title=f"cosine {abs(cosine):.2f}")
same = alike[aside, 0, 1] > 0
for where, label, colour in ((same, "one side", "C0"), (~same, "two sides", "C1")):
    right.hist(S[where, 0, 1], np.linspace(0, 1, 41), color=colour, alpha=0.7, label=label)
right.set(xlabel="attention $S_{12}$", ylabel="sentences")
right.legend(frameon=False)
