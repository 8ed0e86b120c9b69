"""
A strength of the penalty for each column
=========================================

Each column of the weights may have its own strength of the ridge penalty, which may also be zero or negative. This
example varies one of two strengths for least squares with noisy labels, in state evolution and by message passing at
d = 400.
"""

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga

ALPHA, NOISE, SIZE = 2.0, 0.5, 400
BEST = NOISE**2  # strength of lowest test error: the variance of the noise over the variance of the weights

# %%
# The two columns of Q are independent regressions here, because the squared loss is a sum over columns. The first
# column has the best strength, and the second column has the strength λ. Negative λ are allowed, because the losses of
# the samples keep the risk bounded from below.
labels = ga.LinearLabels(noise=NOISE)
strengths = np.array([-0.1, 0.0, 0.1, 0.25, 0.5, 1.0])
theory, measured = [], []
for lam in strengths:
    model = ga.glm_model(ga.SquaredLoss(), labels, rank=2, lam=[BEST, lam])
    theory.append(ga.solve_state_evolution(model, ALPHA, "semantic", rtol=1e-4, stability=False).overlaps)
    run = ga.run_gamp(ga.sample(model, SIZE, ALPHA, seed=0), "semantic")
    measured.append(run.overlaps)
    print(f"λ = {lam:5.2f}: {run.status.value}, ‖Q‖²/d = {np.diagonal(run.overlaps.q[0]).round(6)}")


# %%
# The mean square distance of a column from the teacher's weights follows from the overlaps. If λ is large, the weights
# are too small, and if λ is negative, they are too large.
def distances(overlaps):
    """Return ‖Q_a − Q*_a‖²/d of both columns, for each of several overlaps."""
    q, theta = (np.array([np.diagonal(getattr(o, name)[0]) for o in overlaps]) for name in ("q", "theta"))
    return q - 2 * theta + 1


figure, axis = plt.subplots(figsize=(6.4, 4), layout="constrained")
for column, (color, label) in enumerate([("#0072B2", f"strength {BEST}"), ("#D55E00", "strength λ")]):
    axis.plot(strengths, distances(theory)[:, column], color=color, label=f"{label}, state evolution")
    axis.plot(strengths, distances(measured)[:, column], "o", color=color, label=f"{label}, GAMP at d = {SIZE}")
axis.set_xlabel("strength λ of the second column")
axis.set_ylabel(r"distance from the teacher, $\|Q_a - Q^*_a\|^2/d$")
axis.set_ylim(0, None)
axis.legend()
plt.show()
