"""Fixed points near a known solution at another α.

Derivatives at the known solution (`Derivatives`) predict the new fixed point and its Jacobian, so that few averages are
needed. If the branch is not found from there, it is solved from its name.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.units import Packing, is_feasible, relative_change
from gamp_attention.theory.fixed_points.newton import BREAKDOWNS, Root, family_size, newton, newton_step
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.fixed_points.points import response_slopes
from gamp_attention.theory.fixed_points.refinement import StateEvolutionResult
from gamp_attention.theory.fixed_points.search import find_fixed_point
from gamp_attention.theory.fixed_points.solve import START, refine_on_branch, solve_branch
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.rules.choice import first_rule


@dataclass(frozen=True)
class NearSettings:
    """Limits within which a known solution at another α leads to the fixed point of its branch."""

    range: float = 0.35  # largest relative change of α over which the tangent predicts the overlaps
    newton_steps: int = 4  # maximum number of Newton steps
    move: float = 0.1  # largest relative change of an overlap by these steps
    margin: float = 0.1  # smallest distance of the eigenvalues of the Jacobian from 1
    family: float = 0.6  # smallest m and θ relative to the known solution
    accuracy: float = 0.3  # residual on the first rule in units of the requested accuracy
    # maximum number of damped steps from the known solution; beyond, the solution from a named start is faster
    max_iter: int = 60


NEAR = NearSettings()


@dataclass(frozen=True, eq=False)
class Derivatives:
    """Derivatives at a fixed point, in packed overlaps without units.

    Attributes
    ----------
    alpha : sample complexity of the fixed point.
    names : names of the free families, as in `Packing`.
    jacobian : (k, k) Jacobian of the map.
    slopes : (2, L, r, r, k) derivatives of V̂ in both forms.
    tangent : (k,) derivative of the fixed point in α.
    """

    alpha: float
    names: tuple[str, ...]
    jacobian: np.ndarray
    slopes: np.ndarray
    tangent: np.ndarray

    @classmethod
    def of(cls, root: Root, slopes: np.ndarray) -> Self:
        """Return the derivatives at a root; `slopes` are the derivatives of V̂ in its units."""
        J, packing, F = root.jacobian, root.packing, root.F
        assert J is not None
        tangent, size = newton_step(J, F.slope_in_alpha(packing, root.overlaps)), packing.sizes
        return cls(F.alpha, packing.names, J * (size[:, None] / size), slopes / size, tangent * size)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the derivatives stored by `to_dict`."""
        arrays = {name: np.array(values[name]) for name in ("jacobian", "slopes", "tangent")}
        return cls(float(values["alpha"]), tuple(values["names"]), **arrays)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as numbers and lists."""
        arrays = {name: getattr(self, name).tolist() for name in ("jacobian", "slopes", "tangent")}
        return {"alpha": self.alpha, "names": list(self.names), **arrays}


def root_near(F: OverlapMap, solution: Overlaps, derivatives: Derivatives, tol: float) -> Root | None:
    """Return the fixed point at the α of the map from a `solution` at another α; None if it may be elsewhere.

    The tangent predicts the new fixed point, and the stored Jacobian is used for the first Newton step. Stability under
    damped steps follows from the updated Jacobian only.
    """
    packing, distance = Packing.of(F.model, solution), F.alpha - derivatives.alpha
    if packing.names != derivatives.names or abs(distance) > NEAR.range * derivatives.alpha:
        return None
    start = packing.unpack(packing.pack(solution) + distance * derivatives.tangent / packing.sizes)
    if len(derivatives.tangent) != len(packing.sizes) or not is_feasible(F.model, start):
        return None
    packing = Packing.of(F.model, start)
    size = packing.sizes
    jacobian, slopes = derivatives.jacobian * (size / size[:, None]), derivatives.slopes * size
    try:
        root = newton(F, start, tol, NEAR.newton_steps, jacobian, packing, response_slopes=slopes)
    except BREAKDOWNS:
        return None
    if not root.status.converged or relative_change(start, root.overlaps) > NEAR.move:
        return None
    families_remain = all(
        family_size(root.overlaps, name) >= NEAR.family * family_size(solution, name) for name in ("m", "theta")
    )
    return root if families_remain and root.attracts(NEAR.margin) else None


def solve_near(
    model: Model, alpha: float, branch: str, near: Overlaps | None, rtol: float,
    derivatives: Derivatives | None = None
) -> tuple[StateEvolutionResult, Derivatives | None, bool]:  # fmt: skip
    """Solve on a named branch from a known solution; return the result, derivatives there, and whether that succeeded.

    The known solution `near` is at another α or of another model; `derivatives` belong to it and to the same model. If
    the branch is not found from there, or nothing is known, the branch is solved from its name.
    """
    F = OverlapMap(model, alpha, first_rule("auto", model, (0,)))
    if near is not None and is_feasible(model, near):  # infeasible, for example, if columns are zero
        tol = max(F.rule.initial_tolerance, NEAR.accuracy * rtol)
        predicted = None if derivatives is None else root_near(F, near, derivatives, tol)
        for root in [None] if predicted is None else [predicted, None]:
            root = root or find_fixed_point(F, near, F.rule.initial_tolerance, NEAR.max_iter, START.given_damped)
            result, last = refine_on_branch(root, branch, rtol)
            if result.converged:
                return result, _derivatives_at(last, root), True
    result, last, root = solve_branch(F, branch, rtol)
    return result, _derivatives_at(last, root), False


def _derivatives_at(last: Root | None, first: Root) -> Derivatives | None:
    """Return the derivatives at the root on the last rule, with the slopes of V̂ on the first; None without a root."""
    return None if last is None else Derivatives.of(last, response_slopes(first))
