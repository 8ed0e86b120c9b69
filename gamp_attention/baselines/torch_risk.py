"""The risk as a function of torch, independent of the compiled kernels."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from gamp_attention.data.dataset import Dataset

if TYPE_CHECKING:
    import torch


@contextmanager
def few_threads(n_numbers: int) -> Iterator[None]:
    """Use one torch thread if the tokens have few numbers: synchronization would take longer than the work."""
    import torch

    before = torch.get_num_threads()
    try:
        if n_numbers < 10_000_000:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


class TorchRisk:
    """Risk R(Q) of equation (3) or (41) as a torch function of Q, in float64; it includes a ridge, no other penalty.

    The layer is S[(x+p)Q/√d](x+p). Its expanded squared distance to y depends on Q only through the
    fields, see eq. (41) and `gamp_attention.losses.attention.RiskTerms`.
    """

    def __init__(self, data: Dataset, risk: str, device: str) -> None:
        import torch

        terms = data.terms(risk)

        def tensor(values: np.ndarray) -> "torch.Tensor":
            return torch.as_tensor(values, dtype=torch.float64, device=device)

        self._tokens, self._positions = tensor(np.asarray(data.tokens)), tensor(data.positions)
        self._params, self._loss = tensor(terms.params), data.loss
        self.constant = float(terms.constant.sum())
        self._ridge = data.penalty.lam if data.penalty.quadratic else 0.0
        self._root = math.sqrt(data.dim)

    def __call__(self, Q: "torch.Tensor", rows: "torch.Tensor | None" = None) -> "torch.Tensor":
        """Return R(Q), or an estimate of it, up to a constant, from some rows of the data."""
        scale = 1.0 if rows is None else len(self._tokens) / len(rows)
        return self.fit(Q, rows) * scale + self.constant + 0.5 * self._ridge * (Q**2).sum()

    def fit(self, Q: "torch.Tensor", rows: "torch.Tensor | None" = None) -> "torch.Tensor":
        """Return the sum of the losses of all samples, or of some rows of the data, without constants."""
        tokens, params = (v if rows is None else v[rows] for v in (self._tokens, self._params))
        z = (tokens @ Q + self._positions @ Q) / self._root
        return self._loss.torch(params, z).sum()

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._tokens)
