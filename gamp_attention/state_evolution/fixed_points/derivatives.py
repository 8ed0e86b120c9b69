"""What is known of the map next to a fixed point, and a solution at another α from it by a few Newton steps."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.units import Packing, is_feasible, relative_change
from gamp_attention.state_evolution.fixed_points.newton import BREAKDOWNS, BROYDEN, Root, newton, newton_step
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap
from gamp_attention.state_evolution.fixed_points.result import StateEvolutionResult
from gamp_attention.state_evolution.fixed_points.search import fixed_point
from gamp_attention.state_evolution.fixed_points.solve import START, is_lost, path_from, refined, where_lost
from gamp_attention.state_evolution.fixed_points.vanishing import family_size
from gamp_attention.state_evolution.rules.choice import first_rule


@dataclass(frozen=True)
class NearSettings:
    """When a solution at another α is believed to be the same branch."""

    range: float = 0.35  # change of α, relative, over which the tangent is followed
    max_steps: int = 4  # of Newton's
    moved: float = 0.1  # of an overlap by these, relative
    attracts: float = 0.9  # largest growth at the solution, as the Jacobian tells it
    kept: float = 0.6  # share of m and θ that is left
    share: float = 0.3  # of the accuracy asked for, to which the first rule is solved
    max_iter_given: int = 60  # damped steps from a neighbour; if it takes more, that is no help
    max_iter: int = 500  # from a name


NEAR = NearSettings()


@dataclass(frozen=True, eq=False)
class Derivatives:
    """Derivatives at a fixed point, in packed overlaps that are not in units.

    Attributes
    ----------
    alpha : sample complexity.
    names : the families that are free, as of `Packing`.
    jacobian : (k, k) of the map.
    slopes : (2, L, r, r, k) of V̂ in both forms.
    tangent : (k,) of the fixed point, in α.
    """

    alpha: float
    names: tuple[str, ...]
    jacobian: np.ndarray
    slopes: np.ndarray
    tangent: np.ndarray

    @classmethod
    def of(cls, root: Root, slopes: np.ndarray) -> Self:
        """Those at a root."""
        J, packing, F = root.jacobian, root.packing, root.F
        assert J is not None
        tangent, size = newton_step(J, F.slope_in_alpha(packing, root.overlaps)), packing.sizes
        return cls(F.alpha, packing.names, J * (size[:, None] / size), slopes / size, tangent * size)

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Self:
        """From plain data."""
        arrays = {name: np.array(found[name]) for name in ("jacobian", "slopes", "tangent")}
        return cls(float(found["alpha"]), tuple(found["names"]), **arrays)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        arrays = {name: getattr(self, name).tolist() for name in ("jacobian", "slopes", "tangent")}
        return {"alpha": self.alpha, "names": list(self.names), **arrays}


def root_near(F: OverlapMap, known: Overlaps, derivatives: Derivatives, tol: float) -> Root | None:
    """The fixed point of a map at another α than that of the one known, or None where it may be on another branch.

    Its tangent tells where to begin, its Jacobian is that of the first Newton step. That damped steps stay at the
    answer is told by the Jacobian alone, which has seen these steps.
    """
    packing, away = Packing.of(F.model, known), F.alpha - derivatives.alpha
    if packing.names != derivatives.names or abs(away) > NEAR.range * derivatives.alpha:
        return None
    start = packing.unpack(packing.pack(known) + away * derivatives.tangent / packing.sizes)
    if len(derivatives.tangent) != len(packing.sizes) or not is_feasible(F.model, start):
        return None
    packing = Packing.of(F.model, start)
    size = packing.sizes
    F.give_slopes(packing, derivatives.slopes * size)
    try:
        root = newton(F, start, tol, NEAR.max_steps, derivatives.jacobian * (size / size[:, None]), packing)
    except BREAKDOWNS:
        return None
    if not root.status.converged or relative_change(start, root.overlaps) > NEAR.moved:
        return None
    kept = all(family_size(root.overlaps, name) >= NEAR.kept * family_size(known, name) for name in ("m", "theta"))
    assert root.jacobian is not None
    return root if kept and np.linalg.eigvals(root.jacobian).real.max() < NEAR.attracts else None


def solve_near(
    model: Model, alpha: float, branch: str, near: Overlaps | None, rtol: float, derivatives: Derivatives | None = None
) -> tuple[StateEvolutionResult, Derivatives | None, bool]:
    """The fixed point on a named branch, derivatives there, and whether it was found from the overlaps of a neighbour.

    The neighbour is at another α or for another model; `derivatives` are those there, for the same model. Where that
    did not converge on the branch, or there is none, it is solved for by name.
    """
    F = OverlapMap(model, alpha, first_rule("auto", model, (0,)))
    if near is not None and is_feasible(model, near):  # they may be on the edge, as of columns that are zero
        enough = max(F.rule.rough, NEAR.share * rtol)
        root = None if derivatives is None else root_near(F, near, derivatives, enough)
        for start in ([root] if root is not None else []) + [None]:
            start = start or fixed_point(F, near, F.rule.rough, NEAR.max_iter_given, START.relax_given)
            found, last = refined(start, branch, rtol)
            if found.converged:
                return found, _derivatives(start, last), True
    path = path_from(F, branch, 0)
    root = fixed_point(F, path[-1], F.rule.rough, NEAR.max_iter, START.relax_named)
    found, last = refined(root, branch, rtol)
    if is_lost(found, branch):
        found = where_lost(found, F, branch, path)
    return found, _derivatives(root, last), False


def _derivatives(first: Root, last: Root | None) -> Derivatives | None:
    """Derivatives at a solution; those of V̂ are of the first rule."""
    return (
        None
        if last is None
        else Derivatives.of(last, first.F.response_slopes(first.packing, first.overlaps, BROYDEN.difference))
    )
