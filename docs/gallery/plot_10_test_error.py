r"""
Test error, penalty and intervals without test data
===================================================

This example trains a layer on a file of samples. From these training samples only, it estimates the test error, chooses
the penalty λ, and finds the weights that are different from zero. :doc:`../test_error` explains
the methods, and when to trust them.
"""

# %%
# A file
# ------
# The file contains two arrays and the positions, in the format of :doc:`../own_data`. The outputs are produced by a
# teacher whose weights are mostly zero, so that the results below can be checked.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga

d, n, rng = 200, 500, np.random.default_rng(0)
teacher = np.where(np.arange(d) < 20, np.sqrt(10), 0.0)[:, None]
positions = np.outer([1.0, -1.0], np.full(d, d**-0.5))


def draw_samples(n):
    """Return tokens and outputs of n samples."""
    tokens = 0.8 * rng.standard_normal((n, 2, d))
    return tokens, ga.SoftmaxTeacher(0.2, np.array([[0.6, 0.4], [0.4, 0.6]]))(tokens @ teacher / np.sqrt(d)) @ tokens


file = Path(tempfile.mkdtemp()) / "mine.npz"
tokens, outputs = draw_samples(n)
np.savez(file, tokens=tokens, outputs=outputs, positions=positions)

# %%
# A fit and its test error
# ------------------------
# On the command line, ``gamp-attention fit mine.npz`` does the same.

with np.load(file) as stored:
    data = ga.Dataset(stored["tokens"], stored["outputs"], stored["positions"], lam=0.1)
gamp = ga.train(data, init="spectral", n_starts=8, survey=False, escape=False)
loo = ga.leave_one_out(data, gamp)
print(loo)

# %%
# New samples from the same teacher, which are not available for measured data, confirm the estimate:

fresh, wanted = draw_samples(4000)
attention = data.student(ga.Dataset(fresh, wanted, positions).fields(gamp.Q))
errors = np.mean((wanted - attention @ (fresh + positions)) ** 2, axis=(1, 2))
print(f"{errors.mean():.6f} on new samples, {loo.test_error:.6f} estimated, {loo.in_training:.6f} in training")
print(f"{100 * np.mean(errors <= loo.bound(0.9)):.0f} % of the errors on new samples are below the bound for 90 %")

# %%
# Which λ?
# --------
# The test error is estimated at each λ of a path. On the command line, ``gamp-attention fit mine.npz --path`` does the
# same.

path = ga.regularization_path(data, np.geomspace(1e-3, 1, 10))
print(path)

# %%
# Which weights?
# --------------
# Debiased weights are a multiple of the teacher's weights plus noise of known variance. The picture shows the path of λ
# and the first 60 debiased weights, of which the first 20 are not zero for the teacher.

best = ga.Dataset(tokens, outputs, positions, lam=path.lam[path.best])
debiased = ga.debias(best, ga.run_gamp(best, path.results[path.best].Q))
sign = np.sign(debiased.weights[:20].sum())
figure, axes = plt.subplots(1, 2, figsize=(9.8, 5))
axes[0].errorbar(
    path.lam, path.test_error, path.test_error_error, fmt="o-", ms=4, label="test error, leave-one-out estimate"
)
axes[0].plot(path.lam, path.in_training, color="0.6", label="error on the training samples")
axes[0].axvline(
    path.lam[path.best], color="C1", lw=1.5, ls="--", label=f"smallest estimate, λ = {path.lam[path.best]:.2g}"
)
axes[0].set(xscale="log", xlabel="penalty λ", ylabel=r"error $\epsilon_g$", title="choice of the penalty")
axes[0].legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
low, high = np.moveaxis(debiased.interval(0.9)[:, 0], -1, 0)
shown = slice(0, 60)
axes[1].vlines(np.arange(60), (sign * low)[shown], (sign * high)[shown], color="0.6", label="90 % intervals")
axes[1].plot(sign * debiased.weights[shown, 0], ".", label="debiased weights")
axes[1].axhline(0, color="0.3", lw=0.8)
axes[1].axvline(19.5, color="C1", lw=1.5, ls="--", label="left: not zero for the teacher")
axes[1].set(xlabel="coordinate", ylabel="weight", title="which weights are not zero")
axes[1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
figure.tight_layout()
nonzero, zero = debiased.p_values[:20] < 0.05, debiased.p_values[20:] < 0.05
print(f"p < 0.05: {np.sum(nonzero)} of the teacher's 20 nonzero weights, {np.sum(zero)} of its 180 zero weights")
