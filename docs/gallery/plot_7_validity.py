"""
Reading stability and validity
==============================

A solution of state evolution describes message passing at large d if two conditions hold: the solution is stable, and
the assumption of replica symmetry is consistent. Both are fields of the result. This example shows how to read them,
along the two branches of the paper's model.
"""

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga

COLORS = {"semantic": "C0", "positional": "C1"}
model = ga.paper_model(omega=0.3)

# %%
# All solutions found at one α, sorted by training loss, including unstable solutions between them.
print(ga.branches(model, alpha=1.5, starts=("semantic", "positional"), rtol=2e-3))

# %%
# Both branches against α. Each solution is the initial value for the next α.
ALPHAS = np.array([0.7, 0.9, 1.2, 1.6, 2.0])
found = {}
for name in ("semantic", "positional"):
    start, solutions = name, []
    for alpha in ALPHAS[::-1] if name == "semantic" else ALPHAS:
        solutions.append(ga.solve_state_evolution(model, alpha, start, rtol=2e-3))
        start = solutions[-1].overlaps
    found[name] = solutions[::-1] if name == "semantic" else solutions
for name, solutions in found.items():
    print(f"{name}, α = {ALPHAS[0]}: {solutions[0].validity}")
    print(f"{name}, α = {ALPHAS[-1]}: {solutions[-1].validity}")

# %%
# Left: the growth factor per iteration of the overlap that is zero on the branch (m on the semantic branch, θ on the
# positional branch). If it is above 1, any damped iteration leaves the branch. At small α the semantic branch becomes
# unstable in this way, towards the positional branch. Center: the replicon eigenvalue of the continuous part of the
# proximal map, with its numerical error, which is large if the map jumps. Right: the fraction of V̂ that comes from
# jumps, in per cent. If it is above one per cent (dashed line), minima form clusters, which this prediction leaves out,
# however small its numerical error is.
TITLES = ("stability: growth factor", "replica symmetry:\nreplicon eigenvalue", "replica symmetry:\njumps in V̂, %")
figure, axes = plt.subplots(1, 3, figsize=(9.8, 4), layout="constrained")
for name, solutions in found.items():
    other = "m" if name == "semantic" else "theta"
    curves = (
        ([se.stability.growth[other] for se in solutions], None),
        ([se.replicon for se in solutions], [se.replicon_error for se in solutions]),
        ([100 * abs(se.jump_mass.sum() / se.V_hat.sum()) for se in solutions], None),
    )
    for axis, (curve, error) in zip(axes, curves, strict=True):
        axis.errorbar(ALPHAS, curve, error, fmt="o-", ms=4, capsize=2, color=COLORS[name], label=f"{name} branch")
for axis, title in zip(axes, TITLES, strict=True):
    axis.axhline(1, color="0.2", lw=0.8, ls="--", label="limit of validity")
    axis.set(title=title, xlabel="samples per dimension α")
axes[2].set_yscale("log")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
