"""Methods of `trajectory` for the options of `minimize_risk`."""

from typing import Any

import gamp_attention as ga


def predicted_descent(how: dict[str, Any], compression: float | None = None) -> ga.GradientDescent:
    """Return the method that predicts `minimize_risk(**how)`."""
    steps = {name: value for name, value in how.items() if name != "method"}
    return ga.GradientDescent(**steps, nesterov=how["method"] == "nesterov", compression=compression)
