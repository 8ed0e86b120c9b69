"""Comparison of weights up to the changes that no risk depends on: signs, rotations within a head, orders of heads.

`align_weights` applies the change that takes weights nearest to other weights, and `agreement_of` returns the overlap
of two weights that remains after it.
"""

from typing import Any

import numpy as np

from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.penalties.standard import column_classes, layout_of, without_intercept


def align_weights(student: Any, penalty: Any, Q: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the weights Q (d, r) changed by the symmetry of the risk that takes them nearest to other weights (d, r).

    Columns are rotated within sets of equal penalties (`column_classes`), which for a set of one column is a change of
    its sign, and heads with equal penalties are exchanged. The best rotation is an orthogonal Procrustes problem, and
    the best order of the heads is a linear assignment, because the overlap is a sum over heads.
    """
    layout = layout_of(student, Q.shape[1])
    if layout is None and not student.rotations:
        return -Q if student.even and penalty.even and np.sum(Q * other) < 0 else Q
    classes = column_classes(penalty, student, Q.shape[1])
    if layout is None:
        return _rotate_columns(penalty, classes, Q, other)
    return _order_heads(layout, penalty, classes, Q, other)


def _rotate_columns(penalty: Any, classes: list[np.ndarray], Q: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return Q (d, r) with the best rotation of each set of columns."""
    if not penalty.even:
        return Q
    rotated = Q.copy()
    for columns in classes:
        u, _, v = np.linalg.svd(sum(Q[:, part].T @ other[:, part] for part in columns))
        for part in columns:
            rotated[:, part] = Q[:, part] @ (u @ v)
    return rotated


def _order_heads(layout: Any, penalty: Any, classes: list[np.ndarray], Q: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return Q (d, r) with the best order of the heads, and the best rotation of each set of columns of a head."""
    from scipy.optimize import linear_sum_assignment

    heads, body = range(layout.heads), without_intercept(penalty)
    columns = [np.concatenate([layout.scores(h).ravel(), layout.value_columns(h)]) for h in heads]
    blocks = [[block for block in classes if np.isin(block, columns[h]).all()] for h in heads]
    strengths = [[body.lams[a] for a in columns[h]] if body.by_column else None for h in heads]
    impossible = -float(np.linalg.norm(Q) * np.linalg.norm(other) * (1 + layout.heads)) - 1.0
    gains, moved = np.full((layout.heads, layout.heads), impossible), {}
    for h in heads:
        for k in heads:
            if layout.kinds[h] == layout.kinds[k] and strengths[h] == strengths[k]:
                there = np.zeros_like(Q)
                there[:, columns[k]] = Q[:, columns[h]]
                moved[h, k] = _rotate_columns(penalty, blocks[k], there, other)[:, columns[k]]
                gains[h, k] = np.sum(moved[h, k] * other[:, columns[k]])
    ordered = np.empty_like(Q)
    for h, k in zip(*linear_sum_assignment(gains, maximize=True), strict=True):
        ordered[:, columns[k]] = moved[h, k]
    return ordered


def agreement_of(data: Dataset, Q: np.ndarray, other: np.ndarray) -> float:
    """Return the overlap of two weights (d, r), in [0, 1], maximal over all changes that no risk depends on."""
    norms = np.linalg.norm(Q) * np.linalg.norm(other)
    if not (norms > 0 and np.isfinite(norms)):
        return float(np.array_equal(Q, other))
    cosine = float(np.sum(align_weights(data.student, data.penalty, Q, other) * other) / norms)
    return max(cosine, 0.0)
