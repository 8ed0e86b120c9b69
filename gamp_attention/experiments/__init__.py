"""Comparisons, sweeps, phase diagrams and what a fit is worth, made of the rooms below, and their pictures."""

from gamp_attention.experiments.comparison.compare import compare
from gamp_attention.experiments.comparison.result import Comparison
from gamp_attention.experiments.figures import plot_comparison, plot_phase_diagram, plot_trajectory
from gamp_attention.experiments.inference.debias import DebiasedWeights, debias
from gamp_attention.experiments.inference.leave_one_out import leave_one_out
from gamp_attention.experiments.inference.path import regularization_path
from gamp_attention.experiments.inference.path_result import RegularizationPath
from gamp_attention.experiments.inference.result import LeaveOneOut
from gamp_attention.experiments.phase_diagram.boundary import Boundary
from gamp_attention.experiments.phase_diagram.phase_boundaries import PhaseBoundaries, phase_boundaries
from gamp_attention.experiments.sweeps.scheduler import local_pool
from gamp_attention.experiments.sweeps.sweep import Sweep, sweep
from gamp_attention.experiments.sweeps.to_xarray import to_dataset

__all__ = [
    "Boundary", "Comparison", "DebiasedWeights", "LeaveOneOut", "PhaseBoundaries", "RegularizationPath", "Sweep",
    "compare", "debias", "leave_one_out", "local_pool", "phase_boundaries", "plot_comparison", "plot_phase_diagram",
    "plot_trajectory", "regularization_path", "sweep", "to_dataset",
]  # fmt: skip
