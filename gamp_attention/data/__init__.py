"""A problem at finite d: tokens, their fields, the risk and its sums, wherever the samples are held."""

from gamp_attention.data.dataset import Dataset
from gamp_attention.data.distributed import DistributedDataset
from gamp_attention.data.labelled import LabelledDataset
from gamp_attention.data.risk import gradient, train_loss
from gamp_attention.data.sampling import sample

__all__ = ["Dataset", "DistributedDataset", "LabelledDataset", "gradient", "sample", "train_loss"]
