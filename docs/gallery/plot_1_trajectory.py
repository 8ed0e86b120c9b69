"""
A trajectory against its prediction
===================================

State evolution predicts every iterate of message passing, not only where it ends. Here instances are run without a
stopping rule, and their overlaps are drawn on the prediction for d → ∞.
"""

import gamp_attention as ga

STEPS, INSTANCES = 20, 8
DAMPING = {"semantic": 0.5, "positional": 0.3}

# %%
# The paper's model at ω = .3 and α = 1.5, where both branches exist. ``tol=0`` runs exactly ``max_iter`` iterations,
# with global proximal minima throughout, which is what :func:`~gamp_attention.trajectory` describes.
model = ga.paper_model(omega=0.3)
runs: dict[str, list[ga.GampResult]] = {name: [] for name in DAMPING}
for seed in range(INSTANCES):
    data = ga.sample(model, d=1000, alpha=1.5, seed=seed)
    for name, step in DAMPING.items():
        runs[name].append(ga.run_gamp(data, name, "asymptotic", damping=step, tol=0, max_iter=STEPS))
predicted = {name: ga.trajectory(model, 1.5, name, damping=step, n_iter=STEPS) for name, step in DAMPING.items()}

# %%
# Dots are means over the instances with their standard errors, lines the prediction.
for name in DAMPING:
    axes = ga.plot_trajectory(predicted[name], runs[name])
    axes[0, 0].set_ylabel(f"{name} branch")

# %%
# On the positional branch V runs low: the proximal map jumps there, and the response measured on data misses the
# jumps. With the response taken from the prediction, ``onsager="state_evolution"``, it does not.
# ``data.instance_model()`` puts the moments of this very teacher in place of their law, so that the prediction is for
# the last of the instances.
path = ga.trajectory(data.instance_model(), 1.5, "positional", damping=0.3, n_iter=STEPS)
print(f"V at the last iteration, predicted for this instance: {path.V[-1].mean():.3f}")
for onsager in ("empirical", "state_evolution"):
    run = ga.run_gamp(data, "positional", "asymptotic", damping=0.3, tol=0, max_iter=STEPS, onsager=onsager)
    V = run.history.V[STEPS].mean()
    print(f"{onsager:<16} response: {V:.3f}, {V / path.V[-1].mean() - 1:+.1%}")
