"""A trained attention layer in the user's own units: what it attends to, its outputs, and its errors."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.numerics import check_squarable, ignore_float_errors
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.passes import TokenMatrix
from gamp_attention.data.stores import Tokens, as_tokens, read_rows, token_blocks


class Units(NamedTuple):
    """What each of the d coordinates is measured from and in: x becomes (x − centre)/scale.

    Outputs are measured as the tokens are, so that an output that is a mean of tokens stays one.
    """

    centre: np.ndarray  # (d,)
    scale: np.ndarray  # (d,), positive
    constant: int = 0  # coordinates that are the same in all tokens, and are only centred

    @classmethod
    def raw(cls, d: int) -> "Units":
        """Those of the arrays themselves."""
        return cls(np.zeros(d), np.ones(d))

    @classmethod
    @ignore_float_errors
    def standard(cls, tokens: Any, sample_weight: np.ndarray | None = None) -> "Units":
        """Mean and standard deviation of each coordinate over all tokens of all samples; 1 for a constant one.

        With weights (n,) of the samples, if they are given.
        """
        flat = check_squarable("tokens", tokens, ("n", "L", "d"))
        weights = None if sample_weight is None else np.repeat(sample_weight, flat.shape[1])
        flat = flat.reshape(-1, flat.shape[2])
        if weights is None:
            centre, scale = flat.mean(axis=0), flat.std(axis=0)
        else:
            centre = np.average(flat, axis=0, weights=weights)
            scale = np.sqrt(np.average((flat - centre) ** 2, axis=0, weights=weights))
        constant = scale <= 1e-12 * np.abs(centre)  # but for rounding
        return cls(centre, np.where(constant, 1.0, scale), int(np.count_nonzero(constant)))

    def standardised(self, tokens: Any) -> np.ndarray:
        """Tokens, or outputs, in these units; the same array where they are its own."""
        plain = not self.centre.any() and (self.scale == 1).all()
        return tokens if plain else (np.asarray(check.detach_tensor(tokens)) - self.centre) / self.scale


@dataclass(frozen=True, eq=False)
class Layer:
    """f(x) = S[z] (x + p − c) + c with fields z = (x + p − c) W/√d, W = Q/s.

    Equation (2) where c = 0 and s = 1.

    Attributes
    ----------
    student : the attention map S.
    Q : (d, r) weights of tokens in units c and s.
    positions : (L, d) p, in the units of the tokens as they come; zero where they hold their positions.
    units : c and s.
    """

    student: Any
    Q: np.ndarray
    positions: np.ndarray
    units: Units

    def attention(self, tokens: Tokens) -> np.ndarray:
        """Attention matrices (n, L, L)."""
        weights = self.Q / self.units.scale[:, None]
        return self.student(TokenMatrix(tokens, self.positions - self.units.centre).fields(weights))

    def outputs(self, tokens: np.ndarray, attention: np.ndarray | None = None) -> np.ndarray:
        """Outputs (n, L, d), by the attention of the layer if none is given."""
        c = self.units.centre
        attention = self.attention(tokens) if attention is None else attention
        return attention @ (tokens + (self.positions - c)) + c

    def errors(self, tokens: Tokens, outputs: Tokens, attention: np.ndarray | None = None) -> np.ndarray:
        """‖y − f(x)‖²/(dL) of each sample, (n,); their mean is an estimate of the test error ε_g on unseen samples.

        Of other attention matrices (n, L, L) than the layer's, where they are given.
        """
        found = []
        for rows, _, x in token_blocks(tokens):
            y = read_rows(outputs, rows)
            found.append(
                np.mean((y - self.outputs(x, attention if attention is None else attention[rows])) ** 2, (1, 2))
            )
        return np.concatenate(found)


def prepared(tokens: Any, outputs: Any, positions: Any, standardise: bool, **options: Any) -> tuple[Dataset, Units]:
    """A dataset of own arrays, in standard units where they are to be standardised, and these units.

    `options` are those of `Dataset`.
    """
    tokens, outputs = as_tokens("tokens", tokens), as_tokens("outputs", outputs)
    require_alike(tokens, outputs)
    L, d = tokens.shape[1:]
    units = Units.standard(tokens, options.get("sample_weight")) if standardise else Units.raw(d)
    if positions is not None:
        positions = check.array("positions", positions, (L, d)) / units.scale
    return Dataset(units.standardised(tokens), units.standardised(outputs), positions, **options), units


def require_alike(tokens: Tokens, outputs: Tokens) -> None:
    """Raise unless outputs have the shape of the tokens."""
    if outputs.shape != tokens.shape:
        raise ValueError(f"outputs: needs shape {tokens.shape}, got shape {outputs.shape}")


def checked_tokens(name: str, tokens: Any, L: int, d: int) -> Tokens:
    """Tokens (n, L, d) of the sizes that a layer was trained on."""
    found = as_tokens(name, tokens)
    if found.shape[1:] != (L, d):
        raise check.fail(name, f"shape {found.shape}", f"shape (n, {L}, {d}), as in training")
    return found
