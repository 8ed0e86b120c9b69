r"""
My data, from file to believed error
====================================

A file of sentences, weights, the test error to expect from them, the λ to take, and the weights that matter: all from
the training data alone. :doc:`../believed_error` says how, and when to trust it.
"""

# %%
# A file
# ------
# Two arrays and the positions, as :doc:`../own_data` describes them. Here the sentences are drawn from a teacher whose
# weights are mostly zero, so that all that follows can be checked.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga

d, n, rng = 200, 500, np.random.default_rng(0)
teacher = np.where(np.arange(d) < 20, np.sqrt(10), 0.0)[:, None]
positions = np.outer([1.0, -1.0], np.full(d, d**-0.5))


def drawn(n):
    """Sentences and what the teacher makes of them."""
    tokens = 0.8 * rng.standard_normal((n, 2, d))
    return tokens, ga.SoftmaxTeacher(0.2, np.array([[0.6, 0.4], [0.4, 0.6]]))(tokens @ teacher / np.sqrt(d)) @ tokens


file = Path(tempfile.mkdtemp()) / "mine.npz"
tokens, outputs = drawn(n)
np.savez(file, tokens=tokens, outputs=outputs, positions=positions)

# %%
# A fit, and its error
# --------------------
# ``gamp-attention fit mine.npz`` does the same and prints it.

with np.load(file) as stored:
    data = ga.Dataset(stored["tokens"], stored["outputs"], stored["positions"], lam=0.1)
gamp = ga.run_gamp(data, init="spectral", n_starts=8)
loo = ga.leave_one_out(data, gamp)
print(loo)

# %%
# Fresh sentences, which nobody has who has one file, agree:

fresh, wanted = drawn(4000)
attention = data.student(ga.Dataset(fresh, wanted, positions).fields(gamp.Q))
errors = np.mean((wanted - attention @ (fresh + positions)) ** 2, axis=(1, 2))
print(f"{errors.mean():.6f} on fresh sentences, {loo.test_error:.6f} expected, {loo.in_training:.6f} in training")
print(f"{100 * np.mean(errors <= loo.bound(0.9)):.0f} % of them are below the bound for 90 %")

# %%
# Which λ?
# --------
# ``gamp-attention fit mine.npz --path --plot fit.png`` on the command line.

path = ga.regularization_path(data, np.geomspace(1e-3, 1, 10))
print(path)

# %%
# Which weights?
# --------------
# Debiased weights are a multiple of the teacher's plus noise of known size. Here those that are not zero stand out.

found = ga.debias(path_data := ga.Dataset(tokens, outputs, positions, lam=path.lam[path.best]),
                  ga.run_gamp(path_data, path.results[path.best].Q))  # fmt: skip
sign = np.sign(found.weights[:20].sum())
figure, axes = plt.subplots(1, 2, figsize=(10, 3.5))
axes[0].errorbar(path.lam, path.test_error, path.test_error_error, fmt="o-", ms=4, label="left out")
axes[0].plot(path.lam, path.in_training, color="0.6", label="in training")
axes[0].axvline(path.lam[path.best], color="C1", lw=1)
axes[0].set(xscale="log", xlabel="λ", ylabel=r"error $\epsilon_g$")
axes[0].legend(frameon=False)
low, high = np.moveaxis(found.interval(0.9)[:, 0], -1, 0)
shown = slice(0, 60)
axes[1].vlines(np.arange(60), (sign * low)[shown], (sign * high)[shown], color="0.6")
axes[1].plot(sign * found.weights[shown, 0], ".", label="debiased, with 90 % intervals")
axes[1].axhline(0, color="0.3", lw=0.8)
axes[1].set(xlabel="coordinate, the first 20 matter", ylabel="weight")
axes[1].legend(frameon=False)
figure.tight_layout()
matter, rest = found.p_values[:20] < 0.05, found.p_values[20:] < 0.05
print(f"p < .05: {np.sum(matter)} of 20 that matter, {np.sum(rest)} of 180 that do not")
