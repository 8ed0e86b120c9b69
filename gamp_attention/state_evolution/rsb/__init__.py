"""Replica symmetry breaking at zero temperature: k steps for models with one field, and attention with two tokens."""

from gamp_attention.state_evolution.rsb.broken import (
    BrokenStateEvolutionResult,
    Ladder,
    extrapolate,
    extrapolate_steps,
)
from gamp_attention.state_evolution.rsb.gaps import gap_distribution
from gamp_attention.state_evolution.rsb.lattice import Lattice, average_table, even_ceil, tabulate
from gamp_attention.state_evolution.rsb.one_field import (
    Innermost,
    OneField,
    average_levels,
    innermost_tables,
)
from gamp_attention.state_evolution.rsb.solve import (
    Packing,
    Problem,
    SearchSettings,
    evaluate,
    first_starts,
    follow_parisi,
    iterate,
    newton,
    refine_levels,
    solve_steps,
    split_start,
)
from gamp_attention.state_evolution.rsb.two_fields import TwoFields
from gamp_attention.state_evolution.rsb.weights import BrokenWeights, LevelHats, Levels
