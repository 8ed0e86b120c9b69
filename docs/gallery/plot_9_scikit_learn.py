"""
Choose a penalty with scikit-learn
==================================

``GampAttention`` is an estimator of scikit-learn for cross-validation, grid searches and pipelines. This example
chooses the penalty λ of an attention layer by cross-validation on noisy data. It requires scikit-learn:
``pip install "gamp-attention[sklearn]"``.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import GridSearchCV, KFold, train_test_split

import gamp_attention as ga

# %%
# The data, as they might come from a file: tokens that include their positions, and outputs of a teacher whose
# attention matrix has noise. A quarter of the samples is reserved for testing. The training uses only these arrays and
# not the teacher.
data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8, score_noise=0.2), d=100, alpha=4.0, seed=0)
tokens, outputs = data.tokens + data.positions, data.outputs
train_x, test_x, train_y, test_y = train_test_split(tokens, outputs, test_size=0.25, random_state=0)

# %%
# Each fit tries eight initial weights and selects the result with the lowest training loss. The grid search compares
# values of λ in four folds.
lams = [0.003, 0.03, 0.3, 3.0]
search = GridSearchCV(ga.GampAttention(), {"lam": lams}, cv=KFold(4), return_train_score=True)
search.fit(train_x, train_y)
layer = search.best_estimator_
error, standard = layer.test_error(test_x, test_y)
print(
    f"λ = {search.best_params_['lam']}: R² {layer.score(test_x, test_y):.3f}, test error {error:.4f} ± {standard:.4f}"
)
print(layer.result_.message)

# %%
# Left: mean R² of the folds with its standard error against λ, for training and for validation. Middle: the training
# losses at which the eight starts ended or were stopped, in increasing order. Right: attention of the first token to
# itself in the test samples, against the teacher's attention without noise.
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9.8, 3.8), layout="constrained")
for name, label in (("train", "training"), ("test", "validation")):
    mean, spread = (search.cv_results_[f"{kind}_{name}_score"] for kind in ("mean", "std"))
    left.errorbar(lams, mean, spread / 2, fmt="o-", capsize=2, label=label)
left.set(xscale="log", xlabel="penalty λ", ylabel="R²", title="cross-validation")
left.legend()
losses = sorted(start.train_loss for start in layer.result_.starts)
middle.plot(np.arange(1, len(losses) + 1), losses, "o")
middle.set(xlabel="start, in order of loss", ylabel="training loss", title="all starts")
T = data.model.teacher((test_x - data.positions) @ data.Q_star / np.sqrt(data.dim))
right.plot(T[:, 0, 0], layer.attention(test_x)[:, 0, 0], ".", ms=5)
right.axline((0.5, 0.5), slope=1, color="0.6", lw=1, label="equal")
right.set(xlabel="teacher, without noise", ylabel="layer", title="attention of token 1 to itself")
right.legend()
