"""Bayes-optimal estimation: message passing, its state evolution and its thresholds."""

from gamp_attention.bayes.amp import BayesAmpResult, BayesHistory, build_problem, run_bayes_amp
from gamp_attention.bayes.equations import Equations
from gamp_attention.bayes.messages import AmpProblem, amp_step, build_start, start_remaining_columns
from gamp_attention.bayes.posterior_starts import posterior_directions, posterior_start
from gamp_attention.bayes.priors import MixturePrior, kinds_of
from gamp_attention.bayes.results import BayesStateEvolution, BayesThresholds, RecoveryStage, StagedThresholds
from gamp_attention.bayes.state_evolution import bayes_fixed_points, solve_bayes_state_evolution
from gamp_attention.bayes.thresholds import bayes_thresholds
from gamp_attention.models.channels.integrals import FINE

__all__ = [
    "BayesAmpResult",
    "BayesStateEvolution",
    "BayesThresholds",
    "RecoveryStage",
    "StagedThresholds",
    "bayes_fixed_points",
    "bayes_thresholds",
    "posterior_directions",
    "posterior_start",
    "run_bayes_amp",
    "solve_bayes_state_evolution",
]
