"""Results as tables, and as plain data."""

import math
import platform
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gamp_attention.experiments.comparison.branch import Branch, Row
    from gamp_attention.experiments.comparison.compare import Comparison
    from gamp_attention.experiments.phase_diagram.phase_boundaries import PhaseBoundaries
    from gamp_attention.state_evolution.dynamics.trajectory import Trajectory
    from gamp_attention.state_evolution.fixed_points.result import StateEvolutionResult

COLUMNS = ("q", "m", "theta", "V", "train_loss", "test_error")
HEADS = ("q", "m_1", "θ", "V", "ε_t", "ε_g")
DIGITS = (4, 4, 4, 2, 6, 6)


def with_error(value: float, error: float, digits: int) -> str:
    """A number with its error in units of the last digit, as 0.0940(2); '-' where it is not known."""
    if not math.isfinite(value):
        return "-"
    if not error > 0:
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f}({max(1, math.ceil(error * 10**digits))})"


def _cells(row: "Row") -> list[str]:
    numbers = [
        with_error(row.values[key], row.errors.get(key, math.nan), digits)
        for key, digits in zip(COLUMNS, DIGITS, strict=True)
    ]
    gradient = "-" if math.isnan(row.gradient_norm) else f"{row.gradient_norm:.1e}"
    distance = "-" if math.isnan(row.distance) else f"{row.distance:.1e}"
    return [row.name, *numbers, gradient, distance, row.status, str(row.n_iter), f"{row.seconds:.1f}"]


def comparison_table(comparison: "Comparison") -> str:
    """The table of `gamp-attention compare`."""
    s = comparison.settings
    heads = ["", *HEADS, "‖∇R‖/λ√d", "‖ΔQ‖/√d", "status", "iterations", "seconds"]
    blocks = [(branch, [_cells(row) for row in branch.rows]) for branch in comparison.branches]
    body = [cells for _, rows in blocks for cells in rows]
    widths = [max(len(line[i]) for line in [heads, *body]) for i in range(len(heads))]

    def line(cells: list[str]) -> str:
        return "  ".join([cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))])

    out = [heading(s, "d", "n", "alpha", "omega", "lam") + f", seed {s['seed']}, {s['risk']} risk"]
    for branch, rows in blocks:
        out += ["", f"{branch.name} branch, β = {s['damping'][branch.name]:g}", line(heads), *map(line, rows)]
        out += _notes(branch)
    base = comparison.baseline
    if base is not None:
        error = with_error(base.test_error, base.test_error_error, 6)
        out += ["", f"linear baseline, d → ∞: ε_g = {error}, {base.status.value}"]
    out += [
        "Numbers in brackets are errors in the last digit: half-widths of 95 % where d → ∞, else standard errors. "
        f"{comparison.seconds:.0f} s in all.",
    ]
    return "\n".join(out)


def heading(settings: dict[str, Any], *names: str) -> str:
    """Sizes and parameters in a line, those that there are."""
    signs = {"alpha": "α", "omega": "ω", "lam": "λ"}
    return ", ".join(f"{signs.get(name, name)} = {settings[name]:g}" for name in names if name in settings)


def _notes(branch: "Branch") -> list[str]:
    gamp, fixed = branch.gamp, branch.fixed_point
    share = float(np.trace(fixed.jump_mass.mean(axis=0)) / np.trace(fixed.V_hat.mean(axis=0)))
    notes = [f"  GAMP {gamp.message}; {gamp.n_off_global} samples off their global proximal minimum."]
    if abs(share) > 0.03:
        notes.append(
            f"  The proximal map jumps: jump mass {share:+.0%} of V̂. State evolution is an approximation here, "
            "of a few per cent."
        )
    if branch.quasi_newton is None:
        return notes
    lower = "GAMP" if gamp.train_loss < branch.quasi_newton.train_loss else "L-BFGS"
    gap = abs(gamp.train_loss - branch.quasi_newton.train_loss)
    if gap > 1e-9:
        notes.append(f"  GAMP and L-BFGS end at different minima; the lower is {lower}'s, by {gap:.1e}.")
    return notes


