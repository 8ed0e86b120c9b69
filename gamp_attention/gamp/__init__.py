"""Message passing at finite d: one step, the run around it, and what finishes a run that cycles."""

from gamp_attention.gamp.many_starts import StartRecord
from gamp_attention.gamp.run import GampResult, run_gamp
from gamp_attention.gamp.step import GampState, gamp_step, initial_state

__all__ = ["GampResult", "GampState", "StartRecord", "gamp_step", "initial_state", "run_gamp"]
