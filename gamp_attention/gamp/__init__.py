"""Message passing at finite d: one iteration, runs to a critical point, and descents that complete runs that cycle."""

from gamp_attention.gamp.acceleration import Acceleration, AccelerationSettings
from gamp_attention.gamp.options import IterationOptions
from gamp_attention.gamp.result import GampResult
from gamp_attention.gamp.run import run_gamp
from gamp_attention.gamp.settling import Settled, SettlingHistory, settle
from gamp_attention.gamp.step import GampState, StepReport, averaged_memory, gamp_step, initial_state, naive_memory

__all__ = ["GampResult", "GampState", "IterationOptions", "gamp_step", "initial_state", "run_gamp"]
