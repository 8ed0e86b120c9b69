"""Trained attention layer in the units of the data: attention matrices, outputs and errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.display import DisplayMixin
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.passes import TokenMatrix
from gamp_attention.problem.stores import as_tokens, token_blocks


class Units(NamedTuple):
    """Offset and scale of each of the d coordinates: x becomes (x − center)/scale.

    Outputs have the same units as tokens, so that an output that is a mean of tokens stays a mean of tokens.
    """

    center: np.ndarray  # (d,)
    scale: np.ndarray  # (d,), positive
    constant: int = 0  # number of coordinates that are equal in all tokens, and are only centered

    @classmethod
    def raw(cls, d: int) -> Units:
        """Return the units of the arrays themselves: center 0 and scale 1."""
        return cls(np.zeros(d), np.ones(d))

    def standardize(self, tokens: Any) -> np.ndarray:
        """Return tokens or outputs in these units; the same array if center and scale are 0 and 1."""
        unchanged = not self.center.any() and (self.scale == 1).all()
        return tokens if unchanged else (np.asarray(check.detach_tensor(tokens)) - self.center) / self.scale


class Predictor(DisplayMixin):
    """Base class of trained layers, which predict outputs from tokens."""

    Q: np.ndarray  # (d, r) weights for tokens in the units c and s
    positions: np.ndarray  # (L, d) p, in the units of the original tokens; zero if the tokens include their positions
    units: Units  # center c and scale s

    def predict(self, tokens: ArrayLike) -> np.ndarray:
        """Return the outputs (n, L, d), or (n, L, p) with value matrices, for tokens (n, L, d)."""
        checked = require_tokens("tokens", tokens, *self.positions.shape)
        return np.concatenate([self.outputs(x) for _, _, x in token_blocks(checked)])

    def outputs(self, tokens: np.ndarray) -> np.ndarray:
        """Return outputs for tokens (n, L, d) in memory, which are not checked."""
        raise NotImplementedError

    def fields(self, tokens: np.ndarray) -> np.ndarray:
        """Return the fields (x + p − c) Q/(s√d), (n, L, r)."""
        weights = self.Q / self.units.scale[:, None]
        return TokenMatrix(tokens, self.positions - self.units.center).fields(weights)

    def errors(self, tokens: np.ndarray, outputs: np.ndarray, attention: np.ndarray | None = None) -> np.ndarray:
        """Return ‖y − f(x)‖²/(dL) of each sample, (n,); the mean over unseen samples estimates the test error ε_g.

        Outputs may have p numbers in place of d. Other attention matrices (n, L, L) replace the layer's if they are
        given.
        """
        errors = np.empty(len(tokens))
        for rows, _, x in token_blocks(tokens):
            predicted = self.outputs(x, *(() if attention is None else (attention[rows],)))
            errors[rows] = np.mean((outputs[rows] - predicted) ** 2, (1, 2))
        return errors


@dataclass(frozen=True, eq=False)
class Layer(Predictor):
    """Layer f(x) = S[z] (x + p − c) + c with fields z = (x + p − c) W/√d, W = Q/s.

    This is equation (2) if c = 0 and s = 1.
    """

    student: Any  # the attention map S
    Q: np.ndarray  # (d, r) weights for tokens in the units c and s
    positions: np.ndarray
    units: Units  # center c and scale s

    def attention(self, tokens: np.ndarray) -> np.ndarray:
        """Return attention matrices (n, L, L)."""
        return self.student(self.fields(tokens))

    def head_attention(self, tokens: np.ndarray) -> np.ndarray:
        """Return the attention matrices (n, H, L, L) of the heads."""
        if getattr(self.student, "heads", 1) == 1:
            return self.attention(tokens)[:, None]
        return attention_of_heads(self.student.single, self.student, self.fields(tokens))

    def outputs(self, tokens: np.ndarray, attention: np.ndarray | None = None) -> np.ndarray:
        """Return outputs (n, L, d), with other attention matrices (n, L, L) than the layer's if they are given."""
        c = self.units.center
        attention = self.attention(tokens) if attention is None else attention
        return attention @ (tokens + (self.positions - c)) + c


def layer_of(data: Dataset, Q: np.ndarray, units: Units | None = None) -> Any:
    """Return the `Predictor` with weights Q (d, r) of a dataset in given units; None for labels without one."""
    if not data.is_labelled:
        units = Units.raw(data.dim) if units is None else units
        return Layer(data.student, Q, data.positions * units.scale, units)
    build = getattr(data.model, "trained_layer", None)
    return None if build is None else build(data, Q)


def attention_of_heads(single: Any, student: Any, fields: np.ndarray) -> np.ndarray:
    """Return the attention matrices (n, H, L, L) of the heads of a student for fields (n, L, r)."""
    return np.stack(student.head_layout(fields.shape[2]).attend_each(single, fields), axis=1)


def require_tokens(name: str, tokens: ArrayLike, L: int, d: int) -> np.ndarray:
    """Return tokens (n, L, d); raise ValueError if L or d differ from the tokens of the training."""
    checked = as_tokens(name, tokens)
    if checked.shape[1:] != (L, d):
        raise check.fail_words(name, f"shape {checked.shape}", f"shape (n, {L}, {d}), as in training")
    return checked
