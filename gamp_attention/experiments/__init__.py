"""Experiments built from the solvers: comparisons, sweeps, phase diagrams, error estimates of fits, and figures."""

from gamp_attention.experiments.comparison import Branch, Comparison, Row, compare, deviation
from gamp_attention.experiments.figures import (
    ALPHA,
    COLORS,
    DARK,
    GREY,
    LABELS,
    LAMBDA,
    OMEGA,
    WORDS,
    draw_legend,
    figure,
    plot_comparison,
    plot_fit,
    plot_phase_diagram,
    plot_trajectory,
    require_matplotlib,
)
from gamp_attention.experiments.inference.debias import DebiasedWeights, debias
from gamp_attention.experiments.inference.leave_one_out import LeaveOneOut, leave_one_out
from gamp_attention.experiments.inference.paths import RegularizationPath, regularization_path
from gamp_attention.experiments.phase_diagram.phase_boundaries import PhaseBoundaries, phase_boundaries
from gamp_attention.experiments.phase_diagram.scan import Boundary
from gamp_attention.experiments.sweeps.scheduler import local_pool
from gamp_attention.experiments.sweeps.sweep import Sweep, sweep, to_dataset

__all__ = [
    "Boundary", "Comparison", "DebiasedWeights", "LeaveOneOut", "PhaseBoundaries", "RegularizationPath", "Sweep",
    "compare", "debias", "leave_one_out", "local_pool", "phase_boundaries", "plot_comparison", "plot_phase_diagram",
    "plot_trajectory", "regularization_path", "sweep", "to_dataset",
]  # fmt: skip
