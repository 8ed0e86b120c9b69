"""State evolution of losses of several fields with kinks is accurate to 1e-4 within seconds.

Method: absolute, quantile, insensitive and Huber errors of two columns or tokens, also for ReLU labels, the larger of
two absolute errors, the hinge of a sum of columns for signs, two losses of three classes drawn from a softmax, and the
hinge of the class of the largest field, at α = 3, λ = 0.3. Each is solved with rtol = 1e-3 and 1e-4 and different
random points, after a solution that compiles its code; the table has the seconds of both.

Criterion: all solutions converge; 95 % of the overlaps of both agree within their stated errors, and all within twice
these errors; and errors of two columns have the overlaps of one column, which are averages over panels. (Section
"Losses with kinks" of the manual.)
"""

import time
from typing import NamedTuple

import numpy as np

import gamp_attention as ga
from validation._tools.report import run_claim
from validation._tools.tables import markdown_table

ALPHA, LAM, NOISE, NAMES = 3.0, 0.3, 0.5, ("q", "theta", "V")
FIRST, RTOLS = 2e-2, (1e-3, 1e-4)


@ga.register_loss
class Errors(NamedTuple):
    """The sum over the fields of max(over·x, −under·x) − width for x = p − z, or zero if this is negative."""

    over: float
    under: float
    width: float = 0.0
    convex = True

    def value(self, p, z):
        """Return the loss of a sample."""
        total = 0.0
        for k in range(p.size):
            x = p[k] - z[k // z.shape[1], k % z.shape[1]]
            total += max(max(self.over * x, -self.under * x) - self.width, 0.0)
        return total


@ga.register_loss
class HuberErrors(NamedTuple):
    """The sum over the columns of x²/2 for |x| < .5, and |x|/2 − 1/8 beyond, x = p − z."""

    convex = True

    def value(self, p, z):
        """Return the loss of a sample."""
        total = 0.0
        for k in range(p.size):
            x = abs(p[k] - z[0, k])
            total += 0.5 * x * x if x < 0.5 else 0.5 * x - 0.125
        return total


@ga.register_loss
class LargestError(NamedTuple):
    """The larger of the absolute errors of two columns."""

    convex = True

    def value(self, p, z):
        """Return the loss of a sample."""
        return max(abs(p[0] - z[0, 0]), abs(p[1] - z[0, 1]))


@ga.register_loss
class ClassHinge(NamedTuple):
    """max_k(z_k + [k ≠ y]) − z_y for the class y."""

    convex = True

    def value(self, p, z):
        """Return the loss of a sample."""
        largest = z[0, int(p[0])]
        for k in range(z.shape[1]):
            largest = max(largest, z[0, k] + (1.0 if k != int(p[0]) else 0.0))
        return largest - z[0, int(p[0])]


@ga.register_loss
class HingeOfSum(NamedTuple):
    """max(0, 1 − p (z_1 + z_2)) for the label p = ±1."""

    convex = True

    def value(self, p, z):
        """Return the loss of a sample."""
        return max(0.0, 1.0 - p[0] * (z[0, 0] + z[0, 1]))


class LargestField(ga.ClassLabels):
    """The number of the largest field."""

    def outcomes(self, u):
        """Return all labels and their probabilities, 0 or 1."""
        return np.arange(u.shape[2])[:, None], np.eye(u.shape[2])[self(u, None)[:, 0].astype(int)]

    def __call__(self, u, noise):
        """Return the labels."""
        return np.argmax(u[:, 0], axis=1)[:, None].astype(float)


class RectifiedLabels(NamedTuple):
    """max(u_k, 0), with noise of standard deviation `NOISE`, of the first token and all columns k."""

    even = False

    def n_noise(self, n_tokens, rank):
        """Return the number of noise variables."""
        return rank

    def __call__(self, u, noise):
        """Return the labels."""
        return np.maximum(u[:, 0], 0.0) + NOISE * noise


LOSSES = {  # loss, and whether its numbers for one column are known
    "absolute errors": (Errors(1.0, 1.0), True),
    "absolute errors, ReLU labels": (Errors(1.0, 1.0), True),
    "quantile .9": (Errors(0.9, 0.1), True),
    "insensitive errors": (Errors(1.0, 1.0, 0.3), True),
    "Huber errors": (HuberErrors(), True),
    "larger error": (LargestError(), False),
    "absolute errors of two tokens": (Errors(1.0, 1.0), False),
    "hinge of a sum, signs": (HingeOfSum(), False),
    "hinge of three classes": (ClassHinge(), False),
    "hinge of three classes, largest field": (ClassHinge(), False),
    "multinomial, three classes": (ga.MultinomialLoss(), False),
}


def build_model(name, columns):
    loss, _ = LOSSES[name]
    if "classes" in name:
        return ga.glm_model(loss, LargestField() if "largest" in name else ga.ClassLabels(), rank=3, lam=LAM)
    if "signs" in name:
        return ga.glm_model(loss, ga.LogisticLabels(0.0), rank=2, teacher_rank=1, lam=LAM)
    sizes = {"n_tokens": 2} if "tokens" in name else {"rank": columns}
    labels = RectifiedLabels() if "ReLU" in name else ga.LinearLabels(NOISE)
    return ga.glm_model(loss, labels, lam=LAM, **sizes)


def measure_solutions(name):
    """Return the numbers of both solutions and of one column, and the times."""
    model, rows = build_model(name, 2), []
    ga.solve_state_evolution(model, ALPHA, rtol=FIRST)
    for seed, rtol in enumerate(RTOLS):
        began = time.perf_counter()
        se = ga.solve_state_evolution(model, ALPHA, rtol=rtol, seed=seed)
        seconds = time.perf_counter() - began
        values, errors = (
            np.concatenate([np.ravel(getattr(each, key)) for key in NAMES]).tolist()
            for each in (se.overlaps, se.overlaps_error)
        )
        rows.append({"status": se.status.value, "seconds": seconds, "values": values, "errors": errors})
    one = None
    if LOSSES[name][1]:
        se = ga.solve_state_evolution(build_model(name, 1), ALPHA)
        one = [float(getattr(se.overlaps, key).item()) for key in NAMES]
    return {"solutions": rows, "one": one}


def plan(quick):
    return {measure_solutions: [{"name": name} for name in list(LOSSES)[: 2 if quick else None]]}


def judge(verdict, rows):
    table, changes = [], []
    for row in rows:
        name, (coarse, fine) = row["name"], row["solutions"]
        verdict.check(coarse["status"] == fine["status"] == "converged", f"{name}: both solutions converge")
        changes.append(np.abs(np.subtract(coarse["values"], fine["values"])) / np.add(coarse["errors"], fine["errors"]))
        if row["one"] is not None:
            values, errors = (np.reshape(fine[key], (3, 2, 2))[:, range(2), range(2)] for key in ("values", "errors"))
            other = np.abs(values - np.array(row["one"])[:, None]) / (errors + 1e-4)
            verdict.check(other.max() <= 1, f"{name}: one column differs by {other.max():.2f} of the errors")
        table.append([name, *(f"{each['seconds']:.2g}" for each in (coarse, fine))])
    change = np.concatenate(changes)
    inside = np.mean(change <= 1)
    verdict.check(inside >= 0.95, f"{inside:.1%} of the overlaps agree within both errors, at least 95 %")
    verdict.check(change.max() <= 2, f"the largest difference is {change.max():.2f} of the errors, at most 2")
    verdict.write_table(markdown_table(["loss", *(f"seconds, rtol = {rtol:g}" for rtol in RTOLS)], table))
    return {"rows": rows}


def main():
    run_claim("several_fields", __doc__, plan, judge)


if __name__ == "__main__":
    main()
