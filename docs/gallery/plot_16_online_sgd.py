"""
Training on each sample once
============================

Gradient descent that uses every sample in a single step decreases the population loss, that is, the mean loss of a new
sample. This example compares runs of :func:`gamp_attention.single_pass` with their theory for large d, and with descent
that uses the same samples in every step. :doc:`/dynamics` explains the theory.
"""

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga

# %%
# An iteration draws 0.3 α d new samples, with α = 1.5, and takes a step of size 2. The theory has errors, from
# independent sets of sampled fields.
model, alpha, n_iter = ga.paper_model(), 1.5, 30
method = ga.SinglePass(lr=2.0, batch=0.3)
theory = ga.trajectory(model, alpha, "semantic", method, n_iter, n_paths=2048)
runs = [
    ga.single_pass(model, 400, alpha, "semantic", method, n_iter, risk="asymptotic", seed=seed).history
    for seed in range(4)
]
loss = np.mean([run.train_loss for run in runs], axis=0)
print(f"loss of the last batch: runs {loss[-1]:.4f}, theory {theory.train_loss[-1]:.4f}")

# %%
# Descent on minibatches of fixed data sees the same samples again. Its training loss is lower, and its test error is
# higher, because the weights adapt to these samples.
repeated = ga.trajectory(model, alpha, "semantic", ga.GradientDescent(2.0, batch=0.3), n_iter, n_paths=2048)
print(f"test error: new samples {theory.test_error[-1]:.4f}, fixed data {repeated.test_error[-1]:.4f}")

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for path, color, label in ((theory, "C0", "new samples"), (repeated, "C1", "fixed data")):
    left.plot(path.train_loss, color=color, label=label)
    right.plot(path.test_error, color=color, label=label)
left.plot(loss, "o", ms=3, color="C0", label="runs, d = 400")
left.set(xlabel="iteration", ylabel="loss of the batch")
right.set(xlabel="iteration", ylabel="test error")
left.legend(frameon=False)
plt.show()
