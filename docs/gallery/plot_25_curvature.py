"""
Curvature at trained weights
============================

How steep is the training loss around a minimum, and in which directions? This example computes the spectrum of the
Hessian at the two minima of the paper's model, without forming the matrix, and compares it with the limit d → ∞.
:doc:`/curvature` explains the equations.
"""

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga

# %%
# Both minima belong to the same data. The semantic minimum attends to the content of the tokens, the positional minimum
# to their positions.
model, alpha, d = ga.paper_model(omega=0.3), 1.5, 600
data = ga.sample(model, d=d, alpha=alpha, seed=0)
branches = {"semantic": "#0072B2", "positional": "#D55E00"}
instances, limits = {}, {}
for branch in branches:
    result = ga.run_gamp(data, branch)
    instances[branch] = ga.hessian_spectrum(data, result.Q)
    fixed_point = ga.solve_state_evolution(model, alpha, branch, rtol=1e-3, stability=False)
    limits[branch] = ga.limiting_spectrum(model, alpha, fixed_point, width=1.5e-3, n_points=1024)
    print(branch, instances[branch], limits[branch], sep="\n")

# %%
# A few eigenvalues lie above the bulk: one along the positions, and at the semantic minimum one along the teacher and
# the weights.
for branch, limit in limits.items():
    for k, value in enumerate(limit.eigenvalues):
        parts = {name: getattr(limit, name)[k] for name in ("teacher", "weights", "positions")}
        words = ", ".join(f"{part:.2f} on {name}" for name, part in parts.items())
        print(f"{branch}: eigenvalue {value:.3f} with projections {words}")

figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.6), layout="constrained", sharey=True)
for ax, (branch, color) in zip(axes, branches.items(), strict=True):
    limit, spectrum = limits[branch], instances[branch]
    density, error = spectrum.density(limit.x, limit.width)
    ax.fill_between(limit.x, density - 2 * error, density + 2 * error, color=color, alpha=0.3, label=f"d = {d}")
    ax.plot(limit.x, limit.density, color=color, label="d → ∞")
    for value in limit.eigenvalues:
        ax.axvline(value, color=color, ls=":")
    ax.plot(spectrum.highest[-2:], np.zeros(2), "|", color="k", ms=14, label="two highest eigenvalues")
    ax.set(xlabel="eigenvalue of the Hessian", title=f"{branch} minimum", xlim=(-0.005, 0.25))
    ax.legend()
axes[0].set_ylabel("density")
plt.show()
