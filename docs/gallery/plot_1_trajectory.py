"""
A trajectory against its prediction
===================================

State evolution predicts every iterate of message passing, not only where it ends. Here one instance is run without a
stopping rule, and its overlaps are drawn on the prediction for that instance.
"""

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga
from gamp_attention.plotting import COLOURS, DARK, LABELS, STYLE
from gamp_attention.results import scalars

plt.rcParams.update(STYLE)
STEPS = 20
DAMPING = {"semantic": 0.5, "positional": 0.3}

# %%
# The paper's model at ω = .3 and α = 1.5, where both branches exist. ``tol=0`` runs exactly ``max_iter`` iterations, with
# global proximal minima throughout, which is what :func:`~gamp_attention.trajectory` describes.
# ``data.instance_model()`` puts the moments of this very teacher in place of their law: what is left are the
# fluctuations of the tokens.
model = ga.paper_model(omega=0.3)
data = ga.sample(model, d=1000, alpha=1.5, seed=0)
found, predicted = {}, {}
for name, step in DAMPING.items():
    found[name] = ga.run_gamp(data, name, damping=step, tol=0, max_iter=STEPS)
    predicted[name] = ga.trajectory(data.instance_model(), 1.5, name, damping=step, n_iter=STEPS)

# %%
# Dots are message passing, lines the prediction, and bands twice its sampling error.
figure, axes = plt.subplots(2, 4, figsize=(11, 4.6), layout="constrained", sharex=True)
for row, name in zip(axes, DAMPING, strict=True):
    seen, line = scalars(found[name].history), scalars(predicted[name])
    error = scalars(predicted[name].error)
    for axis, key in zip(row, LABELS, strict=True):
        axis.fill_between(
            range(STEPS + 1), line[key] - 2 * error[key], line[key] + 2 * error[key], color=DARK, alpha=0.2
        )
        axis.plot(line[key], color=DARK, lw=1.2)
        axis.plot(seen[key][: STEPS + 1], "o", ms=4, color=COLOURS[name])
        axis.set_title(LABELS[key])
        axis.margins(y=0.2)
    row[0].set_ylabel(f"{name} branch", color=COLOURS[name])
for axis in axes[1]:
    axis.set_xlabel("iteration")

# %%
# On the positional branch V runs a few per cent low: the proximal map jumps there, and the response measured on data
# misses the jumps. With the response taken from the prediction, ``onsager="state_evolution"``, it does not.
own = ga.run_gamp(data, "positional", damping=0.3, tol=0, max_iter=STEPS, onsager="state_evolution")
print(f"{'V at the last iteration':<34}{predicted['positional'].V[-1].mean():8.3f}  predicted")
for words, run in (("response of the data", found["positional"]), ("response of state evolution", own)):
    V = np.mean(run.history.V[STEPS])
    print(f"{words:<34}{V:8.3f}  {V / predicted['positional'].V[-1].mean() - 1:+.1%}")
