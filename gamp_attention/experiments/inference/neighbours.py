"""Datasets that differ in the penalty alone."""

from copy import copy
from dataclasses import replace
from typing import Any

from gamp_attention.data.dataset import Dataset
from gamp_attention.penalties.standard import with_lam


def with_penalty(data: Dataset, penalty: Any) -> Dataset:
    """The same samples, not copied, with another penalty."""
    other = copy(data)
    other.penalty, other.lam = penalty, float(penalty.lam)
    if data.model is not None:
        other.model = replace(data.model, penalty=penalty)
    return other


def at_lam(data: Dataset, lam: Any) -> Dataset:
    """The same samples with another λ."""
    return with_penalty(data, with_lam(data.penalty, lam))
