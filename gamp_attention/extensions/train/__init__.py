"""Training from data: several starts, spectral starts, descents, survey propagation, escapes and checkpoints.

`train` returns the lowest minimum of all starts. The extension uses the core (`gamp`, `data`, `denoisers`) and no other
extension.
"""

from gamp_attention._core.checkpoints import Checkpoint
from gamp_attention.extensions.train.fit_result import FitResult, load_result
from gamp_attention.extensions.train.flips import flipped_starts
from gamp_attention.extensions.train.records import StartRecord
from gamp_attention.extensions.train.saddles import descend_from_saddle
from gamp_attention.extensions.train.spectral import SpectralDirections, lowest_eigenvectors, spectral_directions
from gamp_attention.extensions.train.survey import (
    LADDER,
    LATE_ITERATION,
    STEP,
    SurveyEnd,
    SurveyPhase,
    SurveyRecord,
    SurveyReport,
    SurveyState,
    initial_survey,
    survey_step,
)
from gamp_attention.extensions.train.train import TrainResult, train

__all__ = [
    "Checkpoint", "FitResult", "SpectralDirections", "StartRecord", "SurveyEnd", "SurveyRecord", "SurveyReport",
    "SurveyState", "TrainResult", "initial_survey", "load_result", "spectral_directions", "survey_step", "train",
]  # fmt: skip
