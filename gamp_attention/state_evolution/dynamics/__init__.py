"""Trajectories: overlaps and losses at every iteration of message passing or gradient descent."""

from gamp_attention.state_evolution.dynamics.descent_paths import DescentPaths, RareResponses
from gamp_attention.state_evolution.dynamics.field_paths import FieldPaths, PathResponses, bytes_per_path
from gamp_attention.state_evolution.dynamics.finite_surveys import NormalMatrix, sample_survey
from gamp_attention.state_evolution.dynamics.message_paths import MessagePaths, follow
from gamp_attention.state_evolution.dynamics.sample_starts import spectral_start
from gamp_attention.state_evolution.dynamics.start_law import start_law
from gamp_attention.state_evolution.dynamics.survey_paths import (
    OverlapGrowth,
    SurveySample,
    follow_growth,
    follow_survey,
    sample_cosines,
)
from gamp_attention.state_evolution.dynamics.weight_paths import build_weights
