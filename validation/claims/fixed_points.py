"""GAMP's fixed points are critical points of the loss, by L-BFGS, gradient descent and torch autograd.

Criterion: the gradient norm is at most 1e-8 for both risks and branches at every d. On the semantic branch L-BFGS and
plain gradient descent from the informed start reach GAMP's weights within ‖ΔQ‖/√d < 1e-6. On the positional branch a
descent from GAMP's weights, perturbed, returns to them. For the exact risk, torch autograd on the attention layer gives
the same gradient.
"""

import time

import numpy as np
import torch

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import COLORS, GREY, draw_legend
from gamp_attention.gamp.damping import DAMPING
from validation._tools.drawing import figure
from validation._tools.report import run_claim


def layer_gradient_norm(data, Q):
    """Return ‖∇R‖/(λ√d) of R = ½ Σ ‖y − f_Q(x)‖²/d + (λ/2)‖Q‖², by autograd on the layer without compiled kernels."""
    x, y, p = (torch.tensor(a) for a in (data.tokens, data.outputs, data.positions))
    weights = torch.tensor(Q, requires_grad=True)
    d = x.shape[2]
    z = (x + p) @ weights / d**0.5
    f = torch.softmax(z @ z.mT, dim=-1) @ (x + p)
    risk = ((y - f) ** 2).sum() / (2 * d) + data.lam / 2 * (weights**2).sum()
    (gradient,) = torch.autograd.grad(risk, weights)
    return float(gradient.norm() / (data.lam * d**0.5))


def distance(a, b):
    """Return ‖a − b‖/√d up to the sign of the weights."""
    return float(min(np.linalg.norm(a - b), np.linalg.norm(a + b)) / np.sqrt(len(a)))


def run_instance(d, seed, branch, risk, gd_steps):
    """Run GAMP and the descents on one instance."""
    data = ga.sample(ga.paper_model(0.3), d, 1.5, seed)
    began = time.perf_counter()
    gamp = ga.run_gamp(data, branch, risk, damping=DAMPING[branch])
    seconds = time.perf_counter() - began
    informed = ga.minimize_risk(data, branch, risk, "lbfgs", tol=1e-8)
    noise = np.random.default_rng(seed).standard_normal(gamp.Q.shape)
    noise *= 1e-3 * np.linalg.norm(gamp.Q) / np.linalg.norm(noise)
    returned = ga.minimize_risk(data, gamp.Q + noise, risk, "lbfgs", tol=1e-8)
    row = {
        "fixed_point": gamp.fixed_point, "seconds": seconds, "gradient_norm": gamp.gradient_norm,
        "layer_gradient_norm": layer_gradient_norm(data, gamp.Q) if risk == "exact" else None,
        "to_lbfgs": distance(gamp.Q, informed.Q), "returned": distance(gamp.Q, returned.Q),
        "loss": gamp.train_loss, "lbfgs_loss": informed.train_loss,
    }  # fmt: skip
    if gd_steps:
        descent = ga.minimize_risk(data, branch, risk, "gd", max_iter=gd_steps, tol=1e-7)
        row["to_gd"] = distance(gamp.Q, descent.Q)
    return row


def draw(numbers, path):
    """Draw the times of GAMP, and its losses relative to L-BFGS, against d."""
    rows = numbers["rows"]
    sizes = sorted({row["d"] for row in rows})
    with figure(path, 1, 2, (9, 4)) as axes:
        times, losses = axes[0]
        for branch, marker, shift in (("semantic", "o", 0.95), ("positional", "s", 1.05)):
            mine = [row for row in rows if row["branch"] == branch]
            d, style = shift * np.array([row["d"] for row in mine]), {"color": COLORS[branch], "mfc": "none", "ms": 6}
            times.loglog(d, [row["seconds"] for row in mine], marker, label=f"{branch} branch", **style)
            losses.plot(d, [1e6 * (row["loss"] - row["lbfgs_loss"]) for row in mine], marker, **style)
        losses.axhline(0, color=GREY, lw=0.8)
        times.set(xlabel="dimension d", ylabel="time to a gradient norm of 1e-8, s", title="GAMP")
        losses.set(xlabel="dimension d", ylabel=r"$10^6\,[\epsilon_t$(GAMP) − $\epsilon_t$(L-BFGS)]",
                   title="training loss, from the same initial weights")  # fmt: skip
        for axis in axes[0]:
            axis.set_xscale("log")
            axis.set_xticks(sizes, sizes)
            axis.set_xticks([], minor=True)
        draw_legend(times, columns=2)


def plan(quick):
    """Return the instances; plain gradient descent runs at the smallest d."""
    sizes = {500: 2} if quick else {500: 4, 1000: 4, 2000: 2, 4000: 1}
    cases = [
        (d, seed, branch, risk, 30000 * (d == min(sizes) and branch == "semantic" and seed < (1 if quick else 2)))
        for d, seeds in sizes.items() for seed in range(seeds) for branch in DAMPING
        for risk in ("asymptotic", "exact")
    ]  # fmt: skip
    return {run_instance: [dict(zip(("d", "seed", "branch", "risk", "gd_steps"), c, strict=True)) for c in cases]}


def judge(verdict, rows):
    """Check gradients and distances between minima."""
    semantic, positional = ([r for r in rows if r["branch"] == branch] for branch in ("semantic", "positional"))
    zero = all(r["gradient_norm"] <= 1e-8 and r["fixed_point"] for r in rows)
    verdict.check(zero, "gradient norm <= 1e-8 everywhere")
    largest = max(r["layer_gradient_norm"] for r in rows if r["risk"] == "exact")
    verdict.check(largest <= 2e-8, f"autograd on the layer agrees: at most {largest:.1e}")
    for name, key, mine in (
        ("semantic: L-BFGS", "to_lbfgs", semantic),
        ("semantic: gradient descent", "to_gd", [r for r in semantic if "to_gd" in r]),
        ("positional: descent from perturbed GAMP", "returned", positional),
    ):
        most = max(r[key] for r in mine)
        verdict.check(most < 1e-6, f"{name} ends at most {most:.1e} from GAMP")
    differ = [r for r in positional if r["to_lbfgs"] > 1e-6]
    lower = sum(r["loss"] < r["lbfgs_loss"] for r in differ)
    print(f"positional: other minima than L-BFGS in {len(differ)} of {len(positional)} runs, lower in {lower}")
    return {"rows": rows}


def main():
    run_claim("fixed_points", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
