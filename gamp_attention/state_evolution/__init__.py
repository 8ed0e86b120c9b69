"""State evolution: the distribution of message passing and gradient descent in the limit d → ∞."""

from gamp_attention.state_evolution.continuation.branches import Branches, BranchPath, branches, continue_branch
from gamp_attention.state_evolution.dynamics.gradient_descent import GradientDescent
from gamp_attention.state_evolution.dynamics.message_passing import MessagePassing
from gamp_attention.state_evolution.dynamics.online_paths import SinglePass
from gamp_attention.state_evolution.dynamics.population import (
    PopulationLoss,
    PopulationMap,
    PopulationMinimum,
    population_loss,
    population_map,
)
from gamp_attention.state_evolution.dynamics.replicas import Trajectory
from gamp_attention.state_evolution.dynamics.survey_propagation import Survey
from gamp_attention.state_evolution.dynamics.trajectory import trajectory
from gamp_attention.state_evolution.fixed_points.limiting_spectra import LimitingSpectrum, limiting_spectrum
from gamp_attention.state_evolution.fixed_points.observables import Stability
from gamp_attention.state_evolution.fixed_points.refinement import StateEvolutionResult
from gamp_attention.state_evolution.fixed_points.solve import solve_state_evolution
from gamp_attention.state_evolution.fixed_points.spectral_overlaps import SpectralOverlap, spectral_overlap
from gamp_attention.state_evolution.rsb.broken import BrokenStateEvolutionResult, solve_broken

__all__ = [
    "BranchPath", "Branches", "BrokenStateEvolutionResult", "GradientDescent", "LimitingSpectrum",
    "MessagePassing", "PopulationLoss", "PopulationMap", "PopulationMinimum", "SinglePass", "SpectralOverlap",
    "Stability", "StateEvolutionResult", "Survey", "Trajectory", "branches", "continue_branch",
    "limiting_spectrum", "population_loss", "population_map", "solve_broken", "solve_state_evolution",
    "spectral_overlap", "trajectory",
]  # fmt: skip
