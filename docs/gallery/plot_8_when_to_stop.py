"""
When to stop training on noisy data
===================================

If the targets are noisy, the fixed point of state evolution no longer predicts the end of training, but
``trajectory(..., GradientDescent(...))`` still predicts every step of gradient descent. This example computes the test
error during training for two strengths λ of the penalty, finds the step at which training should stop, and compares the
predicted training loss with one instance.
"""

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga

NOISE, ALPHA, STEPS = 0.3, 2.0, 60

# %%
# The targets are y = (T[u] + s N)x with Gaussian noise N. This noise adds a constant to every test error, which is
# subtracted below. Gradient descent starts from the positional encodings, which are known without a teacher, and
# takes steps of size 2.
#
# Lines are the prediction, with bands of ± 2 standard errors. Dots (left) are gradient descent on one instance with
# d = 600. Triangles (right) mark the step with the smallest test error.
figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for lam, color in ((0.01, "#0072B2"), (0.1, "#D55E00")):
    model = ga.paper_model(omega=0.3, lam=lam, score_noise=NOISE)
    path = ga.trajectory(
        model, ALPHA, "positional", ga.GradientDescent(lr=2.0), n_iter=STEPS, n_paths=1024, n_replicas=2
    )
    noise_error = NOISE**2 * model.task.trace.sum()  # s² Σ_l tr Σ_l/d, with the token covariances Σ_l
    best = int(np.argmin(path.test_error))
    print(f"λ = {lam}: smallest test error {path.test_error[best] - noise_error:.5f} at step {best}")
    for axis, values, errors in (
        (axes[0], path.train_loss - path.train_loss[0], path.train_loss_error),
        (axes[1], path.test_error - noise_error, path.test_error_error),
    ):
        axis.plot(values, color=color, label=f"prediction, λ = {lam}")
        axis.fill_between(np.arange(STEPS + 1), values - 2 * errors, values + 2 * errors, color=color, alpha=0.3, lw=0)
    axes[1].plot(best, path.test_error[best] - noise_error, "v", ms=8, color=color, label=f"smallest error, λ = {lam}")

    # One instance. Its noise shifts all training losses by the same constant, so the initial loss is subtracted.
    data = ga.sample(model, d=600, alpha=ALPHA, seed=0)
    run = ga.minimize_risk(data, "positional", "asymptotic", "gd", lr=2.0, max_iter=STEPS, tol=0)
    axes[0].plot(
        run.iterations,
        run.history.train_loss - run.history.train_loss[0],
        "o",
        ms=3,
        color=color,
        label=f"one instance, λ = {lam}",
    )
axes[0].set(
    title="training loss − initial training loss", xlabel="step of gradient descent", ylabel="difference of losses"
)
axes[1].set(title="test error − part due to the noise", xlabel="step of gradient descent", ylabel="test error")
axes[0].legend()
handles, labels = axes[1].get_legend_handles_labels()
axes[1].legend([h for h, text in zip(handles, labels, strict=True) if "smallest" in text],
               [text for text in labels if "smallest" in text])  # fmt: skip
