"""On long samples, trained layers and high rank, `train` takes at most three times eight runs of L-BFGS-B.

Method: samples of L = 2 to 32 tokens and students of r = 1 to 8 columns, d = 48, λ = 0.01, on four kinds of targets:

- planted: a tied softmax layer of at most two columns, mixed with a fixed attention matrix;
- noisy: the same with noise of 0.3 on its attention weights;
- trained: `torch.nn.MultiheadAttention` of one to four heads, with value and output matrices, after 100 steps of Adam;
- random: Gaussian outputs that are independent of the tokens.

One process runs on each instance: `train` with default settings, from eight starts, and L-BFGS-B of scipy with its
default settings from eight random starts, four each of standard deviation 0.1 and 0.5, on the gradient of the package;
its lowest loss counts. All times are processor times without compilation; of three runs of each method on a small
instance, the shortest counts. Losses that differ by less than 1e-5 are equal, since L-BFGS-B stops there.

Criterion: for every kind, L and r, training takes at most three times as long as the eight runs of L-BFGS-B together,
and ends at a gradient norm of at most 1e-8. The table reports which method has the lower loss. (Noise page of the
manual.)
"""

import time
from functools import lru_cache
from itertools import product

import numpy as np
from scipy.optimize import minimize

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import DARK, draw_legend
from gamp_attention.problem.losses.attention import softmax_rows
from gamp_attention.problem.risk import risk_at
from validation._tools.drawing import figure
from validation._tools.report import run_claim
from validation._tools.tables import markdown_table

SAMPLES = {2: 96, 3: 72, 5: 48, 9: 36, 16: 32, 32: 32}  # n for each L
RANKS, KINDS = (1, 2, 4, 8), ("planted", "noisy", "trained", "random")
D, LAM, STARTS = 48, 0.01, 8
QUICK = {"L": (3, 9), "r": (1, 4), "kinds": ("noisy", "trained")}
RATIO, TOL, EQUAL = 3.0, 1e-8, 1e-5
REPEATS = 3  # runs of each method on a small instance, of which the shortest time counts
STEPS, BATCH = 100, 64  # number of steps and batch size of Adam for the trained layer


def draw_tokens(rng, n, L, d, positions):
    return rng.standard_normal((n, L, d)) + positions


def build_planted(rng, n, L, d, r, noise):
    """Return tokens and outputs of a planted layer."""
    positions = rng.standard_normal((L, d)) / np.sqrt(d)
    teacher = rng.standard_normal((d, min(r, 2)))
    A = rng.random((L, L))
    A /= A.sum(axis=1, keepdims=True)
    x = 0.8 * draw_tokens(rng, n, L, d, positions)
    u = x @ teacher / np.sqrt(d)
    T = 0.8 * softmax_rows(u @ u.transpose(0, 2, 1)) + 0.2 * A
    return x, (T + noise * rng.standard_normal(T.shape)) @ x


@lru_cache(maxsize=64)
def train_layer(L, d, heads, seed):
    """Return positions, and a layer of torch that was trained to add each token's predecessor to similar tokens."""
    import torch

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng([seed, L, d, heads, 333])
    positions = 0.3 * rng.standard_normal((L, d))
    along = rng.standard_normal((d, heads))
    mix = rng.standard_normal((d, d)) / np.sqrt(d)
    layer = torch.nn.MultiheadAttention(d, heads, batch_first=True).double()
    adam = torch.optim.Adam(layer.parameters(), lr=0.01)
    for _ in range(STEPS):
        x = draw_tokens(rng, BATCH, L, d, positions)
        scores = x @ along / np.sqrt(d)
        wanted = softmax_rows(3 * scores @ scores.transpose(0, 2, 1)) @ x @ mix + np.roll(x, 1, axis=1)
        tokens = torch.tensor(x)
        error = ((layer(tokens, tokens, tokens, need_weights=False)[0] - torch.tensor(wanted)) ** 2).mean()
        adam.zero_grad()
        error.backward()
        adam.step()
    return positions, layer


def build_instance(kind, n, L, d, r, seed):
    """Return tokens and outputs of n samples."""
    rng = np.random.default_rng([seed, L, r, d, KINDS.index(kind)])
    if kind in ("planted", "noisy"):
        return build_planted(rng, n, L, d, r, 0.3 * (kind == "noisy"))
    if kind == "random":
        return rng.standard_normal((n, L, d)), rng.standard_normal((n, L, d))
    import torch

    heads = [h for h in (1, 2, 3, 4) if d % h == 0]
    positions, layer = train_layer(L, d, heads[(RANKS.index(r) + seed) % len(heads)], seed)
    x = draw_tokens(rng, n, L, d, positions)
    with torch.no_grad():
        tokens = torch.tensor(x)
        return x, layer(tokens, tokens, tokens, need_weights=False)[0].numpy()


def run_lbfgs(data, seed):
    """Return the weights of lowest loss of eight runs of L-BFGS-B from random starts, and all losses."""
    rng, shape, runs = np.random.default_rng([seed, 334]), (data.dim, data.rank), []

    def both(x):
        at = risk_at(data, x.reshape(shape), "exact")
        return at.train_loss * data.dim, at.gradient.ravel()

    for k in range(STARTS):
        Q = (0.5 if k % 2 else 0.1) * rng.standard_normal(shape)
        runs.append(minimize(both, Q.ravel(), jac=True, method="L-BFGS-B"))
    return min(runs, key=lambda each: each.fun).x.reshape(shape), [each.fun / data.dim for each in runs]


