"""Message passing at finite d: one iteration, runs to a critical point, and descents that complete runs that cycle."""

from gamp_attention._core.runs import Checkpoint
from gamp_attention.gamp.fit_result import FitResult, load_result
from gamp_attention.gamp.loop import MAX_RISE, WARM_UP, Acceleration, Budget
from gamp_attention.gamp.result import GampResult, StartRecord
from gamp_attention.gamp.run import IterationOptions, run_gamp
from gamp_attention.gamp.settling import Settled, SettlingHistory, descend_from_saddle, settle
from gamp_attention.gamp.step import GampState, StepReport, averaged_memory, gamp_step, initial_state, naive_memory
from gamp_attention.gamp.survey import (
    LADDER,
    LATE_ITERATION,
    STEP,
    SurveyEnd,
    SurveyPhase,
    SurveyRecord,
    SurveyReport,
    SurveyState,
    flipped_starts,
    initial_survey,
    survey_step,
)

__all__ = [
    "Checkpoint", "FitResult", "GampResult", "GampState", "IterationOptions", "StartRecord", "SurveyEnd",
    "SurveyRecord", "SurveyReport", "SurveyState", "gamp_step", "initial_state", "initial_survey", "load_result",
    "run_gamp", "survey_step",
]  # fmt: skip
