"""
Predict a learning curve for your own tokens
============================================

State evolution needs the law of the tokens. ``law_of`` takes it from arrays, and says how far the tokens are from what
the theory assumes. Here the arrays stand for any file: tokens of which nothing is known beforehand.
"""

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga

rng = np.random.default_rng(0)
n, d = 500, 200

# %%
# Tokens with some strong directions in a basis of their own, and a question: how many sentences would a layer need to
# learn from a teacher like this one?
basis, _ = np.linalg.qr(rng.standard_normal((d, d)))
tokens = rng.standard_normal((3 * n, 2, d)) * (0.15 / np.sqrt(np.linspace(0.01, 1, d))) @ basis
positions = np.outer([1, -1], np.full(d, d**-0.5))
weights = rng.standard_normal((d, 1))
teacher = ga.SoftmaxTeacher(0.3, np.array([[0.6, 0.4], [0.4, 0.6]]))
outputs = teacher(tokens @ weights / np.sqrt(d)) @ tokens

# %%
# The law of 500 sentences, N/d = 5 tokens for each dimension. Its table tells each departure with its error; here all
# is as assumed, or nearly.
data = ga.Dataset(tokens[:n], outputs[:n], positions, lam=0.01)
law = ga.law_of(data, weights, target=teacher)
print(law)

# %%
# The learning curve that it predicts, and layers that are trained on more and more sentences, with their errors on
# sentences that they have not seen.
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
# Left: eigenvalues of the sample covariance spread beyond the true ones, as there are few tokens; those of the law, a
# step for
# each of its classes, do not. Right: errors, predicted (lines) and found (points).
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
rank = np.linspace(0, 1, d)
flat = tokens[:n].reshape(-1, d)
left.plot(rank, np.linalg.eigvalsh(flat.T @ flat / len(flat)), color="0.6", label="of the sample covariance")
left.plot(rank, np.sort(0.15**2 / np.linspace(0.01, 1, d)), color="0.2", lw=1, label="true")
order = np.argsort(law.gamma[:, 0])
left.step(np.cumsum(law.weight[order]), law.gamma[order, 0], where="pre", color="C1", label="of the law")
left.set(yscale="log", xlabel="share of directions", ylabel="eigenvalue")
left.legend(frameon=False)
for k, (label, colour) in enumerate((("training loss", "C0"), ("test error", "C1"))):
    right.plot(alphas, [(each.train_loss, each.test_error)[k] for each in predicted], color=colour, label=label)
    right.plot(alphas, [each[k] for each in found], "o", color=colour)
right.set(xlabel="sentences over dimensions, α", yscale="log")
right.legend(frameon=False)
