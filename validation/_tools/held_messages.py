"""Replicas of the equations of message passing with current minima, with all numbers of the first token by name."""

from typing import Any

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.dynamics.compressed_descent import Compression
from gamp_attention.extensions.dynamics.current_minima import CurrentMinimaRun
from gamp_attention.theory.start_law import start_law


def follow_held_messages(
    model: ga.Model, alpha: float, init: str, beta: float, n_iter: int, hold_after: int, n_paths: int, seed: Any,
    tolerance: float = 1e-3,
) -> dict[str, Any]:  # fmt: skip
    """Return q, m, V of the first token and the training loss at times 0, …, n_iter, stored times, and the constant.

    The entry "constant" is the mean over the paths of the part of the loss that does not depend on the weights.

    Parameters
    ----------
    model : a model without mixtures, with the ridge penalty and no intercept.
    alpha, init, beta : sample complexity, start, and constant step β.
    n_iter, hold_after : number of iterations, and the iteration from which local minima are kept.
    n_paths, seed : number of sampled paths, and their seed.
    tolerance : relative standard deviation of a field that stored times may leave undetermined.
    """
    start, rng = start_law(model, init), np.random.default_rng(seed)
    run = CurrentMinimaRun(model, alpha, start, beta, hold_after, n_paths, rng, Compression(tolerance, doubling=False))
    for _ in range(n_iter + 1):
        run.advance()
    numbers = {name: [float(np.ravel(getattr(now, name))[0]) for now in run.states] for name in ("q", "m", "V")}
    return numbers | {
        "train_loss": [loss.train for loss in run.losses], "stored": run.stored, "constant": run.label_constant,
    }  # fmt: skip