def comparison_dict(comparison: "Comparison") -> dict[str, Any]:
    """Everything that `gamp-attention compare --json` writes."""
    import numba

    from gamp_attention._version import __version__

    base = comparison.baseline

    def branch_dict(branch: "Branch") -> dict[str, Any]:
        history, path = branch.gamp.history, branch.predicted
        return {
            "name": branch.name,
            "rows": [vars(row) for row in branch.rows],
            "n_off_global": branch.gamp.n_off_global,
            "n_near_jump": branch.gamp.n_near_jump,
            "message": branch.gamp.message,
            "jump_mass": branch.fixed_point.jump_mass,
            "history": history.arrays() | {"gradient_norm": history.gradient_norm, "train_loss": history.train_loss},
            "trajectory": path.arrays(),
            "trajectory_error": path.error.arrays(),
            "trajectory_jump_mass": path.jump_mass,
            "instances": branch.instances,
        }

    return plain(
        {
            "settings": comparison.settings,
            "branches": [branch_dict(branch) for branch in comparison.branches],
            "linear_baseline": base and vars(base) | {"status": base.status.value},
            "seconds": comparison.seconds,
            "converged": comparison.converged,
            "versions": {
                "gamp_attention": __version__,
                "numpy": np.__version__,
                "numba": numba.__version__,
                "python": platform.python_version(),
            },
        }
    )


def state_evolution_table(result: "StateEvolutionResult") -> str:
    """The table of `gamp-attention solve`."""
    from gamp_attention.results import scalars

    values, errors = scalars(result.overlaps), scalars(result.overlaps_error)
    lines = [f"{result.status.value} after {result.n_iter} iterations, residual {result.residual:.1e}"]
    for key, head, digits in zip(COLUMNS[:4], HEADS, DIGITS, strict=False):
        lines.append(f"  {head:4} {with_error(float(values[key]), abs(float(errors[key])), digits)}")
    lines.append(f"  ε_t  {with_error(result.train_loss, result.train_loss_error, 6)}")
    lines.append(f"  ε_g  {with_error(result.test_error, result.test_error_error, 6)}")
    if result.stability is not None:
        growth = ", ".join(f"{name} {value:.3g}" for name, value in result.stability.growth.items() if value == value)
        lines.append(f"  {'stable' if result.stability.stable else 'unstable'}; growth by sector: {growth}")
    lines.append(f"  replica symmetry: {result.validity}")
    return "\n".join(lines)


def trajectory_table(path: "Trajectory") -> str:
    """The table of `gamp-attention trajectory`."""
    from gamp_attention.results import scalars

    values, errors = scalars(path), scalars(path.error)
    lines = ["   t" + "".join(head.rjust(14) for head in HEADS[:4])]
    for t in range(len(path.q)):
        cells = [
            with_error(float(values[key][t]), abs(float(errors[key][t])), digits)
            for key, digits in zip(COLUMNS[:4], DIGITS, strict=False)
        ]
        lines.append(f"{t:4}" + "".join(cell.rjust(14) for cell in cells))
    return "\n".join(lines)


def boundaries_table(found: "PhaseBoundaries") -> str:
    """A line for each value: α_c, α_l and where the branches exist, then in words what there is not."""
    names = ("alpha_c", "alpha_l", "semantic_from", "semantic_stable_from", "positional_from", "positional_to")
    head = ("α_c", "α_l", "semantic from", "stable from", "positional from", "positional to")
    lines = [f"{found.parameter:<10}" + "".join(f"{word:>18}" for word in head) + "  status"]
    for k, value in enumerate(found.values):
        shown = f"{value:g}" if np.ndim(value) == 0 else f"no. {k + 1}"
        cells = [found.lines[name][k] for name in names]
        numbers = ["-" if np.isnan(b.value) else with_error(b.value, b.error, 6) for b in cells]
        lines.append(f"{shown:<10}" + "".join(f"{n:>18}" for n in numbers) + f"  {found.status[k].value}")
        lines += [f"    {word}: {b.note}" for word, b in zip(head, cells, strict=True) if np.isnan(b.value)]
        lines += [f"    {found.messages[k]}"] if found.messages[k] else []
    return "\n".join(lines)


def plain(value: Any) -> Any:
    """Arrays to lists, NaN and infinities to None: what JSON can hold."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