@lru_cache
def compile_methods():
    """Run each method on small problems, so that compilation is not timed."""
    rng = np.random.default_rng(0)
    for L, r in ((2, 1), (3, 2), (5, 6)):
        data = ga.Dataset(rng.standard_normal((20, L, 8)), rng.standard_normal((20, L, 8)), lam=LAM, rank=r)
        ga.train(data, n_starts=2)
        run_lbfgs(data, 0)


def run_instance(kind, n, L, d, r, seed):
    """Run both methods on one instance."""
    compile_methods()
    x, y = build_instance(kind, n, L, d, r, seed)
    data = ga.Dataset(x, y, lam=LAM, rank=r)
    rows = {}
    methods = {
        "run": lambda: ga.train(data, n_starts=STARTS, seed=seed),
        "lbfgs": lambda: run_lbfgs(data, seed),
    }
    seconds = {name: np.inf for name in methods}
    for _, (name, method) in product(range(REPEATS), methods.items()):
        began = time.process_time()
        result = method()
        seconds[name] = min(seconds[name], time.process_time() - began)
        if name in rows:
            continue
        Q = result[0] if name == "lbfgs" else result.Q
        rows[name] = {"loss": ga.train_loss(data, Q)}
        if name == "run":
            rows[name]["norm"] = result.gradient_norm
    return {"rows": {name: row | {"seconds": seconds[name]} for name, row in rows.items()}}


def summarize(rows):
    """Return the ratio of times, and counts of losses below, equal to and above the best of L-BFGS-B."""
    seconds, losses = (
        np.array([[row["rows"][name][key] for name in ("run", "lbfgs")] for row in rows]) for key in ("seconds", "loss")
    )
    ratios = losses[:, 0] / losses[:, 1]
    counts = np.sum(ratios < 1 - EQUAL), np.sum(abs(ratios - 1) <= EQUAL), np.sum(ratios > 1 + EQUAL)
    return {"ratio": float(seconds[:, 0].sum() / seconds[:, 1].sum()), "seconds": float(seconds[:, 0].mean()),
            "counts": [int(count) for count in counts]}  # fmt: skip


def draw(numbers, path):
    """Draw ratios of times against L, one axis for each kind."""
    cells, kinds = numbers["cells"], numbers["kinds"]
    with figure(path, 2, 2, (9, 6.4)) as axes:
        for axis, kind in zip(axes.flat, kinds, strict=False):
            for k, (r, marker) in enumerate(zip(RANKS, "osD^", strict=False)):
                mine = {L: cells.get(f"{kind}, {L}, {r}") for L in SAMPLES}
                at = [L for L, cell in mine.items() if cell]
                label = f"r = {r} column{'s' * (r > 1)} of weights"
                axis.plot(at, [mine[L]["ratio"] for L in at], f"{marker}-", color=f"C{k}", ms=5, label=label)
            axis.axhline(RATIO, color=DARK, lw=1, ls=":", label="largest allowed ratio")
            axis.set(xscale="log", xlabel="tokens per sample L", title=f"{kind} targets", ylim=(0, 1.1 * RATIO))
            axis.set_xticks(list(SAMPLES), list(map(str, SAMPLES)))
            axis.minorticks_off()
        for row in axes:
            row[0].set_ylabel("time of training\n/ time of eight runs of L-BFGS-B")
        draw_legend(*axes.flat, columns=3)


def plan(quick):
    """Return the instances."""
    lengths, ranks, kinds = (QUICK["L"], QUICK["r"], QUICK["kinds"]) if quick else (tuple(SAMPLES), RANKS, KINDS)
    cases = [{"kind": kind, "n": SAMPLES[L], "L": L, "d": D, "r": r} for kind, L, r in product(kinds, lengths, ranks)]
    return {run_instance: [case | {"seed": 0} for case in cases]}


def judge(verdict, rows):
    """Check ratios of times and gradient norms."""
    cells = {
        f"{kind}, {L}, {r}": summarize([row for row in rows if (row["kind"], row["L"], row["r"]) == (kind, L, r)])
        for kind, L, r in dict.fromkeys((row["kind"], row["L"], row["r"]) for row in rows)
    }
    ratios = {name: cell["ratio"] for name, cell in cells.items()}
    worst = max(ratios, key=ratios.get)
    said = f"median {np.median(list(ratios.values())):.2g}, at most {ratios[worst]:.2g} ({worst})"
    verdict.check(ratios[worst] <= RATIO, f"time of training over eight of L-BFGS-B: {said}")
    norms = np.array([row["rows"]["run"]["norm"] for row in rows])
    verdict.check(norms.max() <= TOL, f"{np.sum(norms <= TOL)} of {len(norms)} at 1e-8, worst {norms.max():.1e}")
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        counts = np.sum([cell["counts"] for name, cell in cells.items() if name.startswith(kind)], axis=0)
        mine = [ratio for name, ratio in ratios.items() if name.startswith(kind)]
        lines.append(
            [kind, f"{np.median(mine):.2g} ({min(mine):.2g} to {max(mine):.2g})", " / ".join(map(str, counts))]
        )
    verdict.write_table(markdown_table(["targets", "ratio of times", "lower / equal / higher loss"], lines))
    return {"cells": cells, "kinds": sorted({row["kind"] for row in rows})}


def main():
    run_claim("long_samples", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
