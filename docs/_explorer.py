"""Files that the explorer's page loads: stored results as a script, and plotly from its package."""

import json
import shutil
from pathlib import Path
from typing import Any

import plotly

from docs import _results

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
    """Write both files into a folder and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(collect_data(), separators=(",", ":"))
    (folder / "explorer_data.js").write_text(f"window.EXPLORER = {text};\n", encoding="utf-8")
    shutil.copyfile(Path(plotly.__file__).parent / "package_data" / "plotly.min.js", folder / "plotly.min.js")
    return folder
