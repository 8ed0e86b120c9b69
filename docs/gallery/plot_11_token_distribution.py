"""
Predict a learning curve for your own tokens
============================================

How many samples does an attention layer need to learn from your tokens? State evolution answers this question if the
distribution of the tokens is known. ``law_of`` estimates this distribution from arrays and measures how far the tokens
deviate from the assumptions of the theory. In this example random arrays take the place of a file with your tokens.
"""

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga

rng = np.random.default_rng(0)
n, d = 500, 200

# %%
# Tokens whose variance is large along a few directions of a random basis, and outputs of a teacher with random
# weights. The question is: how many samples does a layer need to learn from such a teacher?
basis, _ = np.linalg.qr(rng.standard_normal((d, d)))
tokens = rng.standard_normal((3 * n, 2, d)) * (0.15 / np.sqrt(np.linspace(0.01, 1, d))) @ basis
positions = np.outer([1, -1], np.full(d, d**-0.5))
weights = rng.standard_normal((d, 1))
teacher = ga.SoftmaxTeacher(0.3, np.array([[0.6, 0.4], [0.4, 0.6]]))
outputs = teacher(tokens @ weights / np.sqrt(d)) @ tokens

# %%
# The distribution is estimated from 500 samples, that is, 1000 tokens or 5 tokens for each dimension.
# The table lists each departure from the assumptions with its error; here all of them are negligible or small.
data = ga.Dataset(tokens[:n], outputs[:n], positions, lam=0.01)
law = ga.law_of(data, weights, target=teacher)
print(law)

# %%
# The predicted learning curve, and for comparison layers that are trained on increasing numbers of samples and tested
# on new samples.
alphas = np.array([0.75, 1.25, 2.0, 3.0, 4.5])
predicted = [ga.solve_state_evolution(law, alpha, rtol=1e-2, stability=False) for alpha in alphas]
found = []
for alpha in alphas:
    used = round(alpha * d)
    train = ga.Dataset(tokens[:used], outputs[:used], positions, lam=0.01)
    run = ga.run_gamp(train, weights)
    unseen = ga.Dataset(tokens[2 * n :], outputs[2 * n :], positions)
    S = unseen.student(unseen.fields(run.Q))
    test = np.mean((outputs[2 * n :] - S @ (tokens[2 * n :] + positions)) ** 2)
    found.append((run.train_loss, test))

# %%
# Left: eigenvalues of the covariance of the tokens, in increasing order. The eigenvalues of the sample covariance
# (gray) are more widely spread than the true eigenvalues (black), because there are few tokens. The estimated
# distribution (orange, a step for each class of eigenvalues) corrects this. Right: predicted errors (lines) and
# measured errors (points).
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
rank = np.linspace(0, 1, d)
flat = tokens[:n].reshape(-1, d)
left.plot(rank, np.linalg.eigvalsh(flat.T @ flat / len(flat)), color="0.6", label="sample covariance")
left.plot(rank, np.sort(0.15**2 / np.linspace(0.01, 1, d)), color="0.2", lw=1, label="true")
order = np.argsort(law.gamma[:, 0])
left.step(np.cumsum(law.weight[order]), law.gamma[order, 0], where="pre", color="C1", label="estimated distribution")
left.set(yscale="log", xlabel="fraction of directions", ylabel="eigenvalue", title="covariance of the tokens")
left.legend()
for k, (label, color) in enumerate((("training loss", "C0"), ("test error", "C1"))):
    right.plot(
        alphas, [(each.train_loss, each.test_error)[k] for each in predicted], color=color, label=f"{label}, predicted"
    )
    right.plot(alphas, [each[k] for each in found], "o", color=color, label=f"{label}, measured")
right.set(xlabel="samples per dimension α = n/d", ylabel="error", yscale="log", title="learning curve")
right.legend()
