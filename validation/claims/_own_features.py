"""Random problems on features of twelve distributions, none of them the package's own."""

from typing import Any

import numpy as np

import gamp_attention as ga


def normal(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Independent normal entries."""
    return rng.normal(size=(n, d))


def autoregressive(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Neighbouring columns correlated, with a coefficient between .5 and .98."""
    c, z = rng.uniform(0.5, 0.98), rng.normal(size=(n, d))
    x = z.copy()
    for i in range(1, d):
        x[:, i] = c * x[:, i - 1] + np.sqrt(1 - c * c) * z[:, i]
    return x


def long_rows(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Row norms that are lognormal."""
    return rng.normal(size=(n, d)) * np.exp(rng.uniform(0.3, 1.0) * rng.normal(size=(n, 1)))


def factor(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """One to three common factors."""
    k = rng.integers(1, 4)
    return rng.normal(size=(n, d)) + rng.uniform(0.5, 3) * rng.normal(size=(n, k)) @ rng.normal(size=(k, d)) / np.sqrt(
        k
    )


def heavy(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Student's t entries with 2 to 5 degrees of freedom."""
    return rng.standard_t(rng.uniform(2, 5), size=(n, d))


def binary(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Rare zeros and ones, as of categories."""
    return (rng.random((n, d)) < rng.uniform(0.05, 0.5, size=d)).astype(float)


def low_rank(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """A few directions and a little noise."""
    k = max(1, d // 5)
    return rng.normal(size=(n, k)) @ rng.normal(size=(k, d)) / np.sqrt(k) + 0.1 * rng.normal(size=(n, d))


def unequal_columns(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Columns of lognormal sizes."""
    return rng.normal(size=(n, d)) * np.exp(rng.uniform(0.5, 1.5) * rng.normal(size=d))


def clusters(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Samples around a few centres."""
    k = rng.integers(2, 6)
    return rng.normal(size=(k, d))[rng.integers(0, k, n)] * rng.uniform(1, 3) + rng.normal(size=(n, d))


def positive(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Exponential entries, not centred."""
    return rng.exponential(size=(n, d))


def repeated(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Rows that occur several times."""
    return rng.normal(size=(n, d))[rng.integers(0, max(2, (2 * n) // 3), n)]


def waves(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Smooth functions of three hidden variables."""
    return np.cos(rng.normal(size=(n, 3)) @ rng.normal(size=(3, d)) * 1.5 + rng.uniform(0, 6.3, d))


FEATURES = (normal, autoregressive, long_rows, factor, heavy, binary, low_rank, unequal_columns, clusters, positive,
            repeated, waves)  # fmt: skip
FAMILIES = {  # how often
    "ridge": 4, "elastic net": 3, "lasso": 3, "logistic": 4, "logistic, elastic net": 2, "multinomial": 2,
    "phase retrieval": 2, "attention": 4, "attention, elastic net": 1,
}  # fmt: skip


def scales(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Now and then other scales of rows, columns and of all."""
    n, d = x.shape
    if rng.random() < 0.2:
        x = x * np.exp(0.7 * rng.normal(size=(n, 1)))
    if rng.random() < 0.2:
        x = x * np.exp(rng.normal(size=d))
    return x * 10 ** rng.uniform(-1, 1) if rng.random() < 0.3 else x


def softmax(s: np.ndarray) -> np.ndarray:
    """Of the last axis."""
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def size(x: np.ndarray) -> float:
    """Mean square of the entries."""
    return float(np.mean(x**2)) + 1e-300


def problem(rng: np.random.Generator) -> tuple[str, str, ga.Dataset]:
    """A family, a distribution of features, and a dataset of both."""
    names = list(FAMILIES)
    family = str(rng.choice(names, p=np.array(list(FAMILIES.values())) / sum(FAMILIES.values())))
    make = FEATURES[rng.integers(len(FEATURES))]
    d = int(rng.integers(5, 61))
    ratio = float(np.exp(rng.uniform(np.log(0.2), np.log(50))))
    return family, make.__name__, dataset(rng, family, make, d, ratio)


def dataset(rng: np.random.Generator, family: str, make: Any, d: int, ratio: float) -> ga.Dataset:
    """A dataset of a family and of features."""
    if family.startswith("attention"):
        return _attention(rng, family, make, d, min(ratio, 10.0))
    n = int(np.clip(ratio * d, 8, 1500))
    x = scales(rng, make(rng, n, d))
    w = rng.normal(size=d) * (rng.random(d) < rng.uniform(0.1, 1))
    h = x @ w
    h = h / (h.std() + 1e-300)
    noise = rng.uniform(0.1, 1.5) * rng.normal(size=n)
    strength = size(x) * 10 ** rng.uniform(-3, 0.7)
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
    x = scales(rng, make(rng, n * L, d)).reshape(n, L, d)
    x = x - x.mean(axis=0)
    x = x / np.sqrt(size(x))
    z = x @ rng.normal(size=(d, rank)) / np.sqrt(d)
    maps = z @ z.transpose(0, 2, 1)
    maps = maps / (maps.std() + 1e-300) * rng.uniform(0.5, 2.5)
    y = (softmax(maps) + rng.uniform(0, 0.1) * rng.normal(size=maps.shape)) @ x
    lam = 10 ** rng.uniform(-2.5, -0.5)
    penalty = ga.ElasticNet(lam, 0.1 * lam) if "elastic" in family else None
    return ga.Dataset(x, y, lam=lam, rank=rank, penalty=penalty)
