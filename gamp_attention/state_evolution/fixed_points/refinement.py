"""From a fixed point on a coarse rule to one of stated accuracy, with the errors of all that is reported."""

from dataclasses import dataclass

import numpy as np

from gamp_attention._core.spread import half_width
from gamp_attention.results import Overlaps, Status
from gamp_attention.state_evolution.equations.units import Packing
from gamp_attention.state_evolution.fixed_points.free_energy import stationary_loss
from gamp_attention.state_evolution.fixed_points.newton import Root, newton, newton_step
from gamp_attention.state_evolution.fixed_points.overlap_map import Image, OverlapMap
from gamp_attention.state_evolution.fixed_points.stability import replicon
from gamp_attention.state_evolution.fixed_points.test_error import predicted_test_error
from gamp_attention.state_evolution.rules.lines import WorkExceeded

SHARE = 0.5  # of the accuracy asked for, as the residual before one last Newton step
POLISH = 0.1  # error of that step, in its own units
UNREFINED = 1e-2  # error to expect of the coarsest rule
SAFETY = 0.5  # error of a level of the split rule, in units of its difference from the level before
FLOOR = 0.3  # of the worst relative error, that every entry's is believed to be at least
TRUST = 1.0  # least error of an overlap, and LOSS_TRUST of a loss, in units of what the split rule leaves unresolved
LOSS_TRUST = 0.3


@dataclass(frozen=True, eq=False)
class Solution:
    """A fixed point with errors, half-widths that hold in 95 % of cases.

    Attributes
    ----------
    F, at, image : the finest map, the overlaps where it was last evaluated, and what it gave there.
    overlaps, overlaps_error : the solution, `at` and one last Newton step.
    error : largest relative error of an overlap.
    """

    status: Status
    n_iter: int
    residual: float
    F: OverlapMap
    at: Overlaps
    image: Image
    overlaps: Overlaps
    overlaps_error: Overlaps
    error: float
    train_loss: float
    train_loss_error: float
    test_error: float
    test_error_error: float
    jump_mass_error: np.ndarray
    replicon: float
    replicon_error: float


class _Spread:
    """What the images on other rules or replicas say about the error of the one at hand."""

    def __init__(self, embedded: bool) -> None:
        self.embedded = embedded

    def of(self, best: np.ndarray | float, values: list[np.ndarray] | list[float] | np.ndarray) -> np.ndarray:
        """Error of the best value from values on the others, entry by entry."""
        away = np.asarray(values) - best
        return SAFETY * np.abs(away).max(axis=0) if self.embedded else half_width(away)


def refine(root: Root, rtol: float, max_work: float) -> Solution:
    """Refine the rule until the errors of all overlaps are within rtol, or the budget or the rule ends.

    Eq. :eq:`errors`.
    """
    F, packing, J, x = root.F, root.packing, root.jacobian, root.overlaps
    coarse, split = F, F.rule.deterministic
    if split and F.rule.level > 0:
        coarse = F.on(F.rule.at_level(F.rule.level - 1))
    n_iter, solution = 0, None
    while True:
        if solution is not None or (split and coarse is F):
            finer = F.finer()
            if finer is None or (finer.work > max_work and solution is not None):
                assert solution is not None
                return solution
            coarse, F = F, finer
        expected = UNREFINED if solution is None else solution.error
        try:
            step = newton(F, x, max(SHARE * rtol, POLISH * expected, 1e-12), 12, J, packing)
            J, n_iter = step.jacobian, n_iter + len(step.path) - 1
            solution = _solution(F, coarse, packing, J, step.overlaps, n_iter, rtol)
        except WorkExceeded:
            if solution is None:
                raise
            return solution
        x = solution.overlaps
        if solution.status.converged:
            return solution


def _solution(
    F: OverlapMap,
    coarse: OverlapMap,
    packing: Packing,
    J: np.ndarray | None,
    x: Overlaps,
    n_iter: int,
    rtol: float,
) -> Solution:
    assert J is not None
    embedded = F.rule.deterministic
    image, samples = F.images(x, squares=True)
    if embedded:
        samples = [coarse.images(x)[0]]
    spread = _Spread(embedded)

    here, there = packing.pack(x), packing.pack(image.overlaps)
    best = here + newton_step(J, there - here)
    moves = [newton_step(J, packing.pack(sample.overlaps) - there) for sample in samples]
    least = F.rule.tol if embedded else 0.0
    away = spread.of(0.0, moves) + POLISH * np.abs(best - here)
    errors = np.maximum(away, TRUST * least * np.minimum(np.abs(best), 1))
    # entries can agree by accident: none is believed much better than the worst of its solution
    errors = np.maximum(errors, FLOOR * errors.max() * np.minimum(np.abs(best), 1))
    overlaps = packing.unpack(best)
    test_values = predicted_test_error(F.model, overlaps, F.rule)
    if embedded:
        moved = [predicted_test_error(F.model, packing.unpack(best + move), coarse.rule)[0] for move in moves]
    else:
        moved = [
            predicted_test_error(F.model, packing.unpack(best + move), F.rule)[replica]
            for replica, move in enumerate(moves)
        ]
    model, variance = F.model, F.variance
    rs = replicon(model, image.hats, variance)
    error = float(errors.max())
    residual = float(np.abs(there - here).max())
    solved = residual <= max(rtol, 1e-10)
    train_loss = stationary_loss(F, x, image)
    # second order in the overlaps, as the free energy is stationary in them; and first order in the average
    train_error = spread.of(image.hats.moreau, [s.hats.moreau for s in samples]) + error**2 * train_loss
    test_value = float(test_values.mean())
    return Solution(
        status=Status.CONVERGED if solved and error <= rtol * (1 + 1e-9) else Status.INACCURATE,
        n_iter=n_iter,
        residual=residual,
        F=F,
        at=x,
        image=image,
        overlaps=overlaps,
        overlaps_error=Overlaps(**{k: np.abs(v) for k, v in packing.unpack(errors).arrays().items()}),
        error=error,
        train_loss=train_loss,
        train_loss_error=max(float(train_error), LOSS_TRUST * least * train_loss),
        test_error=test_value,
        test_error_error=max(float(spread.of(test_value, moved)), LOSS_TRUST * least * test_value),
        jump_mass_error=spread.of(image.hats.jump_mass, [s.hats.jump_mass for s in samples]),
        replicon=rs,
        replicon_error=float(spread.of(rs, [replicon(model, s.hats, variance) for s in samples])),
    )
