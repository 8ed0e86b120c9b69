"""Message passing on attention: GAMP, state evolution and gradient descent for one dot-product attention layer."""

from gamp_attention.data import Dataset, sample
from gamp_attention.message_passing import GampResult, run_gamp
from gamp_attention.models import Model, attention_model, paper_model
from gamp_attention.results import ConvergenceError, History, Overlaps, Status
from gamp_attention.risk import gradient
