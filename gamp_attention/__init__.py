"""Message passing on attention: GAMP, state evolution and gradient descent for one dot-product attention layer."""

from gamp_attention._version import __version__
from gamp_attention.attention import DotProductAttention
from gamp_attention.attention_models import attention_model, paper_model
from gamp_attention.comparison import Comparison, compare
from gamp_attention.coordinate_classes import (
    Classes,
    power_law_spectrum,
    sign_positions,
    sparse_teacher,
    subset_positions,
)
from gamp_attention.coordinate_laws import CoordinateLaw, coordinate_law
from gamp_attention.data import Dataset
from gamp_attention.denoiser import Denoised, denoise
from gamp_attention.distributed import DistributedDataset
from gamp_attention.gamp import GampState, gamp_step, initial_state
from gamp_attention.glm import GLMModel, glm_model
from gamp_attention.glm_data import LabelledDataset
from gamp_attention.glm_losses import LogisticLoss, MultinomialLoss, PhaseRetrievalLoss, SquaredLoss
from gamp_attention.gradient_descent import DescentResult, minimize_risk
from gamp_attention.label_teachers import ClassLabels, IntensityLabels, LinearLabels, LogisticLabels
from gamp_attention.landscape.boundary import Boundary
from gamp_attention.landscape.phase_boundaries import PhaseBoundaries, phase_boundaries
from gamp_attention.linear_baseline import LinearBaseline, linear_baseline
from gamp_attention.linear_fit import LinearFit, fit_linear_baseline
from gamp_attention.losses import AttentionLoss
from gamp_attention.message_passing import GampResult, run_gamp
from gamp_attention.mixtures import MixtureModel, mixture_model
from gamp_attention.models import Model
from gamp_attention.penalties import ElasticNet, Ridge, register_penalty
from gamp_attention.registration import register_attention, register_loss
from gamp_attention.results import ConvergenceError, History, Overlaps, Status
from gamp_attention.risk import gradient, train_loss
from gamp_attention.sampled_laws import SampledLaw, law_from_samples
from gamp_attention.sampling import sample
from gamp_attention.state_evolution.branches import Branches, branches
from gamp_attention.state_evolution.continuation import BranchPath, continue_branch
from gamp_attention.state_evolution.result import StateEvolutionResult
from gamp_attention.state_evolution.solve import solve_state_evolution
from gamp_attention.state_evolution.stability import Stability
from gamp_attention.state_evolution.trajectory import Trajectory, trajectory
from gamp_attention.sweeps.dataset import to_dataset
from gamp_attention.sweeps.scheduler import local_pool
from gamp_attention.sweeps.sweep import Sweep, sweep
from gamp_attention.teachers import SoftmaxTeacher
from gamp_attention.token_classes import ClassLaw

__all__ = [
    "AttentionLoss",
    "Boundary",
    "BranchPath",
    "Branches",
    "ClassLabels",
    "ClassLaw",
    "Classes",
    "Comparison",
    "ConvergenceError",
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
