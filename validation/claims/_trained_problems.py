"""Train on random problems with more than two fields a sample, with default settings; print a line of JSON for each.

Run by `trained_minima` in two checkouts; before `train` there was `run_gamp(n_starts=8, survey="auto", escape=True)`.
"""

import json
import sys
import time

import numpy as np

import gamp_attention as ga


def build_problem(number):
    """Return a dataset: outputs of a softmax layer, of permuted, or of sorted tokens, with and without noise."""
    rng = np.random.default_rng([7, number])
    kind, d = number % 4, int(rng.integers(30, 60))
    n = int(rng.uniform(0.6, 2.2) * d)
    if kind == 3:
        L = int(rng.choice([3, 5]))
        x = rng.normal(size=(n, L, d))
        noise, order = rng.normal(size=x.shape), rng.permutation(L)
        y, lam = (x[:, order] + 0.1 * noise, 0.05) if number % 8 == 3 else (np.sort(x, axis=1), 0.02)
        return ga.Dataset(x, y, lam=lam, rank=2)
    L, r = int(rng.choice([3, 4, 6, 10])), int(rng.choice([1, 2]))
    x, p = rng.normal(size=(n, L, d)), 0.3 * rng.normal(size=(L, d)) * (kind == 1)
    z = x @ rng.normal(size=(d, r)) / np.sqrt(d)
    scores = z @ z.transpose(0, 2, 1) * (1 + kind)
    T = np.exp(scores - scores.max(axis=-1, keepdims=True))
    y = T / T.sum(axis=-1, keepdims=True) @ x + rng.choice([0, 0.3]) * rng.normal(size=x.shape)
    return ga.Dataset(x, y, p, lam=float(rng.choice([0.01, 0.1])), rank=r)


def main(count):
    for number in range(count):
        data = build_problem(number)
        began = time.process_time()
        if hasattr(ga, "train"):
            result = ga.train(data)
        else:
            result = ga.run_gamp(data, n_starts=8, survey="auto", escape=True)
        row = {"problem": number, "L": data.n_tokens, "r": data.rank, "seconds": time.process_time() - began}
        row |= {"converged": result.converged, "minimum": result.is_minimum, "loss": result.train_loss}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
