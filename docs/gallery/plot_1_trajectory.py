"""
A trajectory against its prediction
===================================

State evolution predicts every iteration of message passing (GAMP), not only the final result. This example runs message
passing on several random data sets (instances) for a fixed number of iterations and compares the overlaps with the
prediction for d → ∞. The overlaps are q (squared norm of the weights), m (overlap with the positional encodings),
θ (overlap with the teacher's weights) and V (variance of the local fields).
"""

import gamp_attention as ga

STEPS, INSTANCES = 20, 8
DAMPING = {"semantic": 0.5, "positional": 0.3}

# %%
# The paper's model at ω = 0.3 and α = 1.5. Both branches exist at this point. With ``tol=0`` exactly ``max_iter``
# iterations are run, and each sample uses the global minimum of its proximal problem in all of them.
# :func:`~gamp_attention.trajectory` describes these iterations.
model = ga.paper_model(omega=0.3)
runs: dict[str, list[ga.GampResult]] = {name: [] for name in DAMPING}
for seed in range(INSTANCES):
    data = ga.sample(model, d=1000, alpha=1.5, seed=seed)
    for name, step in DAMPING.items():
        runs[name].append(ga.run_gamp(data, name, "asymptotic", damping=step, tol=0, max_iter=STEPS))
predicted = {
    name: ga.trajectory(model, 1.5, name, ga.MessagePassing(damping=step), n_iter=STEPS)
    for name, step in DAMPING.items()
}

# %%
# Lines are the prediction, with bands of ± 2 standard errors of its random sampling. Dots are means over the eight
# instances, with bars of ± 1 standard error.
for name in DAMPING:
    axes = ga.plot_trajectory(predicted[name], runs[name])
    axes[0, 0].figure.suptitle(f"Message passing and its prediction, {name} branch")

# %%
# On the positional branch the measured V is too low: the proximal map jumps there, and the response that is computed
# from the samples does not contain the jumps. ``IterationOptions(path.V_hat)`` takes the response from the
# prediction instead, and V agrees with it. ``data.instance_model()`` replaces the distribution of the teacher's
# weights by the moments of the teacher of one data set, so that the prediction is for this data set, here the last
# instance.
path = ga.trajectory(data.instance_model(), 1.5, "positional", ga.MessagePassing(damping=0.3), n_iter=STEPS)
print(f"V at the last iteration, predicted for this instance: {path.V[-1].mean():.3f}")
for name, V_hat in {"empirical": None, "predicted": path.V_hat}.items():
    options = ga.IterationOptions(V_hat)
    run = ga.run_gamp(data, "positional", "asymptotic", damping=0.3, tol=0, max_iter=STEPS, iteration=options)
    V = run.history.V[STEPS].mean()
    print(f"{name:<9} response: {V:.3f}, {V / path.V[-1].mean() - 1:+.1%}")
