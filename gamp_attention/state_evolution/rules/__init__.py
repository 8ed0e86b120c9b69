"""Quadrature rules for averages over the fields of the channel, with error estimates."""

from gamp_attention.state_evolution.rules.breakpoints import find_breakpoints
from gamp_attention.state_evolution.rules.choice import first_rule
from gamp_attention.state_evolution.rules.importance import Proposal
from gamp_attention.state_evolution.rules.lines import line_averages
from gamp_attention.state_evolution.rules.nested import error_within
from gamp_attention.state_evolution.rules.rule import WorkExceeded, average_channels
from gamp_attention.state_evolution.rules.sobol import SobolRule
from gamp_attention.state_evolution.rules.split import Panels, SplitRule
