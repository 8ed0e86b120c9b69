"""
What could be learned at all
============================

The test error of the Bayes-optimal estimate of the teacher, of the trained layer and of the linear baseline over the
number of samples. From α = .5 on the samples tell the teacher completely, and message passing finds it. The layer is
worse than a linear map until α = 1.5.
"""

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga

model = ga.paper_model(omega=0.3)
base = ga.linear_baseline(model).test_error

# %%
# The Bayes-optimal estimate: state evolution, and its thresholds.
thresholds = ga.bayes_thresholds(model)
print(thresholds)
fine = np.linspace(0.05, 2.0, 24)
bayes = [ga.solve_bayes_state_evolution(model, alpha, n_points=1 << 14, n_replicas=2).test_error for alpha in fine]

# %%
# The trained layer: both branches, of which that of lower training loss has the global minimum. On the semantic branch
# the weights do not see the positions, m = 0: it is what the layer would be without them. Between the α where it
# appears and α_c = 1.25 the positions cost the layer the difference of the two.
alphas = np.linspace(0.5, 2.0, 7)
found = {}
for branch in ("positional", "semantic"):
    path = [ga.solve_state_evolution(model, alpha, branch, rtol=1e-2, stability=False) for alpha in alphas]
    found[branch] = np.array([[each.test_error, each.train_loss] if each.converged else [np.nan] * 2 for each in path])
lowest = np.nanargmin([values[:, 1] for values in found.values()], axis=0)
best = np.where(lowest == 0, found["positional"][:, 0], found["semantic"][:, 0])

# %%
# One instance at d = 500 finds the teacher but for a sign, where the layer has not yet turned semantic.
run = ga.run_bayes_amp(ga.sample(model, d=500, alpha=0.6, seed=1))
print(f"overlap {abs(run.overlap[0, 0]):.3f}, {np.linalg.norm(run.Q) ** 2 / 500:.3f} would be all of it")

figure, axis = plt.subplots(figsize=(6.5, 4), layout="constrained")
axis.plot(fine, bayes, color="#009E73", label="Bayes-optimal")
axis.axhline(base, color="#999999", label="linear baseline")
for (branch, values), colour in zip(found.items(), ("#D55E00", "#0072B2"), strict=True):
    axis.plot(alphas, values[:, 0], ":", color=colour, label=f"{branch} branch")
axis.plot(alphas, best, "o", color="#333333", ms=4, label="trained layer: lowest training loss")
for alpha in (thresholds.weak_recovery, thresholds.full_recovery):
    axis.axvline(alpha, color="#009E73", lw=0.5)
axis.set(xlabel="α = n/d", ylabel="test error", ylim=(0, None))
axis.legend(frameon=False, fontsize=8)
