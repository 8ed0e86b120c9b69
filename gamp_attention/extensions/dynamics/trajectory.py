"""State evolution at all times: overlaps and losses of every iterate of message passing or of gradient descent.

A method (`MessagePassing`, `GradientDescent`, `SinglePass`, `Survey`) has its own parameters and its own equations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import generator, guard_call
from gamp_attention.extensions.dynamics.message_passing import MessagePassing
from gamp_attention.extensions.dynamics.replicas import Trajectory, TrajectoryTask
from gamp_attention.results import Overlaps
from gamp_attention.theory.models.model import Model, require_model


@guard_call
def trajectory(
    model: Model,
    alpha: float,
    init: str | Overlaps = "semantic",
    method: Any = None,
    n_iter: int = 20,
    *,
    n_paths: int | None = None,
    n_replicas: int = 8,
    seed: int | np.random.Generator = 0,
    progress: bool | None = None,
) -> Trajectory:
    """Predict overlaps and losses of message passing or of gradient descent at every iteration, in the limit d → ∞.

    Message passing, damped GAMP or survey propagation, follows the state evolution of Bayati and Montanari (2011) and
    Javanmard and Montanari (2013), eq. :eq:`iterates`; jumps in survey propagation have a memory. Gradient descent
    follows dynamical mean-field theory (Celentano, Cheng and Montanari, 2021), eq. :eq:`descent-fields`, which assumes
    nothing about the landscape. Its steps are the steps of `minimize_risk` on the asymptotic risk. Gradient descent on
    new samples follows eq. :eq:`online`, at a cost that is linear in the number of iterations.

    Parameters
    ----------
    model : the problem.
    alpha : sample complexity n/d, positive.
    init : "semantic", "positional", "random", or the Overlaps of the start, for weights that do not depend on the
        samples. Descents do not use V of the overlaps. If V is NaN, as in results of descents, message passing starts
        from the same V as `run_gamp`, and survey propagation from the V of surveys in `train`, as their U always is.
    method : `MessagePassing`, the default, `GradientDescent`, `SinglePass` or `Survey`, with its parameters.
    n_iter : number of iterations T.
    n_paths : number of sampled paths of each replica, even; for `SinglePass` number of points of the fields, best a
        power of two. By default 4096, and 32768 with `hold_after`. In mixtures each component has its fraction of them,
        or a minimum number if that is larger.
    n_replicas : number of independent replicas, at least 2; their spread gives the standard errors.
    seed : an integer or a numpy Generator.
    progress : whether a bar shows the progress of methods with a memory; by default on a terminal.

    Returns
    -------
    Trajectory
        Its `validity` states whether the proximal map jumps during the iterations. If it does, GAMP on data uses
        another response than the prediction.

    Raises
    ------
    TypeError : if an argument has a wrong type.
    ValueError : if an argument is out of its range, the method has no equations for the model, the number of paths is
        too small for the number of stored times, or fields overflow. Also if no weights have the overlaps of `init`: if
        θ or m exceed their bounds given q, or m cannot be the overlaps with these positions. Overlaps of weights at
        finite d that exceed the bounds by up to 20 % are reduced to the bound.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> path = ga.trajectory(ga.paper_model(), alpha=1.5, init="semantic", n_iter=5, n_paths=512)
    >>> path.q.shape, path.V_hat.shape
    ((6, 2, 1, 1), (5, 2, 1, 1))
    >>> descent = ga.trajectory(ga.paper_model(), 1.5, method=ga.GradientDescent(lr=1.0), n_iter=5, n_paths=512)
    >>> bool((np.diff(descent.train_loss) < 0).all())
    True
    >>> long = ga.trajectory(ga.paper_model(), 1.5, method=ga.GradientDescent(0.15), n_iter=300, n_paths=512)
    >>> len(long.q), len(long.stored) < 20
    (301, True)
    """
    method = MessagePassing() if method is None else method
    if isinstance(method, type) or not hasattr(method, "follow"):
        needs = "a MessagePassing(...), GradientDescent(...), SinglePass(...) or Survey(...)"
        raise check.fail("method", method, needs, TypeError)
    task = TrajectoryTask(
        model=require_model(model),
        alpha=check.real("alpha", alpha, low=0, strict=True),
        init=init,
        n_iter=check.integer("n_iter", n_iter, low=1),
        n_paths=None if n_paths is None else check.integer("n_paths", n_paths, low=64),
        n_replicas=check.integer("n_replicas", n_replicas, low=2),
        rng=generator(seed),
        progress=None if progress is None else check.flag("progress", progress),
    )
    return method.follow(task)
