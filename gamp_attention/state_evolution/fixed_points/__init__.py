"""Fixed points of state evolution: search, refinement to a requested accuracy, stability and validity."""

from gamp_attention.state_evolution.fixed_points.failures import FAMILY_OF
from gamp_attention.state_evolution.fixed_points.indicators import Indicators
from gamp_attention.state_evolution.fixed_points.nearby import Derivatives, root_near, solve_near
from gamp_attention.state_evolution.fixed_points.newton import (
    breakdown,
    find_vanished_weights,
    iterate_at_zero,
    newton,
    newton_step,
)
from gamp_attention.state_evolution.fixed_points.observables import (
    GAP_PER_SHIFT,
    NEGLIGIBLE_JUMPS,
    by_series,
    column_sums,
    free_energy,
    largest_jump_fraction,
    moreau_loss,
    predicted_test_error,
    replicon,
    sector_jacobian,
    stability,
    test_error_slopes,
    validity,
)
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap
from gamp_attention.state_evolution.fixed_points.points import (
    LOSSES,
    Point,
    PointSettings,
    errors_of,
    point_of,
    response_slopes,
    units_of,
)
from gamp_attention.state_evolution.fixed_points.refinement import StateEvolutionHistory
from gamp_attention.state_evolution.fixed_points.search import find_fixed_point, remove_columns
