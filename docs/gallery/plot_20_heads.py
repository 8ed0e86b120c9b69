"""
Several heads and value matrices
================================

A layer of a transformer has several heads, each with a value matrix. This example writes a layer of torch as a layer of
this package, trains a layer with the same heads on its outputs, and shows that training finds the heads in any order.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import gamp_attention as ga

# %%
# In torch's layer, the outputs of head h are its attention times its values, and the output matrix adds the heads. The
# rows of `in_proj_weight` are queries, keys and values of all heads, which is the order of the columns of Q in this
# package. The fields are divided by √d, and the scores by the square root of the size of a head.
torch.manual_seed(0)
d, heads, n_tokens = 4, 2, 2
size = d // heads
layer = torch.nn.MultiheadAttention(d, heads, batch_first=True, dtype=torch.float64)
torch.nn.init.normal_(layer.in_proj_bias, std=0.3)
options = {
    "heads": heads,
    "rank": 2 * size,  # columns of the queries and keys of a head
    "student": ga.DotProductAttention(temperature=size**0.5, tied=False),
    "readout": layer.out_proj.weight.detach().numpy().T,
}
model = ga.value_model(n_tokens, teacher_rank=2 * size, values=size, tau=[0] * n_tokens, intercept=True, **options)
x = np.random.default_rng(0).normal(size=(60, n_tokens, d))
with torch.no_grad():
    outputs = layer(*[torch.tensor(x)] * 3)[0].numpy()
Q, biases = d**0.5 * layer.in_proj_weight.detach().numpy().T, layer.in_proj_bias.detach().numpy()
difference = np.abs(model.predict(x @ Q / d**0.5 + biases) - outputs).max()
print(f"outputs differ by at most {difference:.1g}")

# %%
# The estimator starts from random weights. The outputs have no noise, so that the error goes to zero with the penalty.
trained = ga.GampAttention(lam=1e-5, value_rank=size, fit_intercept=True, n_starts=2, max_iter=300, **options)
trained.fit(x, outputs)
print(f"R² = {trained.score(x, outputs):.6f}, status {trained.result_.status.value}")

# %%
# In high dimensions, state evolution predicts the overlaps of each head with each head of the teacher. The loss does
# not change if heads are exchanged or change sign, so that a run without the teacher may find them in any order.
teacher = ga.SoftmaxTeacher(0.0, np.eye(2), ga.MultiHeadAttention(heads=2))
two = ga.attention_model(
    student=ga.MultiHeadAttention(2), teacher_rank=2, teacher=teacher, sigma=1.0, tau=[0, 0], lam=0.05
)
data = ga.sample(two, d=200, alpha=4.0, seed=1)
informed = ga.run_gamp(data, "semantic")
found = ga.train(data, "spectral", n_starts=4, seed=2, survey=False, escape=False)
path = ga.trajectory(data.instance_model(), 4.0, "semantic", n_iter=12, n_paths=2000)
run = ga.run_gamp(data, "semantic", tol=0, max_iter=12, damping=0.5)

figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.4), layout="constrained", width_ratios=[1.6, 1, 1])
for head, color in enumerate(("#0072B2", "#D55E00")):
    axes[0].plot(path.theta[:, 0, head, head], color=color, label=f"head {head + 1}, state evolution")
    axes[0].plot(run.history.theta[:, 0, head, head], "o", color=color, label=f"head {head + 1}, GAMP")
axes[0].set(xlabel="iteration", ylabel="overlap with the teacher's head")
axes[0].legend()
for axis, result, name in ((axes[1], informed, "from the teacher"), (axes[2], found, "from the data")):
    cosines = result.Q.T @ data.Q_star
    cosines /= np.linalg.norm(result.Q, axis=0)[:, None] * np.linalg.norm(data.Q_star, axis=0)
    axis.imshow(np.abs(cosines), vmin=0, vmax=1, cmap="Blues")
    for (i, j), value in np.ndenumerate(cosines):
        axis.text(j, i, f"{value:.2f}", ha="center", va="center", color="k" if abs(value) < 0.6 else "w")
    axis.set(xticks=[0, 1], yticks=[0, 1], xticklabels=[1, 2], yticklabels=[1, 2])
    axis.set(title=name, xlabel="head of the teacher", ylabel="head of the layer")
plt.show()
