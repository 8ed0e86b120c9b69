"""Whether the weights of message passing come to rest, by the theory of its iterates."""

import numpy as np

import gamp_attention as ga
from gamp_attention.state_evolution.dynamics.message_paths import MessagePaths
from gamp_attention.state_evolution.dynamics.start_law import start_law
from gamp_attention.state_evolution.dynamics.weight_paths import build_weights
from gamp_attention.state_evolution.equations.channel import conjugates, sum_over_components

ITERATIONS, LAST, APART, PATHS, REPLICAS = 60, 10, 10, 1024, 4


def at_rest(omega, alpha, damping):
    """From the positional start, over the last iterations: q, that of the steps averaged by damping, and what is kept.

    x^{t+1} = (1 − β) x^t + β η^t: "q" is E[x²] and "step_q" E[η²], the latter with its standard error;
    "kept" is the correlation of weights ten iterations apart, 1 if they have come to rest.
    """
    found = np.array([_replica(ga.paper_model(omega), alpha, damping, seed) for seed in range(REPLICAS)])
    q, step_q, kept = found.mean(axis=0).tolist()
    error = float(found[:, 1].std(ddof=1) / np.sqrt(REPLICAS))
    return {"q": q, "step_q": step_q, "kept": kept, "step_q_error": error}


def _replica(model, alpha, damping, seed):
    rng = np.random.default_rng(seed)
    weights = build_weights(model, start_law(model, "positional"), ITERATIONS, PATHS, rng)
    paths = [MessagePaths(component, PATHS, ITERATIONS, rng) for component in model.components]
    before, told, squares = weights.covariances(), [], []
    for t in range(ITERATIONS):
        now = weights.overlaps()
        moments = sum_over_components(model.components, [path.advance(now, before) for path in paths])
        q_hats = [sum(path.share * block for path, block in zip(paths, blocks, strict=True))
                  for blocks in zip(*(path.q_hats(alpha) for path in paths), strict=True)]  # fmt: skip
        weights.step(conjugates(model, alpha, now, moments), q_hats, damping)
        after = weights.covariances()
        if t >= ITERATIONS - LAST:
            new, with_old, far = (after[k][0, 0, 0] for k in (-1, -2, -1 - APART))
            step = (new - 2 * (1 - damping) * with_old + (1 - damping) ** 2 * before[-1][0, 0, 0]) / damping**2
            told.append((new, step, far / np.sqrt(new * squares[t - APART])))
        squares.append(after[-1][0, 0, 0])
        before = after
    return np.mean(told, axis=0)
