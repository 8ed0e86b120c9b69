"""From a fixed point on a coarse rule to one of stated accuracy, with the errors of all that is reported."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core.spread import half_width
from gamp_attention.results import Overlaps, Status, stacked
from gamp_attention.state_evolution.fixed_points.free_energy import stationary_loss
from gamp_attention.state_evolution.fixed_points.newton import Root, newton, newton_step
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap
from gamp_attention.state_evolution.fixed_points.result import StateEvolutionHistory, StateEvolutionResult
from gamp_attention.state_evolution.fixed_points.stability import jump_shift, replicon, validity
from gamp_attention.state_evolution.fixed_points.test_error import predicted_test_error
from gamp_attention.state_evolution.rules.lines import WorkExceeded
from gamp_attention.state_evolution.rules.rule import work_of


@dataclass(frozen=True)
class RefinementSettings:
    """How far fixed points are solved, and what errors are believed."""

    residual: float = 0.5  # before one last Newton step, in units of the accuracy asked for
    step_error: float = 0.1  # of that step, in units of itself
    first_error: float = 1e-2  # to expect of the first rule
    shift_error: float = 0.5  # of what a rule gives, in units of its difference from the coarser one
    floor: float = 0.3  # least error of an entry in units of the worst, as entries can agree by accident
    unresolved: float = 1.0  # least error of an overlap in units of what the split rule leaves unresolved
    unresolved_loss: float = 0.3  # the same for a loss


REFINEMENT = RefinementSettings()


def refine(root: Root, rtol: float, max_work: float) -> tuple[StateEvolutionResult, OverlapMap]:
    """The fixed point on ever finer rules, until all errors are within rtol or the budget ends; and the finest map.

    Eq. :eq:`errors`.
    """
    F, J, x, n_iter = root.F, root.jacobian, root.overlaps, len(root.path) - 1
    found: tuple[StateEvolutionResult, OverlapMap] | None = None
    if F.rule.deterministic and F.rule.level == 0:  # errors are differences from a coarser rule
        coarse, F = F, F.on(F.rule.at_level(1))
    else:
        coarse = F.on(F.rule.at_level(F.rule.level - 1))
    while True:
        expected = REFINEMENT.first_error if found is None else found[0].relative_error
        enough = max(REFINEMENT.residual * rtol, REFINEMENT.step_error * expected, 1e-12)
        try:
            last = newton(F, x, enough, jacobian=J, packing=root.packing)
            J, n_iter = last.jacobian, n_iter + len(last.path) - 1
            found = _result(last, coarse, root.path, n_iter, rtol), F
        except WorkExceeded:
            if found is None:
                raise
            return found
        x, finer = found[0].overlaps, F.finer()
        if found[0].converged or finer is None or work_of(finer.rule, F.model) > max_work:
            return found
        coarse, F = F, finer


def _result(root: Root, coarse: OverlapMap, path: list[Overlaps], n_iter: int, rtol: float) -> StateEvolutionResult:
    """The solution by one last Newton step, with errors from a coarser map or from replicas.

    The path leads to the first rule's solution; n_iter counts all iterations.
    """
    F, packing, J, x = root.F, root.packing, root.jacobian, root.overlaps
    assert J is not None
    model, response, embedded = F.model, F.response, F.rule.deterministic
    image, samples = F.images(x, squares=True)
    if embedded:
        samples = [coarse.images(x)[0]]

    def spread(best: np.ndarray | float, values: list[Any]) -> np.ndarray:
        """Error of the best value, entry by entry, from the value on the coarser rule or from those of replicas."""
        away = np.asarray(values) - best
        return REFINEMENT.shift_error * np.abs(away).max(axis=0) if embedded else half_width(away)

    here, there = packing.pack(x), packing.pack(image.overlaps)
    best = here + newton_step(J, there - here)
    moves = [newton_step(J, packing.pack(sample.overlaps) - there) for sample in samples]
    unresolved = F.rule.tol if embedded else 0.0
    size = np.minimum(np.abs(best), 1)
    errors = spread(0.0, moves) + REFINEMENT.step_error * np.abs(best - here)
    errors = np.maximum(errors, REFINEMENT.unresolved * unresolved * size)
    errors = np.maximum(errors, REFINEMENT.floor * errors.max() * size)
    overlaps, error = packing.unpack(best), float(errors.max())
    residual = float(np.abs(there - here).max())
    solved = residual <= rtol and error <= rtol * (1 + 1e-9)

    train_loss = stationary_loss(F, x, image)
    # second order in the overlaps, as the free energy is stationary in them; and first order in the average
    train_error = spread(image.hats.moreau, [s.hats.moreau for s in samples]) + error**2 * train_loss
    test_error = float(predicted_test_error(model, overlaps, F.rule).mean())
    rule = (coarse if embedded else F).rule
    test_values = [predicted_test_error(model, packing.unpack(best + move), rule)[k] for k, move in enumerate(moves)]
    floor = REFINEMENT.unresolved_loss * unresolved  # of the errors of losses, relative
    V_hat, jump_mass = image.hats.V, image.hats.jump_mass
    rs = replicon(model, image.hats, response)
    shift = jump_shift(model, image.hats) if response == "stein" else np.nan
    consistent, words = validity(rs, float(jump_mass.sum() / V_hat.sum()), shift)
    return StateEvolutionResult(
        status=Status.CONVERGED if solved else Status.INACCURATE,
        n_iter=n_iter,
        residual=residual,
        history=StateEvolutionHistory(**stacked([*path, overlaps])),
        overlaps=overlaps,
        overlaps_error=Overlaps(**{k: np.abs(v) for k, v in packing.unpack(errors).arrays().items()}),
        relative_error=error,
        train_loss=train_loss,
        train_loss_error=max(float(train_error), floor * train_loss),
        test_error=test_error,
        test_error_error=max(float(spread(test_error, test_values)), floor * test_error),
        jump_mass=jump_mass,
        jump_mass_error=spread(jump_mass, [s.hats.jump_mass for s in samples]),
        V_hat=V_hat,
        replicon=rs,
        replicon_error=float(spread(rs, [replicon(model, s.hats, response) for s in samples])),
        stability=None,
        consistent=consistent,
        validity=words,
        response=response,
        rule=F.rule.name,
    )
