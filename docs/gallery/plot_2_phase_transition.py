"""
The phase transition in one picture
===================================

With few samples, the attention layer with the lowest training loss attends by the position of the tokens; with many
samples, it attends by their content. At the transition, α = α_c, both solutions (branches) have the same training loss.
This example computes α_c and draws the overlaps on both sides of it.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import brentq

import gamp_attention as ga

ALPHAS = np.arange(0.8, 1.85, 0.1)
MEASURED, SEEDS = ALPHAS[::2], range(4)
COLORS = {"semantic": "C0", "positional": "C1"}

# %%
# The theory: state evolution along both branches, where each solution is the initial value for the next α. The
# measurement: message passing on four instances with d = 400 at each α.
model = ga.paper_model(omega=0.3)
lines = {}
for name in ("semantic", "positional"):
    start, lines[name] = name, []
    for alpha in ALPHAS[::-1] if name == "semantic" else ALPHAS:
        se = ga.solve_state_evolution(model, alpha, start, rtol=2e-3, stability=False)
        lines[name].append((alpha, se.train_loss, se.overlaps.scalars()))
        start = se.overlaps
    lines[name].sort(key=lambda row: row[0])
dots = {
    name: [
        [ga.run_gamp(ga.sample(model, 400, alpha, seed), name, "asymptotic", damping=0.3) for seed in SEEDS]
        for alpha in MEASURED
    ]
    for name in lines
}

# %%
# At α_c the difference of the two training losses is zero. Here it is interpolated between the solutions.
# :func:`~gamp_attention.phase_boundaries` computes α_c with an error estimate, and the other boundaries too.
losses = {name: np.array([loss for _, loss, _ in rows]) for name, rows in lines.items()}
gap = losses["semantic"] - losses["positional"]
alpha_c = brentq(lambda alpha: np.interp(alpha, ALPHAS, gap), ALPHAS[0], ALPHAS[-1])
print(f"α_c = {alpha_c:.2f}")

# %%
# Lines are state evolution. Dots are means over the four instances, with bars of ± 1 standard error. Right: below α_c
# the branch with the lower loss has an overlap m with the positional encodings, above α_c it has an overlap θ with the
# teacher's weights (thick lines). Thin dotted lines show both branches at all α.
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.6), layout="constrained")
for name, rows in lines.items():
    key = "theta" if name == "semantic" else "m"
    left.plot(ALPHAS, losses[name], color=COLORS[name], label=f"state evolution, {name}")
    values = np.array([abs(overlaps[key]) for _, _, overlaps in rows])
    lower = (alpha_c < ALPHAS) == (name == "semantic")
    right.plot(ALPHAS, values, color=COLORS[name], lw=1, ls=":")
    right.plot(
        ALPHAS[lower],
        values[lower],
        color=COLORS[name],
        lw=2.5,
        label={"theta": "θ, overlap with teacher", "m": "$|m_1|$, overlap with positions"}[key],
    )
    measured = (
        (left, [[run.train_loss for run in runs] for runs in dots[name]]),
        (right, [[abs(run.overlaps.scalars()[key]) for run in runs] for runs in dots[name]]),
    )
    for axis, values in measured:
        error = np.std(values, axis=1, ddof=1) / np.sqrt(len(SEEDS))
        dots_label = f"message passing, {name}" if axis is left else None
        axis.errorbar(MEASURED, np.mean(values, axis=1), error, fmt="o", ms=4, color=COLORS[name], label=dots_label)
for axis in (left, right):
    axis.axvline(alpha_c, color="0.2", lw=0.8, ls="--", label=r"transition $α_c$" if axis is left else None)
    axis.set_xlabel("samples per dimension α = n/d")
left.set(ylabel="training loss $ε_t$", title="training losses of both branches")
right.set(ylabel="overlap", title="overlap of the branch with the lower loss")
figure.legend(loc="outside lower center", ncols=3)
