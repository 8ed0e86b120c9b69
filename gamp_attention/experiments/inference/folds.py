"""Errors of samples left out in parts, each with a path of its own: where leave-one-out is not to be trusted."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gamp_attention._core.seeds import Stream, generator
from gamp_attention.experiments.inference.along import Along
from gamp_attention.experiments.inference.leave_one_out import sample_errors
from gamp_attention.experiments.inference.neighbours import at_rows


def fold_errors(
    along: Along, folds: int, known: dict[str, Any], finished: Callable[[], None]
) -> tuple[np.ndarray, np.ndarray]:
    """Errors (k, n) of samples by weights trained without their fold, and whether all runs of a value converged (k,).

    `known` has the weights of earlier calls by fold, and takes those of this one; `finished` is called after each run.
    """
    n = along.problems[0].n_samples
    order = generator(along.seed, Stream.FOLDS).permutation(n)
    errors, converged = np.full((len(along.values), n), np.nan), np.ones(len(along.values), bool)
    for fold, out in enumerate(map(np.sort, np.array_split(order, folds))):
        rows = np.setdiff1d(np.arange(n), out)
        for k, _, result in along.runs(known.setdefault(f"fold {fold}", {}), rows):
            aside = at_rows(along.problems[k], out)
            errors[k, out] = sample_errors(aside, aside.fields(result.Q))
            converged[k] &= result.converged
            finished()
    return errors, converged
