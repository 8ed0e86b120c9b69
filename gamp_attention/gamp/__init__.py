"""Message passing at finite d: one iteration, runs to a critical point, and descents that complete runs that cycle."""

from gamp_attention._core.runs import Checkpoint
from gamp_attention.gamp.result import GampResult, StartRecord
from gamp_attention.gamp.run import IterationOptions, run_gamp
from gamp_attention.gamp.step import GampState, gamp_step, initial_state
from gamp_attention.gamp.survey import (
    SurveyEnd,
    SurveyRecord,
    SurveyReport,
    SurveyState,
    initial_survey,
    survey_step,
)

__all__ = [
    "Checkpoint", "GampResult", "GampState", "IterationOptions", "StartRecord", "SurveyEnd", "SurveyRecord",
    "SurveyReport", "SurveyState", "gamp_step", "initial_state", "initial_survey", "run_gamp", "survey_step",
]  # fmt: skip
