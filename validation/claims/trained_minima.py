"""Training that begins with descents ends no higher than training by message passing alone.

Method: 100 random problems with 3 to 10 tokens, one or two columns and more than two fields a sample (outputs of a
softmax layer, permuted tokens, sorted tokens; with and without noise), d from 30 to 60, α from 0.6 to 2.2. Two
processes train on each with default settings: this checkout, and the checkout in the environment variable BASE.

Criterion: every run ends at a minimum; with BASE, no training loss is higher by more than a relative 1e-6.
"""

import json
import os
import subprocess
import sys

import numpy as np

import gamp_attention as ga

PROBLEMS, EQUAL = 100, 1e-6


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


def train_all(count):
    """Print a line of JSON for each problem: whether the run ends at a minimum, and its training loss."""
    for number in range(count):
        data = build_problem(number)
        result = ga.train(data)
        print(json.dumps([bool(result.converged and result.is_minimum), result.train_loss]), flush=True)


def run_checkout(checkout, count):
    """Return the lines of `train_all` with the package of a checkout, on one thread."""
    variables = {"PYTHONPATH": checkout, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | variables, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def judge(verdict):
    """Train in both checkouts and compare."""
    from validation._tools.catalog import ROOT

    count, base = 8 if verdict.quick else PROBLEMS, os.environ.get("BASE")
    now = run_checkout(str(ROOT.parent), count)
    solved = sum(minimum for minimum, _ in now)
    verdict.check(solved == count, f"{solved} of {count} runs end at a minimum")
    if base is None:
        return {"losses": [loss for _, loss in now]}
    before = run_checkout(base, count)
    change = np.array([one[1] / other[1] - 1 for one, other in zip(now, before, strict=True)])
    higher, lower = int(np.sum(change > EQUAL)), int(np.sum(change < -EQUAL))
    verdict.check(higher == 0, f"{higher} runs end higher than in BASE, {lower} end lower")
    return {"losses": [loss for _, loss in now], "change": change.tolist()}


def main():
    if len(sys.argv) == 2 and sys.argv[1].isdigit():  # a process of `run_checkout`
        return train_all(int(sys.argv[1]))
    from validation._tools.report import run_claim

    return run_claim("trained_minima", __doc__, lambda quick: {}, judge)


if __name__ == "__main__":
    main()
