"""Leave-one-out errors of random calls on data of twelve distributions agree with exact refits, if trusted.

Method: rows of independent, correlated, rescaled, heavy-tailed, binary, clustered, repeated and other features, in some
calls with other scales of rows and columns; 5 to 60 dimensions, 0.2 to 50 samples for each; squared, logistic,
multinomial and phase retrieval losses and attention of ranks 1 and 2, with ridge, elastic net and lasso, over four
decades of λ. Each call is `run_gamp` with its defaults, followed by `leave_one_out` with its defaults. The mean over up
to 60 random samples is compared with exact refits by numpy, scipy, scikit-learn or torch (`_exact_refits`).

Criterion: of all calls that converged to a minimum, fewer than 1 % of the estimates are trusted and wrong (off by more
than 10 %, whatever their stated error: both means are over the same samples, so that their difference has no sampling
error); fewer than 10 % are right and not trusted. The median processor time is at most the time of the training. (Page
"Test error from the training data" of the manual.)

With --stored, refits and the rows of convex losses are the stored rows; estimates of other losses are computed again,
with --blocks only in some blocks, and their other rows are left out. Calls whose training now ends in another minimum
(another estimate, by more than 0.1 %) are not compared, as the refits started from the minimum of the stored run.

Running time with --quick: about 50 s on one core, after compilation.
"""

import time
from typing import Any

import numpy as np

import gamp_attention as ga
from validation._tools.report import Verdict, folder, options, pool
from validation._tools.resumable import run_trials
from validation._tools.tables import markdown_table
from validation.claims._exact_refits import compute_exact_errors


