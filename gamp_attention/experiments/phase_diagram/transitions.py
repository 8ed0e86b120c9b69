"""Values of α at which the two branches have equal training loss, and at which attention beats the linear baseline."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from gamp_attention.baselines.linear import LinearBaseline
from gamp_attention.experiments.phase_diagram.boundary import Boundary
from gamp_attention.experiments.phase_diagram.scan import Scan
from gamp_attention.state_evolution.continuation.crossings import root_along
from gamp_attention.state_evolution.continuation.track import TrackPoint


def equal_loss(semantic: Scan, positional: Scan, tol: float) -> Boundary:
    """Return α_c, at which the training losses of the two branches are equal, with an error of at most tol if possible.

    Eq. :eq:`boundaries`.
    """

    def gap(a: TrackPoint, b: TrackPoint) -> float:
        return b.train_loss - a.train_loss

    values = _on_all((semantic, positional), gap)
    if not values:
        return Boundary.none("none: there is no α with both branches")
    brackets = _sign_changes(values)
    if not brackets:
        lower = "semantic" if values[-1][1] > 0 else "positional"
        return _none(f"the {lower} branch has the lower training loss wherever both exist", values)
    size = semantic.found[brackets[0][0]].train_loss
    value, error, _ = root_along((semantic.track, positional.track), gap, brackets[0], tol, size)
    boundary = Boundary.found(value, error, tol)
    others = f"; {len(brackets) - 1} more at larger α" if len(brackets) > 1 else ""
    return boundary._replace(note=boundary.note + others)


def beats_baseline(semantic: Scan, baseline: LinearBaseline, tol: float) -> Boundary:
    """Return α_l, beyond which the semantic branch has a lower test error than the baseline. Eq. :eq:`boundaries`."""
    values = _on_all((semantic,), lambda se: baseline.test_error - se.test_error)
    if not values:
        return Boundary.none("none: there is no semantic branch")
    brackets = _sign_changes(values)
    if not brackets:
        word = "beats" if values[-1][1] > 0 else "does not beat"
        return _none(f"attention {word} the linear baseline wherever the semantic branch exists", values)
    size = baseline.test_error
    value, error, slope = root_along((semantic.track,), lambda se: size - se.test_error, brackets[-1], tol, size)
    return Boundary.found(value, error + baseline.test_error_error / abs(slope), tol)


def _none(why: str, values: list[tuple[float, float]]) -> Boundary:
    return Boundary.none(f"none: {why}, from α = {values[0][0]:.4g} to {values[-1][0]:.4g}")


def _sign_changes(values: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return neighbouring α between which a function, given as pairs (α, f), changes its sign."""
    return [(a[0], b[0]) for a, b in pairwise(values) if a[1] * b[1] < 0]


def _on_all(scans: Sequence[Scan], difference: Callable[..., float]) -> list[tuple[float, float]]:
    """Return (α, difference) for every α at which at least one branch is known and all exist."""
    for alpha in sorted({alpha for scan in scans for alpha in scan.found}):
        if all(scan.spans(alpha) for scan in scans):
            for scan in scans:
                scan.at(alpha)
    alphas = sorted(set.intersection(*(set(scan.found) for scan in scans)))
    return [(alpha, difference(*(scan.found[alpha] for scan in scans))) for alpha in alphas]
