"""Classes of tokens, by scikit-learn's Gaussian mixtures in the leading directions."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.extras import require_modules


@dataclass(frozen=True)
class ClassSettings:
    """How classes are looked for."""

    directions: int = 8  # leading ones of the covariance, at most
    most: int = 6  # classes of a token that "auto" tries
    starts: int = 3  # of each fit
    least: int = 10  # tokens of a class; smaller ones are joined to the class that is next


CLASSES = ClassSettings()


def token_classes(tokens: np.ndarray, classes: Any, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Patterns (C, L) of sources and the one (n,) of each sample, from tokens (n, L, d); None for one class a token.

    `classes` is the number of classes of each token, or "auto": the number of least BIC.
    """
    if isinstance(classes, str):
        check.choice("classes", classes, ("auto",))
        tried = range(1, CLASSES.most + 1)
    else:
        k = check.integer("classes", classes, low=1)
        if k == 1:
            return None
        tried = range(k, k + 1)
    n, L, _ = tokens.shape
    leading = _leading(tokens)
    labels, offset = np.empty((n, L), dtype=int), 0
    for l in range(L):
        found = _labels(tokens[:, l] @ leading, tried, seed)
        labels[:, l] = found + offset
        offset += found.max() + 1
    if offset == L:
        return None
    patterns, pattern = np.unique(labels, axis=0, return_inverse=True)
    return patterns, pattern.ravel()


def _leading(tokens: np.ndarray) -> np.ndarray:
    """Directions (d, k) of most variance beyond the edge that noise alone would have, two at least."""
    n, L, d = tokens.shape
    rows = (tokens - tokens.mean(axis=0)).reshape(n * L, d)
    size, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    edge = np.median(size) * (1 + np.sqrt(d / len(rows))) ** 2
    count = int(np.clip((size > edge).sum(), 2, CLASSES.directions))
    return vectors[:, -count:]


def _labels(points: np.ndarray, tried: range, seed: int) -> np.ndarray:
    """Classes (n,) of points (n, k), numbered from zero without gaps."""
    require_modules("classes", "sklearn")
    from sklearn.mixture import GaussianMixture

    fits = []
    for k in tried:
        if CLASSES.least * k > len(points):
            break
        fits.append(GaussianMixture(k, n_init=CLASSES.starts, random_state=seed).fit(points))
    if not fits:
        raise check.fail("classes", tried[0], f"at most {len(points) // CLASSES.least}, for {len(points)} samples")
    best = min(fits, key=lambda fit: fit.bic(points)) if len(tried) > 1 else fits[0]
    shares = best.predict_proba(points)
    while True:
        found = shares.argmax(axis=1)
        counts = np.bincount(found, minlength=shares.shape[1])
        small = np.flatnonzero((counts > 0) & (counts < CLASSES.least))
        if not len(small):
            return np.unique(found, return_inverse=True)[1]
        shares[:, small[0]] = 0.0
