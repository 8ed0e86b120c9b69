"""GAMP's fixed points are critical points of the loss, by L-BFGS, gradient descent and torch autograd.

Criterion: the gradient norm is at most 1e-8 for both risks and branches at every d. On the semantic branch L-BFGS and
plain gradient descent from the informed start reach GAMP's weights within ‖ΔQ‖/√d < 1e-6. On the positional branch a
descent from GAMP's weights, perturbed, returns to them. For the exact risk, torch autograd on the attention layer gives
the same gradient.
"""

import time

import numpy as np
import torch
from tqdm import tqdm

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import COLORS, GREY, draw_legend
from gamp_attention.gamp.damping import DAMPING
from validation._tools.drawing import figure
from validation._tools.report import Verdict, options


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


def one(d, seed, branch, risk, gd_steps):
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
        "d": d,
        "seed": seed,
        "branch": branch,
        "risk": risk,
        "status": gamp.status.value,
        "fixed_point": gamp.fixed_point,
        "n_iter": gamp.n_iter,
        "seconds": seconds,
        "gradient_norm": gamp.gradient_norm,
        "layer_gradient_norm": layer_gradient_norm(data, gamp.Q) if risk == "exact" else None,
        "n_off_global": gamp.n_off_global,
        "n": data.n_samples,
        "to_lbfgs": distance(gamp.Q, informed.Q),
        "returned": distance(gamp.Q, returned.Q),
        "loss": gamp.train_loss,
        "lbfgs_loss": informed.train_loss,
        **{key: float(value) for key, value in gamp.overlaps.scalars().items()},
        **{"lbfgs_" + key: float(value) for key, value in informed.overlaps.scalars().items()},
    }
    if gd_steps:
        descent = ga.minimize_risk(data, branch, risk, "gd", max_iter=gd_steps, tol=1e-7)
        row |= {"to_gd": distance(gamp.Q, descent.Q), "gd_steps": descent.n_iter}
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


def main():
    args = options(__doc__, draw=True)
    verdict = Verdict("fixed_points", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    plan = {500: 2} if args.quick else {500: 4, 1000: 4, 2000: 2, 4000: 1}
    smallest = min(plan)
    cases = [
        (d, seed, branch, risk)
        for d, seeds in plan.items()
        for seed in range(seeds)
        for branch in DAMPING
        for risk in ("asymptotic", "exact")
    ]
    rows = []
    for d, seed, branch, risk in tqdm(cases, disable=None):
        gd_steps = 30000 if d == smallest and branch == "semantic" and seed < (1 if args.quick else 2) else 0
        rows.append(one(d, seed, branch, risk, gd_steps))
        r = rows[-1]
        print(
            f"d={d:5} seed {seed} {branch:10} {risk:10} {r['status']:9} {r['n_iter']:4} iterations "
            f"{r['seconds']:6.2f} s gradient {r['gradient_norm']:.1e} off global {r['n_off_global']} of {r['n']} "
            f"to L-BFGS {r['to_lbfgs']:.1e} returned {r['returned']:.1e} "
            f"loss {r['loss']:.6f} L-BFGS {r['lbfgs_loss']:.6f}",
            flush=True,
        )
    semantic = [r for r in rows if r["branch"] == "semantic"]
    positional = [r for r in rows if r["branch"] == "positional"]
    verdict.check(
        all(r["gradient_norm"] <= 1e-8 and r["fixed_point"] for r in rows), "gradient norm <= 1e-8 everywhere"
    )
    exact = [r for r in rows if r["risk"] == "exact"]
    verdict.check(
        all(r["layer_gradient_norm"] <= 2e-8 for r in exact),
        f"autograd on the layer agrees: at most {max(r['layer_gradient_norm'] for r in exact):.1e}",
    )
    verdict.check(
        all(r["to_lbfgs"] < 1e-6 for r in semantic),
        f"semantic: L-BFGS ends at most {max(r['to_lbfgs'] for r in semantic):.1e} from GAMP",
    )
    with_gd = [r for r in semantic if "to_gd" in r]
    verdict.check(
        all(r["to_gd"] < 1e-6 for r in with_gd),
        f"semantic: gradient descent ends at most {max(r['to_gd'] for r in with_gd):.1e} from GAMP "
        f"(d={smallest}, {max(r['gd_steps'] for r in with_gd)} steps)",
    )
    verdict.check(
        all(r["returned"] < 1e-6 for r in positional),
        f"positional: descent from perturbed GAMP returns, to {max(r['returned'] for r in positional):.1e}",
    )
    differ = [r for r in positional if r["to_lbfgs"] > 1e-6]
    lower = sum(r["loss"] < r["lbfgs_loss"] for r in differ)
    print(
        f"positional: GAMP and informed L-BFGS end at different minima in {len(differ)} of {len(positional)} runs; "
        f"GAMP's is the lower in {lower} of these"
    )
    for key in ("q", "m", "V"):
        means = [np.nanmean([r[prefix + key] for r in positional]) for prefix in ("", "lbfgs_")]
        print(f"positional: mean {key} {means[0]:.4f} at GAMP's minima, {means[1]:.4f} at L-BFGS's")
    verdict.end({"rows": rows, "positional_differ": len(differ), "positional_gamp_lower": lower}, draw)


if __name__ == "__main__":
    main()
