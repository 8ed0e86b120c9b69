"""Trained layers of sequence models, whose outputs are traced functions of the fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention.problem.layer import Predictor, Units, attention_of_heads
from gamp_attention.problem.passes import TokenMatrix
from gamp_attention.problem.stores import Tokens


@dataclass(frozen=True, eq=False)
class TracedLayer(Predictor):
    """Layer whose outputs (L, p) are a function of the fields z = (x + p − c) W/√d + b, W = Q/s."""

    model: Any  # model of the layer, with `predict`, and with the attention map `head` if it has attention
    Q: np.ndarray  # (d, r) weights for tokens in the units c and s
    positions: np.ndarray
    units: Units  # center c and scale s
    intercept: np.ndarray  # (r,) b

    @property
    def width(self) -> int:
        """Number p of outputs for each token."""
        return self.model.target_shape[1]

    def fields(self, tokens: Tokens) -> np.ndarray:
        """Return the fields (n, L, r)."""
        weights = self.Q / self.units.scale[:, None]
        return TokenMatrix(tokens, self.positions - self.units.center).fields(weights) + self.intercept

    def outputs(self, tokens: Tokens) -> np.ndarray:
        """Return outputs (n, L, p)."""
        return self.model.predict(self.fields(tokens))

    def head_attention(self, tokens: Tokens) -> np.ndarray:
        """Return the attention matrices (n, H, L, L) of the heads."""
        return attention_of_heads(self.model.head, self.model.student, self.fields(tokens))

    def attention(self, tokens: Tokens) -> np.ndarray:
        """Return the mean (n, L, L) of the attention matrices of the heads."""
        return self.head_attention(tokens).mean(axis=1)

    def errors(self, tokens: Tokens, outputs: np.ndarray) -> np.ndarray:
        """Return ‖y − f(x)‖²/(pL) of each sample, (n,)."""
        return np.mean((outputs - self.outputs(tokens)) ** 2, axis=(1, 2))
