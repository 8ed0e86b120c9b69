"""Bayes-optimal estimation: message passing, its state evolution and its thresholds."""

from gamp_attention.bayes.results import BayesStateEvolution, BayesThresholds, RecoveryStage, StagedThresholds
from gamp_attention.bayes.run import BayesAmpResult, run_bayes_amp
from gamp_attention.bayes.state_evolution import bayes_fixed_points, solve_bayes_state_evolution
from gamp_attention.bayes.thresholds import bayes_thresholds

__all__ = [
    "BayesAmpResult",
    "BayesStateEvolution",
    "BayesThresholds",
    "RecoveryStage",
    "StagedThresholds",
    "bayes_fixed_points",
    "bayes_thresholds",
    "run_bayes_amp",
    "solve_bayes_state_evolution",
]
