"""Datasets that differ in the penalty alone, and some of the samples of a dataset."""

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.losses.terms import RiskTerms
from gamp_attention.models.sources import Group
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


def at_rows(data: Dataset, rows: np.ndarray) -> Dataset:
    """Samples of a dataset in memory, with all that is known of the law of its tokens; rows in their order."""
    other = copy(data)
    other.tokens = np.asarray(data.tokens)[rows]
    for name in ("_outputs", "targets", "labels", "sample_weight"):
        held = getattr(data, name)
        setattr(other, name, None if held is None else np.asarray(held)[rows])
    terms = {id(each): RiskTerms(each.params[rows], each.constant[rows]) for each in data._risks.values()}
    other._risks = {name: terms[id(each)] for name, each in data._risks.items()}
    ends = np.searchsorted(rows, [(group.rows.start, group.rows.stop) for group in data.groups]).tolist()
    groups = zip(ends, data.groups, strict=True)
    other.groups = tuple(Group(slice(a, b), group.sources) for (a, b), group in groups if b > a)
    return other
