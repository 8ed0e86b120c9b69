"""What the explorer's page loads beside itself: stored results as a script, and plotly from its package."""

import json
import shutil
from pathlib import Path
from typing import Any

import plotly

from docs import _results

LINES = ("alpha_c", "alpha_l", "semantic_from", "semantic_stable_from", "positional_to", "positional_stable_to")


def data() -> dict[str, Any]:
    """Both branches at every point, the linear baseline, and the lines of the phase diagram."""
    cells, diagram = _results.stored("explorer"), _results.stored("phase_diagram")
    baseline = dict(zip(diagram["omegas"], diagram["baseline"], strict=True))
    names = ("alphas", "omegas", "damping", "semantic", "positional", "commit", "when")
    return {name: cells[name] for name in names} | {
        "baseline": [baseline[omega] for omega in cells["omegas"]],
        "probed": diagram["probed"],
        "lines": {name: diagram["lines"][name] for name in LINES},
    }


def write(folder: Path) -> Path:
    """Write both files into a folder, which is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data(), separators=(",", ":"))
    (folder / "explorer_data.js").write_text(f"window.EXPLORER = {text};\n", encoding="utf-8")
    shutil.copyfile(Path(plotly.__file__).parent / "package_data" / "plotly.min.js", folder / "plotly.min.js")
    return folder
