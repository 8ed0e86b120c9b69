"""Sweeps over grids and lists of cells: resumable, on any executor, one file for each finished cell."""

from gamp_attention.experiments.sweeps.jobs import (
    Cell,
    Settings,
    base_digest,
    cell_key,
    chains,
    digest,
    expand_cells,
    grid,
    row_overlaps,
    run_cell,
    short_hash,
)
from gamp_attention.experiments.sweeps.scheduler import kernel_threads, local_pool, run_chains
from gamp_attention.experiments.sweeps.store import STALE, Claims, Store, commit, process
from gamp_attention.experiments.sweeps.sweep import save, to_dataset
