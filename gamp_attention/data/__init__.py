"""Problems at finite d: datasets, passes over their tokens, the risk and its derivatives, and initial weights."""

from gamp_attention.data.curvature import HessianSpectrum, hessian_spectrum, lowest_curvature, risk_hessian, rotations
from gamp_attention.data.dataset import Dataset, LabelledDataset, split_held_out
from gamp_attention.data.distributed import DistributedDataset
from gamp_attention.data.fixed_columns import fix_columns
from gamp_attention.data.law import law_of
from gamp_attention.data.layer import Layer, Units, build_dataset
from gamp_attention.data.passes import LOOP_ROWS, Effort, TokenMatrix, add_up, data_pass, project
from gamp_attention.data.recession import grows_without_bound
from gamp_attention.data.risk import (
    gradient,
    gradient_norm,
    hessian_product,
    overlaps,
    risk_at,
    train_loss,
)
from gamp_attention.data.sampling import draw_tokens, sample
from gamp_attention.data.starts import initial_weights, several_starts
from gamp_attention.data.stores import FileTokens, TokenStore, token_blocks
from gamp_attention.data.susceptibility import susceptibility
from gamp_attention.data.symmetries import agreement_of
from gamp_attention.data.test_errors import sampled_test_error

__all__ = [
    "Dataset", "DistributedDataset", "HessianSpectrum", "LabelledDataset", "fix_columns", "gradient",
    "hessian_spectrum", "law_of", "sample", "sampled_test_error", "train_loss",
]  # fmt: skip
