"""Phase diagrams: where branches exist, which is lowest, which beats the linear baseline."""

from gamp_attention.experiments.phase_diagram.breaking import find_changes
from gamp_attention.experiments.phase_diagram.phase_boundaries import LINES, DiagramJob, Search, compute_thresholds
from gamp_attention.experiments.phase_diagram.scan import (
    Boundary,
    Scan,
    find_ends,
    find_equal_loss,
    find_equal_test_error,
    find_stability_changes,
)
