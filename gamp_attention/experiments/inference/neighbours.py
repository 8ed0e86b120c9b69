"""Datasets that differ in a hyperparameter, and states of message passing to begin with at the next one."""

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import risk_at
from gamp_attention.gamp.step import GampState
from gamp_attention.models.sources import weighted
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


def near_fixed_point(data: Dataset, Q: np.ndarray, V: np.ndarray) -> GampState:
    """The state that weights (d, r) and variances V (S, r, r) would be the fixed point of: D = V g and z = X̃Q."""
    at = risk_at(data, Q, "exact")
    return GampState(Q.copy(), V.copy(), weighted(data.groups, V, -at.loss_gradients), at.z.copy())
