"""Random fixed points of state evolution, each solved finer than it will be asked for, to judge stated errors by.

The paper's model with random ω, α, A, σ from .2 to 2 and λ from 1e-3 to 1, both branches. A problem whose branch does
not exist, or is not found in a few iterations, is drawn again. The split rule goes on level by level, until the last
change of every number is a small part of the accuracy that the problem is for, or an average would take too many
proximal problems; how far the last level moved each number is kept beside it.
"""

from typing import Any

import numpy as np

import gamp_attention as ga
from gamp_attention._core.numerics import half_width
from gamp_attention.state_evolution.fixed_points.newton import newton, newton_step
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap
from gamp_attention.state_evolution.fixed_points.refinement import LOSSES, Point, point_of, response_slopes, units_of
from gamp_attention.state_evolution.fixed_points.stability import replicon
from gamp_attention.state_evolution.rules.lines import WorkExceeded
from gamp_attention.state_evolution.rules.sobol import SobolRule
from gamp_attention.state_evolution.rules.split import SplitRule

ASKED = (1e-2, 1e-3, 1e-4, 1e-5)
BRANCHES = ("semantic", "positional")
DRAWS = 40  # until a branch exists and is found
MAX_ITER = 16  # of the search for it
WORK = 1.2e6  # proximal problems of an average
FIRST, LAST = 1, 6  # levels of the reference
SETTLED = 0.05  # change from the level before, in units of the accuracy, that is fine enough
JUDGED = (1, 2, 3)  # levels of jump mass and replicon
POINTS, REPLICAS = 2**14, 8  # randomised points
CHECKED = 1e-3  # accuracy from which on randomised points can tell


def draw(rng: np.random.Generator, number: int) -> tuple[ga.Model, float, dict[str, Any]]:
    """A random model and α; two of three models are the same for tokens reversed."""
    a, b = rng.uniform(0.3, 0.95, 2)
    if number % 3:
        b = a
    numbers = {"omega": rng.uniform(0, 0.8), "sigma": rng.uniform(0.2, 2.0), "lam": 10 ** rng.uniform(-3, 0)}
    alpha = float(np.exp(rng.uniform(np.log(0.3), np.log(5))))
    return ga.paper_model(**numbers, A=((a, 1 - a), (1 - b, b))), alpha, numbers | {"A": [a, b]}


def problem(number: int, attempt: int) -> tuple[ga.Model, float, str, float, dict[str, Any]]:
    """Model, α, branch and accuracy of one draw, and the model's parameters."""
    model, alpha, numbers = draw(np.random.default_rng([77, number, attempt]), number)
    return model, alpha, BRANCHES[number % 2], ASKED[number // 2 % 4], numbers


def reference(number: int) -> dict[str, Any]:
    """The fixed point of one problem, how far its last level moved it, and what randomised points say of it."""
    ended = []
    for attempt in range(DRAWS):
        model, alpha, branch, rtol, numbers = problem(number, attempt)
        found = ga.solve_state_evolution(
            model, alpha, branch, rtol=1e-2, max_iter=MAX_ITER, max_work=WORK / 4, stability=False
        )
        ended.append(found.status.value)
        if found.status in (ga.Status.CONVERGED, ga.Status.INACCURATE):
            break
    else:
        raise RuntimeError(f"no fixed point in {DRAWS} draws: {ended}")
    row = {"attempt": attempt, "ended": ended, "branch": branch, "rtol": rtol, "alpha": alpha, **numbers}
    F, x, points = OverlapMap(model, alpha, SplitRule(FIRST, WORK)), found.overlaps, []
    root = newton(F, x, F.rule.initial_tolerance)
    slopes, packing, J = response_slopes(root), root.packing, root.jacobian
    for level in range(FIRST, LAST + 1):
        G = F.on(SplitRule(level, WORK))
        try:
            last = newton(G, x, max(SETTLED * rtol, 0.03 * G.rule.tol), jacobian=J, packing=packing)
            points.append(point_of(last, slopes, 1e-3 * rtol))
        except WorkExceeded:
            break
        x, J = points[-1].overlaps, last.jacobian
        if len(points) > 1 and (moved_by(points) <= SETTLED * rtol * units_of(points[-1])).all():
            break
    fine = points[-1]
    row |= {"level": fine.root.F.rule.level, "numbers": named(fine, fine.numbers)}
    row |= {"moved": named(fine, moved_by(points)), "judged": judged(F, fine)}
    return row | ({"beside": beside(number, fine, rtol)} if rtol >= CHECKED else {})


def moved_by(points: list[Point]) -> np.ndarray:
    """How far the last level moved each number; infinitely where there is one level alone."""
    if len(points) == 1:
        return np.full(len(points[0].numbers), np.inf)
    return np.abs(points[-1].numbers - points[-2].numbers) + points[-1].uncertain


def named(point: Point, numbers: np.ndarray) -> dict[str, list[float]]:
    """The vector of a point's numbers as overlaps, losses and V̂, flat; absolute values of overlaps that are signed."""
    k = len(point.best)
    overlaps = point.root.packing.unpack(numbers[:k]).arrays()
    found = {name: np.abs(values).ravel().tolist() for name, values in overlaps.items()}
    found |= {name: [float(value)] for name, value in zip(("train_loss", "test_error"), numbers[k:], strict=False)}
    return found | {"V_hat": numbers[k + LOSSES :].tolist()}


def judged(F: OverlapMap, fine: Point) -> dict[str, dict[str, list[float]]]:
    """Jump mass and replicon, and how far the last level moved them."""
    values: list[dict[str, np.ndarray]] = []
    for level in JUDGED:
        try:
            hats = F.on(SplitRule(level, WORK)).images(fine.overlaps, squares=True)[0].hats
        except WorkExceeded:
            break
        values.append(
            {"jump_mass": hats.jump_mass.ravel(), "replicon": np.array([replicon(F.model, hats, F.response)])}
        )
    if len(values) < 2:
        return {}
    return {
        kind: {"numbers": v.tolist(), "moved": np.abs(v - values[-2][kind]).tolist()} for kind, v in values[-1].items()
    }


def beside(number: int, fine: Point, rtol: float) -> list[float]:
    """How far randomised points, which know no panels or jumps, lead from the reference by one Newton step.

    In units of their own error and of the accuracy.
    """
    F, packing, J = fine.root.F, fine.root.packing, fine.root.jacobian
    assert J is not None
    here = packing.pack(fine.overlaps)
    _, samples = F.on(SobolRule(POINTS, REPLICAS, seed=(number,))).images(fine.overlaps)
    moves = np.array([newton_step(J, packing.pack(each.overlaps) - here) for each in samples])
    return (np.abs(moves.mean(axis=0)) / (half_width(moves) + rtol)).tolist()
