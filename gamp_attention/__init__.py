"""Message passing on attention: GAMP, state evolution and gradient descent for one dot-product attention layer."""

from typing import TYPE_CHECKING

from gamp_attention._version import __version__
from gamp_attention.baselines.descent import DescentResult, minimize_risk
from gamp_attention.baselines.linear import LinearBaseline, linear_baseline
from gamp_attention.baselines.linear_fit import LinearFit, fit_linear_baseline
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.distributed import DistributedDataset
from gamp_attention.data.labelled import LabelledDataset
from gamp_attention.data.risk import gradient, train_loss
from gamp_attention.data.sampling import sample
from gamp_attention.denoisers.output import Denoised, denoise
from gamp_attention.experiments.comparison.compare import compare
from gamp_attention.experiments.comparison.result import Comparison
from gamp_attention.experiments.figures import plot_comparison, plot_phase_diagram, plot_trajectory
from gamp_attention.experiments.phase_diagram.boundary import Boundary
from gamp_attention.experiments.phase_diagram.phase_boundaries import PhaseBoundaries, phase_boundaries
from gamp_attention.experiments.sweeps.scheduler import local_pool
from gamp_attention.experiments.sweeps.sweep import Sweep, sweep
from gamp_attention.experiments.sweeps.to_xarray import to_dataset
from gamp_attention.gamp.run import GampResult, run_gamp
from gamp_attention.gamp.step import GampState, gamp_step, initial_state
from gamp_attention.losses.attention import AttentionLoss
from gamp_attention.losses.dot_product import DotProductAttention
from gamp_attention.losses.glm import LogisticLoss, MultinomialLoss, PhaseRetrievalLoss, SquaredLoss
from gamp_attention.losses.registration import register_attention, register_loss
from gamp_attention.models.attention import attention_model, paper_model
from gamp_attention.models.coordinate_classes import (
    CoordinateClasses,
    power_law_spectrum,
    sign_positions,
    sparse_teacher,
    subset_positions,
)
from gamp_attention.models.coordinates import CoordinateLaw, coordinate_law
from gamp_attention.models.glm import GLMModel, glm_model
from gamp_attention.models.labels import ClassLabels, IntensityLabels, LinearLabels, LogisticLabels
from gamp_attention.models.mixtures import MixtureModel, mixture_model
from gamp_attention.models.model import Model
from gamp_attention.models.sampled_coordinates import SampledLaw, law_from_samples
from gamp_attention.models.teachers import SoftmaxTeacher
from gamp_attention.models.token_classes import ClassLaw
from gamp_attention.penalties.base import register_penalty
from gamp_attention.penalties.standard import ElasticNet, Ridge
from gamp_attention.results import ConvergenceError, History, Overlaps, Status
from gamp_attention.state_evolution.continuation.catalogue import Branches, branches
from gamp_attention.state_evolution.continuation.follow import BranchPath, continue_branch
from gamp_attention.state_evolution.dynamics.trajectory import Trajectory, trajectory
from gamp_attention.state_evolution.fixed_points.result import StateEvolutionResult
from gamp_attention.state_evolution.fixed_points.solve import solve_state_evolution
from gamp_attention.state_evolution.fixed_points.stability import Stability

__all__ = [
    "AttentionLoss",
    "Boundary",
    "BranchPath",
    "Branches",
    "ClassLabels",
    "ClassLaw",
    "Comparison",
    "ConvergenceError",
    "CoordinateClasses",
    "CoordinateLaw",
    "Dataset",
    "Denoised",
    "DescentResult",
    "DistributedDataset",
    "DotProductAttention",
    "ElasticNet",
    "GLMModel",
    "GampResult",
    "GampState",
    "History",
    "IntensityLabels",
    "LabelledDataset",
    "LinearBaseline",
    "LinearFit",
    "LinearLabels",
    "LogisticLabels",
    "LogisticLoss",
    "MixtureModel",
    "Model",
    "MultinomialLoss",
    "Overlaps",
    "PhaseBoundaries",
    "PhaseRetrievalLoss",
    "Ridge",
    "SampledLaw",
    "SoftmaxTeacher",
    "SquaredLoss",
    "Stability",
    "StateEvolutionResult",
    "Status",
    "Sweep",
    "Trajectory",
    "__version__",
    "attention_model",
    "branches",
    "compare",
    "continue_branch",
    "coordinate_law",
    "denoise",
    "fit_linear_baseline",
    "gamp_step",
    "glm_model",
    "gradient",
    "initial_state",
    "law_from_samples",
    "linear_baseline",
    "local_pool",
    "minimize_risk",
    "mixture_model",
    "paper_model",
    "phase_boundaries",
    "plot_comparison",
    "plot_phase_diagram",
    "plot_trajectory",
    "power_law_spectrum",
    "register_attention",
    "register_loss",
    "register_penalty",
    "run_gamp",
    "sample",
    "sign_positions",
    "solve_state_evolution",
    "sparse_teacher",
    "subset_positions",
    "sweep",
    "to_dataset",
    "train_loss",
    "trajectory",
]

if not TYPE_CHECKING:  # type checkers see only the names above

    def __getattr__(name):
        """Names that had another one in earlier versions."""
        if name == "Classes":
            import warnings

            warnings.warn("gamp_attention.Classes is now called CoordinateClasses", DeprecationWarning, stacklevel=2)
            return CoordinateClasses
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
