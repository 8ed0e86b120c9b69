"""
The Bayes-optimal estimate and the trained layer
================================================

This example compares three test errors as functions of the number of samples: the Bayes-optimal estimate of the
teacher, the trained attention layer, and the linear baseline. Above α = 0.5 the samples determine the teacher
completely, and Bayes-optimal message passing finds it. The trained layer has a higher test error than the linear
baseline up to α = 1.5.
"""

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga

model = ga.paper_model(omega=0.3)
base = ga.linear_baseline(model).test_error

# %%
# The Bayes-optimal estimate: its thresholds, and its test error by state evolution.
thresholds = ga.bayes_thresholds(model)
print(thresholds)
fine = np.linspace(0.05, 2.0, 24)
bayes = [ga.solve_bayes_state_evolution(model, alpha, n_points=1 << 14, n_replicas=2).test_error for alpha in fine]

# %%
# The trained layer: state evolution of both branches. The branch with the lower training loss is the global minimum.
# On the semantic branch the weights have no overlap with the positional encodings (m = 0), so its test error is the
# test error of a layer without positional encodings. Between the α at which this branch appears and α_c = 1.25, the
# difference between the two branches is therefore the cost of the positional encodings.
alphas = np.linspace(0.5, 2.0, 7)
found = {}
for branch in ("positional", "semantic"):
    path = [ga.solve_state_evolution(model, alpha, branch, rtol=1e-2, stability=False) for alpha in alphas]
    found[branch] = np.array([[each.test_error, each.train_loss] if each.converged else [np.nan] * 2 for each in path])
lowest = np.nanargmin([values[:, 1] for values in found.values()], axis=0)
best = np.where(lowest == 0, found["positional"][:, 0], found["semantic"][:, 0])

# %%
# On one instance with d = 500 and α = 0.6, Bayes-optimal message passing finds the teacher up to a sign. At this α
# the trained layer is still positional.
#
# In the picture, lines are state evolution. Points mark the branch with the lower training loss.
data = ga.sample(model, d=500, alpha=0.6, seed=1)
run = ga.run_bayes_amp(data)
norm = np.sum(data.Q_star**2) / data.dim
print(f"overlap with the teacher {abs(run.overlap[0, 0]):.3f}, squared norm of the teacher's weights {norm:.3f}")

figure, axis = plt.subplots(figsize=(7.5, 5), layout="constrained")
axis.plot(fine, bayes, color="#009E73", label="Bayes-optimal")
axis.axhline(base, color="#999999", label="linear baseline")
for (branch, values), color in zip(found.items(), ("#D55E00", "#0072B2"), strict=True):
    axis.plot(alphas, values[:, 0], ":", color=color, label=f"{branch} branch")
axis.plot(alphas, best, "o", color="#333333", ms=4, label="trained layer: lowest training loss")
for alpha, style, label in (
    (thresholds.weak_recovery, "--", f"weak recovery, α = {thresholds.weak_recovery:.3f}"),
    (thresholds.full_recovery, "-.", f"full recovery, α = {thresholds.full_recovery:.3f}"),
):
    axis.axvline(alpha, color="#009E73", lw=1, ls=style, label=label)
axis.set(xlabel="samples per dimension α = n/d", ylabel="test error", ylim=(0, None))
axis.set_title("Bayes-optimal estimate, trained layer and linear baseline")
figure.legend(loc="outside lower center", ncols=2)
