"""Problems at finite d: datasets, passes over their tokens, the risk and its derivatives, and initial weights."""

from gamp_attention.data.dataset import Dataset, LabelledDataset
from gamp_attention.data.distributed import DistributedDataset
from gamp_attention.data.fixed_columns import fix_columns
from gamp_attention.data.law import law_of
from gamp_attention.data.risk import gradient, sampled_test_error, train_loss
from gamp_attention.data.sampling import sample
from gamp_attention.data.starts import SpectralDirections, spectral_directions

__all__ = [
    "Dataset", "DistributedDataset", "LabelledDataset", "SpectralDirections", "fix_columns", "gradient", "law_of",
    "sample", "sampled_test_error", "spectral_directions", "train_loss",
]  # fmt: skip
