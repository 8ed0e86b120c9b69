"""Message passing on samples that the workers of a dask cluster hold.

Each worker holds blocks of tokens, with the memory D and the minimisers z of their samples. An iteration sends Q, V, W
and numbers of their size, and gets sums back. Where a worker dies, dask computes again what it held: tokens from their
store, D and z from the last copy that this process took of them, once in MAX_AGE iterations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention.data.dataset import Dataset, require_dataset
from gamp_attention.data.passes import (
    Memory,
    OutputStep,
    Part,
    RiskSums,
    Sums,
    TokenMatrix,
    next_memory,
    output_step,
    sum_risk,
)
from gamp_attention.data.stores import TokenStore
from gamp_attention.losses.attention import RiskTerms
from gamp_attention.models.sources import Group

MAX_AGE = 25  # iterations that dask would have to repeat at most
Update = tuple[Memory, np.ndarray, np.ndarray, float]  # rule, V, W and β, that make D of one iteration that of the next


class Kept(NamedTuple):
    """What a worker keeps of its samples after an iteration: D before it, z and g of it."""

    D: np.ndarray
    z: np.ndarray
    g: np.ndarray


def _load(store: TokenStore, rows: slice, positions: np.ndarray, *others: Any) -> Part:
    return Part(TokenMatrix(store.read(rows), positions), *others)


def _advance(
    part: Part, kept: Any, update: Update | None, risk: str, Q: np.ndarray, V: np.ndarray, most: int
) -> tuple[Kept, Sums]:
    D, z = kept if update is None else (_rows(part, kept, update), kept[0].z)
    out = output_step(part, risk, Q, D, V, z, most)
    assert out.denoised is not None
    return Kept(D, out.z, out.denoised.g), out.sums


def _rows(part: Part, found: tuple[Kept, Sums], update: Update | None) -> np.ndarray:
    """z of an iteration, or D of the next one where there is an update."""
    kept, _ = found
    return kept.z if update is None else next_memory(part.groups, kept.D, kept.g, *update)


def _risk(part: Part, risk: str, Q: np.ndarray) -> tuple[float, np.ndarray]:
    found = sum_risk(part, risk, Q)
    return found.loss, found.smooth


def _fields(part: Part, risk: str, Q: np.ndarray) -> np.ndarray:
    return sum_risk(part, risk, Q).fields()


@dataclass(frozen=True, eq=False)
class Remote:
    """Rows (n, L, r) on workers: z where there is no update, else D; as an array, they are fetched."""

    data: "DistributedDataset"
    found: list[Any]  # futures of (Kept, Sums), one for each part
    age: int  # iterations since the rows were in this process
    update: Update | None = None

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        tasks = zip(self.data.parts, self.found, strict=True)
        parts = self.data.on_all(_rows, [(part, each, self.update) for part, each in tasks])
        return np.concatenate(self.data.fetched(parts))


class DistributedDataset(Dataset):
    """A dataset whose tokens are held by the workers of a dask cluster, for `run_gamp` without acceleration.

    Results are those of the dataset itself with `accelerate=False`, but for the order of sums. The workers read the
    tokens from where they are, so files must be seen by all of them. `onsager`, `memory`, settling and checkpoints work
    as ever; settling, and the curvature at the end, read the tokens in this process.

    Parameters
    ----------
    data : with tokens in a store: sampled with `storage`, or own memory-mapped or chunked arrays.
    client : a `distributed.Client`.
    n_blocks : parts that samples are cut into; 2 for each worker if not given.

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> from distributed import Client
    >>> data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0, storage="none")
    >>> with Client(processes=False, n_workers=1, dashboard_address=None) as client:
    ...     there = ga.run_gamp(ga.DistributedDataset(data, client), max_iter=3, tol=0)
    >>> bool(abs(there.Q - ga.run_gamp(data, max_iter=3, tol=0).Q).max() < 1e-12)
    True
    """

    rows_here = False
    client: Any
    rows: list[slice]
    parts: list[Any]  # futures of the parts, one for each range of rows

    def __init__(self, data: Dataset, client: Any, n_blocks: int | None = None) -> None:
        tokens = require_dataset(data).tokens
        if not isinstance(tokens, TokenStore):
            needs = "tokens that workers can read, in a file or regenerated"
            raise check.fail("data", type(tokens).__name__, needs)
        if not (hasattr(client, "submit") and hasattr(client, "gather") and hasattr(client, "nthreads")):
            raise check.fail("client", client, "a distributed.Client", TypeError)
        if n_blocks is None:
            n_blocks = 2 * max(1, len(client.nthreads()))
        n_blocks = check.integer("n_blocks", n_blocks, low=1)
        n, grain = data.n_samples, tokens.grain
        edges = [min(n, round(n * k / n_blocks / grain) * grain) for k in range(n_blocks)] + [n]
        rows = [slice(a, b) for a, b in pairwise(edges) if a < b]
        vars(self).update(vars(data), client=client, rows=rows)
        vars(self)["parts"] = self.on_all(_load, [(tokens, each, *self._described(each)) for each in rows])

    def replace(self, **changes: Any) -> "Dataset":
        """Return a dataset of the same samples with another penalty, rank or student, see `Dataset.replace`."""
        changed = super().replace(**changes)
        if not {"rank", "student"} & changes.keys():
            return changed
        return DistributedDataset(changed, self.client, len(self.parts))  # the workers need the new loss

    def _described(self, rows: slice) -> tuple[Any, ...]:
        """What a Part has besides its tokens."""
        groups = tuple(
            Group(slice(max(own.start, rows.start) - rows.start, min(own.stop, rows.stop) - rows.start), sources)
            for own, sources in self.groups
            if own.start < rows.stop and own.stop > rows.start
        )
        risks = {name: RiskTerms(terms.params[rows], terms.constant[rows]) for name, terms in self._risks.items()}
        return self.positions, groups, self.n_sources, self.loss, risks

    def on_all(self, function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Futures of a function of the arguments of each part."""
        return [self.client.submit(function, *each, pure=False) for each in arguments]

    def fetched(self, futures: list[Any]) -> list[Any]:
        """Their results, in order."""
        return self.client.gather(futures)

    def output_step(self, risk: str, Q: np.ndarray, D: Any, V: np.ndarray, z: Any, most: int) -> OutputStep:
        """ω, z and g of all samples, on the workers."""
        kept, update, age = None, None, 0
        if isinstance(D, Remote) and D.age < MAX_AGE:
            kept, update, age = D.found, D.update, D.age
        else:
            D, z = np.asarray(D), None if z is None else np.asarray(z)
            kept = [(D[rows], None if z is None else z[rows]) for rows in self.rows]
        tasks = zip(self.parts, kept, strict=True)
        found = self.on_all(_advance, [(part, each, update, risk, Q, V, most) for part, each in tasks])
        several = self.fetched(self.on_all(itemgetter(1), [(each,) for each in found]))
        sums = Sums(*(np.sum(each, axis=0) for each in zip(*several, strict=True)))

        def remember(*update: Any) -> Remote:
            return Remote(self, found, age + 1, update)

        return OutputStep(sums, Remote(self, found, age + 1), remember)

    def sum_risk(self, risk: str, Q: np.ndarray) -> RiskSums:
        """A risk, on the workers."""
        found = self.fetched(self.on_all(_risk, [(part, risk, Q) for part in self.parts]))

        def fields() -> np.ndarray:
            return np.concatenate(self.fetched(self.on_all(_fields, [(part, risk, Q) for part in self.parts])))

        return RiskSums(float(sum(loss for loss, _ in found)), np.sum([smooth for _, smooth in found], axis=0), fields)
