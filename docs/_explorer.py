"""Files that the explorer's page loads: stored results as two scripts, of which the larger one is loaded last."""

import json
from pathlib import Path
from typing import Any

from docs import _results

BRANCHES = ("semantic", "positional")
UNITS = {"q": 1e-5, "own": 1e-5, "train_loss": 1e-7, "test_error": 1e-7}  # precision of drawn trajectories
LINES = ("alpha_c", "alpha_l", "semantic_from", "semantic_stable_from", "positional_to", "positional_stable_to")


def collect_data() -> dict[str, Any]:
    """Return both branches at every point, the linear baseline, and the lines of the phase diagram."""
    cells, diagram = _results.load_stored("explorer"), _results.load_stored("phase_diagram")
    baseline = dict(zip(diagram["omegas"], diagram["baseline"], strict=True))
    names = ("alphas", "omegas", "damping", "semantic", "positional", "commit", "when")
    return {name: cells[name] for name in names} | {
        "baseline": [baseline[omega] for omega in cells["omegas"]],
        "probed": diagram["probed"],
        "lines": {name: diagram["lines"][name] for name in LINES},
    }


def write(folder: Path) -> Path:
    """Write the results and the trajectories into a folder and return the folder.

    Numbers are rounded to 8 digits. Trajectories, of which only curves are drawn, are stored as whole numbers of
    `UNITS`: the first value, then the changes from each iteration to the next.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = collect_data()
    paths = {
        branch: {
            name: [[_encode(path, unit) for path in row] for row in data[branch]["path"][name]]
            for name, unit in UNITS.items()
        }
        for branch in BRANCHES
    }
    for branch in BRANCHES:
        data[branch] = {name: values for name, values in data[branch].items() if name != "path"}
    _write_script(folder / "explorer_data.js", "EXPLORER", _round(data, 8))
    _write_script(folder / "explorer_paths.js", "EXPLORER_PATHS", {"units": UNITS, **paths})
    return folder


def _write_script(path: Path, name: str, value: Any) -> None:
    path.write_text(f"window.{name} = {json.dumps(value, separators=(',', ':'))};\n", encoding="utf-8")


def _encode(path: list[float], unit: float) -> list[int]:
    """Return a trajectory as whole numbers of a unit: the first value and the changes."""
    values = [round(value / unit) for value in path]
    return [new - old for old, new in zip([0, *values], values, strict=False)]


def _round(value: Any, digits: int) -> Any:
    """Round all numbers of nested dicts and lists to significant digits."""
    if isinstance(value, dict):
        return {key: _round(each, digits) for key, each in value.items()}
    if isinstance(value, list):
        return [_round(each, digits) for each in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
