"""
An attention map of your own
============================

An attention map is a class with one method, which fills the attention matrix. Here every token decides by a sigmoid how
much it attends to each other one, so that rows do not add to one. :doc:`/adding_a_loss` says what else a map may have.

.. literalinclude:: ../examples/sigmoid_attention.py
   :caption: docs/examples/sigmoid_attention.py
   :lines: 1-30
"""

import matplotlib.pyplot as plt

import gamp_attention as ga
from docs.examples.sigmoid_attention import SigmoidAttention

ALPHA, STEPS = 3.0, 15

# %%
# The teacher attends by the softmax of the paper. Of two students, one has its map and one attends by sigmoids. Both
# start at the teacher's weights; their trajectories are predicted as for any other map.
students = {"softmax": ga.DotProductAttention(), "sigmoid": SigmoidAttention(2.0)}
predicted, followed, ends = {}, {}, {}
for name, student in students.items():
    data = ga.sample(ga.attention_model(student=student, lam=0.02), d=500, alpha=ALPHA, seed=0)
    followed[name] = ga.run_gamp(data, "semantic", "asymptotic", damping=0.5, tol=0, max_iter=STEPS)
    predicted[name] = ga.trajectory(data.instance_model(), ALPHA, "semantic", damping=0.5, n_iter=STEPS, n_paths=512)
    ends[name] = ga.run_gamp(data, "semantic")

# %%
# Run to the end, both come to zero gradient. The softmax explains the teacher's outputs better.
for name, end in ends.items():
    print(f"{name}: {end.status.value} in {end.n_iter} iterations, ε_t = {end.train_loss:.5f}")

# %%
# Lines are state evolution, dots message passing.
figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
for name, colour in (("softmax", "C0"), ("sigmoid", "C1")):
    line, dots = predicted[name].scalars(), followed[name].history.scalars()
    for axis, (key, title) in zip(axes, {"q": "q", "theta": "θ", "V": "V"}.items(), strict=True):
        axis.plot(line[key], color=colour, label=name)
        axis.plot(dots[key][: STEPS + 1], "o", ms=4, color=colour)
        axis.set(title=title, xlabel="iteration")
axes[0].legend(frameon=False)
