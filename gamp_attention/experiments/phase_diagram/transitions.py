"""Where the two branches have equal training loss, and where attention beats the linear baseline."""

from collections.abc import Callable, Sequence

import numpy as np

from gamp_attention.baselines.linear import LinearBaseline
from gamp_attention.experiments.phase_diagram.boundary import Boundary, crossings_of
from gamp_attention.experiments.phase_diagram.scan import Scan
from gamp_attention.state_evolution.continuation.crossings import Measure, root_on_rules
from gamp_attention.state_evolution.rules.rule import Rule

Difference = Callable[..., float]  # of a number measured at a fixed point of each branch


def equal_loss(semantic: Scan, positional: Scan, tol: float) -> Boundary:
    """α_c, where the training losses of the two branches are equal; tol is the error of α asked for.

    Eq. :eq:`boundaries`.
    """
    values = _on_all((semantic, positional), lambda a, b: b.train_loss - a.train_loss)
    if not values:
        return Boundary.none("none: there is no α with both branches")
    brackets = crossings_of(values)
    if not brackets:
        lower = "semantic" if values[-1][1] > 0 else "positional"
        return Boundary.none(
            f"none: the {lower} branch has the lower training loss wherever both exist, "
            f"from α = {values[0][0]:.4g} to {values[-1][0]:.4g}"
        )
    size = semantic.found[brackets[0][0]].train_loss
    found, _ = _root((semantic, positional), lambda a, b: b.train_loss - a.train_loss, brackets[0], tol, size)
    others = f"; {len(brackets) - 1} more at larger α" if len(brackets) > 1 else ""
    return found._replace(note=found.note + others)


def beats_baseline(semantic: Scan, baseline: LinearBaseline, tol: float) -> Boundary:
    """α_l, beyond which the semantic branch has a lower test error than the linear baseline. Eq. :eq:`boundaries`."""
    values = _on_all((semantic,), lambda se: baseline.test_error - se.test_error)
    if not values:
        return Boundary.none("none: there is no semantic branch")
    brackets = crossings_of(values)
    if not brackets:
        word = "beats" if values[-1][1] > 0 else "does not beat"
        return Boundary.none(
            f"none: attention {word} the linear baseline wherever the semantic branch exists, "
            f"from α = {values[0][0]:.4g} to {values[-1][0]:.4g}"
        )
    size = baseline.test_error
    found, slope = _root((semantic,), lambda se: size - se.test_error, brackets[-1], tol, size)
    return Boundary.found(found.value, found.error + baseline.test_error_error / abs(slope), tol)


def _on_all(scans: Sequence[Scan], difference: Difference) -> list[tuple[float, float]]:
    """(α, difference) for every α at which one branch is known and all exist."""
    for alpha in sorted({alpha for scan in scans for alpha in scan.found}):
        if all(scan.spans(alpha) for scan in scans):
            for scan in scans:
                scan.at(alpha)
    alphas = sorted(set.intersection(*(set(scan.found) for scan in scans)))
    return [(alpha, difference(*(scan.found[alpha] for scan in scans))) for alpha in alphas]


def _root(
    scans: Sequence[Scan], difference: Difference, ends: tuple[float, float], tol: float, size: float
) -> tuple[Boundary, float]:
    """Where a difference of numbers of a given size is zero, and its slope there."""
    tracks = [scan.track(tol) for scan in scans]

    def measure(rule: Rule) -> Measure:
        here = [track.on(rule) for track in tracks]

        def at(alpha: float) -> float:
            found = [track(alpha) for track in here]
            return np.nan if None in found else difference(*found)

        return at

    value, error, slope = root_on_rules(measure, tracks[0].coarsest, ends, tol, size)
    return Boundary.found(value, error, tol), slope
