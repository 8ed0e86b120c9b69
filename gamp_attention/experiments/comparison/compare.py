"""GAMP, state evolution and gradient descent on one instance of any model, beside the linear baseline."""

import time
from dataclasses import asdict
from typing import Any

from gamp_attention._core import check
from gamp_attention._core.extras import require_modules
from gamp_attention._core.overflow import quiet
from gamp_attention._core.progress import Progress
from gamp_attention.baselines.descent import require_device
from gamp_attention.baselines.linear import linear_baseline
from gamp_attention.damping import DAMPING
from gamp_attention.data.dataset import RISKS
from gamp_attention.data.sampling import checked_size, sample
from gamp_attention.experiments.comparison.branch import EFFORT, Plan, compare_branch
from gamp_attention.experiments.comparison.result import Branch, Comparison, Interrupted
from gamp_attention.models.model import Model, require_model
from gamp_attention.models.starts import STARTS
from gamp_attention.models.teachers import SoftmaxTeacher
from gamp_attention.state_evolution.fixed_points.solve import checked_rtol


@quiet
def compare(
    model: Model,
    d: int = 1000,
    alpha: float = 1.5,
    seed: int = 0,
    *,
    risk: str = "asymptotic",
    branches: Any = None,
    damping: float | None = None,
    rtol: float | None = None,
    lr: float | None = None,
    gd_steps: int | None = None,
    instances: int = 6,
    device: str = "cpu",
) -> Comparison:
    """Compare GAMP, state evolution and gradient descent on one instance, on the semantic and the positional branch.

    Parameters
    ----------
    model : the problem.
    d, alpha, seed : size, sample complexity and seed of the instance.
    risk : "asymptotic", whose values state evolution predicts up to O(1/√d), or "exact", of equation (3).
    branches : the starts; "semantic", and "positional" where there are positions, if not given.
    damping : the step β of GAMP and of its trajectory; 0.5 on the semantic and 0.3 on other branches if not given.
    rtol : accuracy of state evolution, see `solve_state_evolution`.
    lr : step of gradient descent; if not given, what the curvature at the start allows, to one digit.
    gd_steps : steps of plain gradient descent from the informed start; if not given, as many as make the paper's
        training time, 5000 steps of 0.15, if these are affordable.
    instances : further instances, whose deviations from their predictions show how much one fluctuates.
    device : torch device of the descents.

    Returns
    -------
    Comparison

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.
    ImportError : without torch; install gamp-attention[torch].
    Interrupted : by Ctrl-C after a branch was finished; a KeyboardInterrupt that holds it.

    Examples
    --------
    A small instance of a generalised linear model:

    >>> import gamp_attention as ga
    >>> model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.5), lam=0.1)
    >>> found = ga.compare(model, d=60, alpha=1.5, gd_steps=20, instances=2)
    >>> found.branches[0].name, found.branches[0].gamp.converged
    ('semantic', True)
    """
    d, alpha = checked_size(model, d, alpha)
    model = require_model(model)
    check.fits("d, alpha", round(alpha * d), model.n_tokens, d)
    check.choice("risk", risk, RISKS)
    if branches is None:
        branches = ("semantic", "positional") if model.coordinates.tau.any() else ("semantic",)
    if isinstance(branches, str):
        branches = (branches,)
    if not isinstance(branches, list | tuple) or not branches:
        raise check.fail("branches", branches, "a list of at least one start", TypeError)
    names = [check.choice("branches", name, STARTS) for name in branches]
    if len(set(names)) < len(names):
        raise check.fail("branches", branches, "starts that all differ")
    steps = {name: DAMPING.get(name, DAMPING["positional"]) for name in names}
    if damping is not None:
        steps = dict.fromkeys(names, check.real("damping", damping, low=0, high=1, strict=True))
    if lr is not None:
        check.real("lr", lr, low=0, strict=True)
    if rtol is not None:
        checked_rtol(rtol)
    if gd_steps is not None:
        check.integer("gd_steps", gd_steps, low=1)
    seed, instances = check.integer("seed", seed, low=0), check.integer("instances", instances, low=2)
    require_modules("compare", "torch")
    require_device(device)
    began = time.perf_counter()
    data = sample(model, d, alpha, seed)
    plan = Plan(alpha, seed, risk, rtol, lr, gd_steps, instances, device)
    with Progress("compare ", total=len(names) * EFFORT.solvers) as progress:
        found: list[Branch] = []
        try:
            for name in names:
                found.append(compare_branch(model, data, name, steps[name], plan, progress))
        except KeyboardInterrupt:
            if not found:
                raise
    settings = asdict(plan) | {"d": data.dim, "n": data.n_samples, "lam": model.lam, "damping": steps}
    del settings["device"], settings["rtol"]
    if isinstance(model.teacher, SoftmaxTeacher):
        settings["omega"] = model.teacher.omega
    base = linear_baseline(model) if model.attention else None
    result = Comparison(settings, found, base, time.perf_counter() - began)
    if len(found) < len(names):
        raise Interrupted(result, names[len(found)])
    return result
