"""The picture of a path: errors along a hyperparameter, and the value that is taken."""

from pathlib import Path
from typing import Any

import numpy as np

from gamp_attention.experiments.figures import COLOURS, DARK, GREY, figure
from gamp_attention.experiments.inference.path_result import RegularizationPath


def plot_path(path: RegularizationPath, file: str | Path | None = None, overwrite: bool = False) -> Any:
    """Draw test errors with standard errors, those in training, and theory where it is known; returns the axes."""
    order = np.argsort(path.lam)
    lam = path.lam[order]
    with figure(file, 1, 1, (6, 4), overwrite) as axes:
        axis = axes[0, 0]
        mean, spread = path.test_error[order], path.test_error_error[order]
        label = "left out, in folds" if path.form == "folds" else "left out"
        axis.plot(lam, mean, "o-", ms=4, color=COLOURS["semantic"], label=label)
        axis.fill_between(lam, mean - spread, mean + spread, color=COLOURS["semantic"], alpha=0.2, lw=0)
        axis.plot(lam, path.in_training[order], color=GREY, label="in training")
        if np.isfinite(path.predicted).any():
            axis.plot(lam, path.predicted[order], "--", color=DARK, label="state evolution")
        doubted = [k for k, trusted in enumerate(path.trusted) if not trusted]
        if doubted:
            axis.plot(path.lam[doubted], path.test_error[doubted], "o", ms=4, mfc="white", color=COLOURS["semantic"],
                      label="not trusted")  # fmt: skip
        axis.axvline(path.lam[path.best], color=COLOURS["positional"], lw=1, label=f"least: {path.lam[path.best]:.3g}")
        if path.best_1se != path.best:
            strong = path.lam[path.best_1se]
            axis.axvline(strong, color=COLOURS["positional"], lw=1, ls=":", label=f"within 1 s.e.: {strong:.3g}")
        name = "λ" if path.parameter == "lam" else path.parameter
        axis.set(xlabel=name, ylabel=r"error $\epsilon_g$")
        if (lam > 0).all() and len(lam) > 2:
            axis.set_xscale("log")
        axis.legend(frameon=False, fontsize=9)
    return axes
