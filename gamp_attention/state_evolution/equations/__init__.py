"""Equations of state evolution: from overlaps to conjugate overlaps (channel), and back (weights)."""

from gamp_attention.state_evolution.equations.channel import Channel, Hats, average, conjugates, sum_over_components
from gamp_attention.state_evolution.equations.spectrum import Ensemble, lowest_edge
from gamp_attention.state_evolution.equations.symmetry import Symmetry
from gamp_attention.state_evolution.equations.units import Packing, is_feasible, relative_change, subtract_explained
from gamp_attention.state_evolution.equations.weights import (
    elastic_net_averages,
    jump_shift,
    sampled_averages,
    trapezoidal_averages,
    weights_step,
)