def draw_normal(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Return independent normal entries."""
    return rng.normal(size=(n, d))


def draw_autoregressive(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Return rows whose neighboring columns are correlated, with a coefficient between 0.5 and 0.98."""
    c, z = rng.uniform(0.5, 0.98), rng.normal(size=(n, d))
    x = z.copy()
    for i in range(1, d):
        x[:, i] = c * x[:, i - 1] + np.sqrt(1 - c * c) * z[:, i]
    return x


def draw_long_rows(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Return rows with lognormal norms."""
    return rng.normal(size=(n, d)) * np.exp(rng.uniform(0.3, 1.0) * rng.normal(size=(n, 1)))


def draw_factor(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Return rows with one to three common factors."""
    k = rng.integers(1, 4)
    return rng.normal(size=(n, d)) + rng.uniform(0.5, 3) * rng.normal(size=(n, k)) @ rng.normal(size=(k, d)) / np.sqrt(
        k
    )


def draw_heavy(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Return Student's t entries with 2 to 5 degrees of freedom."""
    return rng.standard_t(rng.uniform(2, 5), size=(n, d))


def draw_binary(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Return rare zeros and ones, as of categorical data."""
    return (rng.random((n, d)) < rng.uniform(0.05, 0.5, size=d)).astype(float)


def draw_low_rank(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Return a few directions plus a little noise."""
    k = max(1, d // 5)
    return rng.normal(size=(n, k)) @ rng.normal(size=(k, d)) / np.sqrt(k) + 0.1 * rng.normal(size=(n, d))


def draw_unequal_columns(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Return columns of lognormal sizes."""
    return rng.normal(size=(n, d)) * np.exp(rng.uniform(0.5, 1.5) * rng.normal(size=d))


def draw_clusters(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Return samples around a few centers."""
    k = rng.integers(2, 6)
    return rng.normal(size=(k, d))[rng.integers(0, k, n)] * rng.uniform(1, 3) + rng.normal(size=(n, d))


def draw_positive(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Return exponential entries, not centered."""
    return rng.exponential(size=(n, d))


def draw_repeated(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Return rows that occur several times."""
    return rng.normal(size=(n, d))[rng.integers(0, max(2, (2 * n) // 3), n)]


def draw_waves(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Return smooth functions of three hidden variables."""
    return np.cos(rng.normal(size=(n, 3)) @ rng.normal(size=(3, d)) * 1.5 + rng.uniform(0, 6.3, d))


FEATURES = {
    "normal": draw_normal,
    "autoregressive": draw_autoregressive,
    "long_rows": draw_long_rows,
    "factor": draw_factor,
    "heavy": draw_heavy,
    "binary": draw_binary,
    "low_rank": draw_low_rank,
    "unequal_columns": draw_unequal_columns,
    "clusters": draw_clusters,
    "positive": draw_positive,
    "repeated": draw_repeated,
    "waves": draw_waves,
}
FAMILIES = {  # relative frequencies
    "ridge": 4, "elastic net": 3, "lasso": 3, "logistic": 4, "logistic, elastic net": 2, "multinomial": 2,
    "phase retrieval": 2, "attention": 4, "attention, elastic net": 1,
}  # fmt: skip


def rescale(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Return the rows with other scales of rows, columns or all entries, in some cases."""
    n, d = x.shape
    if rng.random() < 0.2:
        x = x * np.exp(0.7 * rng.normal(size=(n, 1)))
    if rng.random() < 0.2:
        x = x * np.exp(rng.normal(size=d))
    return x * 10 ** rng.uniform(-1, 1) if rng.random() < 0.3 else x


def softmax(s: np.ndarray) -> np.ndarray:
    """Return the softmax along the last axis."""
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def compute_mean_square(x: np.ndarray) -> float:
    """Return the mean square of the entries."""
    return float(np.mean(x**2)) + 1e-300


def draw_problem(rng: np.random.Generator) -> tuple[str, str, ga.Dataset]:
    """Return a family, a distribution of features, and a dataset of both."""
    names = list(FAMILIES)
    family = str(rng.choice(names, p=np.array(list(FAMILIES.values())) / sum(FAMILIES.values())))
    features = list(FEATURES)[rng.integers(len(FEATURES))]
    d = int(rng.integers(5, 61))
    ratio = float(np.exp(rng.uniform(np.log(0.2), np.log(50))))
    return family, features, build_dataset(rng, family, FEATURES[features], d, ratio)


def build_dataset(rng: np.random.Generator, family: str, make: Any, d: int, ratio: float) -> ga.Dataset:
    """Return a dataset of a family and of features."""
    if family.startswith("attention"):
        return _attention(rng, family, make, d, min(ratio, 10.0))
    n = int(np.clip(ratio * d, 8, 1500))
    x = rescale(rng, make(rng, n, d))
    w = rng.normal(size=d) * (rng.random(d) < rng.uniform(0.1, 1))
    h = x @ w
    h = h / (h.std() + 1e-300)
    noise = rng.uniform(0.1, 1.5) * rng.normal(size=n)
    strength = compute_mean_square(x) * 10 ** rng.uniform(-3, 0.7)
    if family == "multinomial":
        scores = x @ rng.normal(size=(d, 3))
        labels = np.argmax(scores / scores.std() + rng.gumbel(size=(n, 3)) * 0.7, axis=1)
        return ga.LabelledDataset(x, labels.astype(float), ga.MultinomialLoss(), lam=strength, rank=3)
    if family == "phase retrieval":
        labels = np.maximum(h**2 + 0.2 * noise, 0.0)
        return ga.LabelledDataset(x, labels, ga.PhaseRetrievalLoss(), lam=strength)
    binary_labels = family.startswith("logistic")
    y = np.where(h + noise > 0, 1.0, -1.0) if binary_labels else h + noise
    loss = ga.LogisticLoss() if binary_labels else ga.SquaredLoss()
    if family in ("ridge", "logistic"):
        return ga.LabelledDataset(x, y, loss, lam=strength)
    most = np.abs(x.T @ y).max() / np.sqrt(d) * (0.5 if binary_labels else 1.0)  # above it all weights are zero
    l1 = most * 10 ** rng.uniform(-2, -0.1)
    return ga.LabelledDataset(x, y, loss, penalty=ga.ElasticNet(0.0 if family == "lasso" else strength, l1))


def _attention(rng: np.random.Generator, family: str, make: Any, d: int, ratio: float) -> ga.Dataset:
    L, rank = int(rng.integers(2, 4)), 1 if rng.random() < 0.8 else 2
    n = int(np.clip(ratio * d, 10, 200))
    x = rescale(rng, make(rng, n * L, d)).reshape(n, L, d)
    x = x - x.mean(axis=0)
    x = x / np.sqrt(compute_mean_square(x))
    z = x @ rng.normal(size=(d, rank)) / np.sqrt(d)
    maps = z @ z.transpose(0, 2, 1)
    maps = maps / (maps.std() + 1e-300) * rng.uniform(0.5, 2.5)
    y = (softmax(maps) + rng.uniform(0, 0.1) * rng.normal(size=maps.shape)) @ x
    lam = 10 ** rng.uniform(-2.5, -0.5)
    penalty = ga.ElasticNet(lam, 0.1 * lam) if "elastic" in family else None
    return ga.Dataset(x, y, lam=lam, rank=rank, penalty=penalty)


BLOCK, BLOCKS, QUICK_BLOCK, QUICK_BLOCKS = 25, 80, 10, 3
REFITTED = {"attention": 10, "attention, elastic net": 6, "multinomial": 16}  # samples that are refitted; 60 of others
WRONG, DOUBTED = 0.01, 0.1
OFF, SLIGHT = 0.1, 0.05  # relative deviations of a wrong estimate, and of the last column of the table
SAME = 1e-3  # relative change of an estimate up to which a repeated call ended in the stored minimum
NOT_CONVEX = ("phase retrieval", "attention", "attention, elastic net")


def run_call(seed: int, number: int, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run one call and compare it with exact refits, which are taken from a stored row if it is given."""
    rng = np.random.default_rng([seed, number, 52])
    family, features, data = draw_problem(rng)
    began = time.process_time()
    gamp = ga.run_gamp(data, "spectral" if family.startswith(("attention", "phase")) else "random")
    trained = time.process_time()
    loo = ga.leave_one_out(data, gamp)
    ended = time.process_time()
    row = {
        "family": family, "features": features, "n": data.n_samples, "d": data.dim, "L": data.n_tokens,
        "rank": data.rank,
        "lam": data.lam, "minimum": bool(gamp.converged and gamp.is_minimum), "trusted": loo.trusted,
        "error": loo.test_error_error, "test_error": loo.test_error, "share": (ended - trained) / (trained - began),
        "message": loo.message, "seed": seed, "number": number,
    }  # fmt: skip
    if not row["minimum"]:
        return row | {"reached": np.nan, "estimate": np.nan, "exact": np.nan}
    samples = np.sort(rng.permutation(data.n_samples)[: REFITTED.get(family, 60)])
    if known is not None:
        reached = known["reached"] == 1  # otherwise the samples of the stored mean are unknown
        means = {"estimate": float(loo.errors[samples].mean()) if reached else known["estimate"]}
        return row | means | {"reached": known["reached"], "exact": known["exact"]}
    exact = compute_exact_errors(data, gamp.Q, samples)
    there = np.isfinite(exact)
    means = {name: float(np.mean(values[there])) if there.any() else np.nan
             for name, values in (("estimate", loo.errors[samples]), ("exact", exact))}  # fmt: skip
    return row | {"reached": float(there.mean())} | means


def repeat_block(seed: int, known: list[dict[str, Any]]) -> dict[str, Any]:
    """Repeat the estimates of some stored calls."""
    return {"calls": [run_call(seed, row["number"], row) for row in known]}


def run_block(seed: int, size: int) -> dict[str, Any]:
    """Run several calls."""
    return {"calls": [run_call(seed, number) for number in range(size)]}


def count_calls(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return the numbers of calls by outcome."""
    known = [row for row in rows if row["minimum"] and row["reached"] >= 0.5]
    apart = [abs(row["estimate"] - row["exact"]) for row in known]
    beyond = [a > SLIGHT * row["exact"] for a, row in zip(apart, known, strict=True)]
    wrong = [a > OFF * row["exact"] for a, row in zip(apart, known, strict=True)]
    trusted = [row["trusted"] for row in known]
    return {
        "calls": len(rows), "not a minimum": sum(not row["minimum"] for row in rows), "compared": len(known),
        "trusted, wrong": sum(t and w for t, w in zip(trusted, wrong, strict=True)),
        "not trusted, right": sum(not t and not w for t, w in zip(trusted, wrong, strict=True)),
        "not trusted, wrong": sum(not t and w for t, w in zip(trusted, wrong, strict=True)),
        "trusted, off by 5 %": sum(t and b for t, b in zip(trusted, beyond, strict=True)),
    }  # fmt: skip


def format_table(rows: list[dict[str, Any]]) -> str:
    """Return the counts for each family, each distribution, and all calls."""
    parts = [(name, [row for row in rows if row["family"] == name]) for name in FAMILIES]
    parts += [(name, [row for row in rows if row["features"] == name]) for name in FEATURES]
    parts = [(name.replace("_", " "), count_calls(mine)) for name, mine in (*parts, ("all", rows)) if mine]
    return markdown_table(["", *parts[-1][1]], [[name, *numbers.values()] for name, numbers in parts])


def main() -> None:
    args = options(
        __doc__ or "", workers=True, stored=True, blocks={"type": int, "help": "blocks of calls", "default": None}
    )
    verdict = Verdict("own_data_calls", args)
    number, size = (QUICK_BLOCKS, QUICK_BLOCK) if args.quick else (args.blocks or BLOCKS, BLOCK)
    with pool(args) as executor:
        if args.stored:
            rows = verdict.stored()["rows"]
            asked = [
                {"seed": seed, "known": [row for row in rows if row["seed"] == seed and row["family"] in NOT_CONVEX]}
                for seed in range(number)
            ]  # fmt: skip
            repeated = run_trials(folder(args, f"{verdict.name}_repeated"), repeat_block, asked, executor)
            rows = [row for row in rows if row["family"] not in NOT_CONVEX]
            count = len(rows) + sum(len(each["known"]) for each in asked)
            for wanted, each in zip(asked, repeated, strict=True):
                for before, row in zip(wanted["known"], each["calls"], strict=True):
                    is_same = abs(row["test_error"] / before["test_error"] - 1) <= SAME
                    rows.append(row if is_same else row | {"reached": 0.0})
        else:
            asked = [{"seed": seed, "size": size} for seed in range(number)]
            ended = run_trials(folder(args, verdict.name), run_block, asked, executor)
            rows, count = [row for each in ended for row in each["calls"]], number * size
    verdict.check(len(rows) == count, f"{len(rows)} of {count} calls ended")
    total = count_calls(rows)
    verdict.check(
        total["compared"] > 0.95 * (len(rows) - total["not a minimum"]), f"{total['compared']} calls have exact refits"
    )
    share = total["trusted, wrong"] / total["compared"]
    verdict.check(share < WRONG, f"{100 * share:.2g} % are trusted and wrong: {total['trusted, wrong']} calls")
    share = total["not trusted, right"] / total["compared"]
    verdict.check(
        share < DOUBTED, f"{100 * share:.2g} % are right and not trusted: {total['not trusted, right']} calls"
    )
    cost = float(np.median([row["share"] for row in rows]))
    verdict.check(cost < (4.0 if args.quick else 1.0), f"the median cost is {100 * cost:.2g} % of the training")
    verdict.write_table(format_table(rows))
    verdict.end({"rows": rows, "counts": total})


if __name__ == "__main__":
    main()
