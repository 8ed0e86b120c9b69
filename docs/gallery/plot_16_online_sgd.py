"""
Training on each sample once
============================

Training that uses every sample in a single step decreases the population loss, that is, the mean loss of a new sample.

This example computes the population loss of an attention layer whose weights have a fixed norm, and reproduces the
transition between semantic and positional training of Arnaboldi, Loureiro, Stephan, Krzakala and Zdeborová,
"Asymptotics of SGD in sequence-single index models and single-layer attention networks" (arXiv 2506.02651).
:doc:`/dynamics` explains the model.
"""

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga


# %%
# The teacher's attention matrix is a fraction 1 − ω of a softmax plus a fraction ω of a fixed matrix A. As in the
# article, the tokens have unit variance, A is the softmax of ((1, −1), (−1, 1)), and the student adds opposite
# positions to its two tokens.
def build_model(omega):
    """Return the attention layer of the article, for a positional fraction ω of the teacher."""
    rows = np.exp([[1.0, -1.0], [-1.0, 1.0]])
    return ga.paper_model(omega, sigma=1.0, A=rows / rows.sum(axis=1)[:, None])


landscape = ga.population_map(build_model(0.67), n_grid=41, n_points=1024)
print(landscape)

# %%
# At ω = 0.67 there are two minima, along the teacher and along the positions. Random weights have nearly no overlap
# with either, and training first moves along the direction of the most negative curvature. At the ω at which the two
# curvatures are equal, training changes from semantic to positional; the published value is 0.64.
omegas = np.array([0.5, 0.6, 0.7, 0.8])
maps = [ga.population_map(build_model(omega), n_grid=5, n_points=4096) for omega in omegas]
curvature = np.array([np.diag(at.curvature) for at in maps])
error = np.array([np.diag(at.curvature_error) for at in maps])
difference = curvature[:, 0] - curvature[:, 1]
equal = np.interp(0.0, -difference, omegas)
slope = abs(np.polyfit(omegas, difference, 1)[0])
print("                                  published   computed")
print(f"ω of equal curvatures             0.64        {equal:.3f} ± {np.hypot(*error.mean(axis=0)) / slope:.3f}")
print(f"number of minima at ω = 0.67      2           {len(landscape.minima)}")

# %%
# The theory of training in small steps on the sphere, by :func:`gamp_attention.trajectory`, from a small overlap of
# 0.02 with both directions: at ω = 0.72 training ends in the positional minimum, although the
# semantic minimum has the lower loss; at ω = 0.5 it ends in the semantic minimum.
one = np.ones((2, 1, 1))
start = ga.Overlaps(q=one, m=0.02 * np.array([[1.0], [-1.0]]), theta=0.02 * one, V=np.nan * one)
method = ga.SinglePass(lr=10.0, batch=1000.0, one_sample=True, spherical=True)
paths = {
    omega: ga.trajectory(build_model(omega), 1.0, start, method, n_iter=40, n_paths=2048, n_replicas=2)
    for omega in (0.5, 0.72)
}

for omega, path in paths.items():
    print(f"ω = {omega}: from m = {path.m[0, 0, 0]:.2f}, θ = {path.theta[0, 0, 0, 0]:.2f} to ", end="")
    print(f"m = {path.m[-1, 0, 0]:.3f}, θ = {path.theta[-1, 0, 0, 0]:.3f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
levels = left.contourf(landscape.cosines, landscape.cosines, landscape.loss.T, 16, cmap="Grays_r")
figure.colorbar(levels, ax=left, label="population loss, ω = 0.67")
for (omega, path), color in zip(paths.items(), ("C0", "C1"), strict=True):
    left.plot(path.m[:, 0, 0], path.theta[:, 0, 0, 0], "-", lw=2, color=color, label=f"training, ω = {omega}")
for at in landscape.minima:
    left.plot(at.positional, at.semantic, "o", color="white", mec="black")
ticks = np.linspace(-1, 1, 5)
left.set(xlabel="positional cosine", ylabel="semantic cosine", xticks=ticks, yticks=ticks)
left.legend(fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
for k, label in enumerate(("positional", "semantic")):
    right.errorbar(omegas, curvature[:, k], error[:, k], marker="o", color=f"C{k}", label=label)
right.axvline(0.64, color="0.5", linestyle=":", label="published transition")
right.set(xlabel="positional fraction ω", ylabel="curvature at zero overlap")
right.legend(frameon=False, fontsize=9)
