"""Message passing on samples that are distributed over the workers of a dask cluster.

Each worker has blocks of tokens, with the memory D and the minimizers z of their samples. An iteration sends Q, V, W
and arrays of their size, and receives sums. If a worker dies, dask computes its arrays again: tokens are read from
their store, and D and z are computed from the last copy in this process, which is made every MAX_AGE iterations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.problem.losses.attention import RiskTerms
from gamp_attention.problem.passes import (
    Effort,
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
from gamp_attention.problem.sources import Group
from gamp_attention.problem.stores import TokenStore

MAX_AGE = 25  # maximum number of iterations that dask has to repeat if a worker dies
Update = tuple[Memory, np.ndarray, np.ndarray, float]  # rule, V, W and β, from which the next memory D is computed


class SampleState(NamedTuple):
    """Arrays of the samples of a worker after an iteration: the memory D before it, and its z and g."""

    D: np.ndarray
    z: np.ndarray
    g: np.ndarray


def _load(store: TokenStore, rows: slice, positions: np.ndarray, *others: Any) -> Part:
    return Part(TokenMatrix(store.read(rows), positions), *others)


def _advance(
    part: Part, before: Any, update: Update | None, risk: str, Q: np.ndarray, V: np.ndarray, effort: Effort
) -> tuple[SampleState, Sums]:
    """Return the state after an iteration. `before` is (D, z), or the previous outcome if `update` is given."""
    D, z = before if update is None else (_rows(part, before, update), before[0].z)
    out = output_step(part, risk, Q, D, V, z, effort)
    assert out.denoised is not None
    return SampleState(D, out.z, out.denoised.g), out.sums


def _rows(part: Part, outcome: tuple[SampleState, Any], update: Update | None) -> np.ndarray:
    """Return z of an iteration, or the next memory D if `update` is given."""
    state, _ = outcome
    return state.z if update is None else next_memory(part.groups, state.D, state.g, *update)


def _risk(part: Part, risk: str, Q: np.ndarray) -> tuple[float, np.ndarray]:
    sums = sum_risk(part, risk, Q)
    return sums.loss, sums.smooth


def _fields(part: Part, risk: str, Q: np.ndarray) -> np.ndarray:
    return sum_risk(part, risk, Q).fields()


@dataclass(frozen=True, eq=False)
class Remote:
    """Array of all samples on the workers, fetched by numpy.asarray: z if `update` is None, else the next memory D."""

    data: "DistributedDataset"
    outcomes: list[Any]  # futures of (SampleState, sums), one for each part
    age: int  # number of iterations since the array was in this process
    update: Update | None = None

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        tasks = zip(self.data.parts, self.outcomes, strict=True)
        parts = self.data.on_all(_rows, [(part, outcome, self.update) for part, outcome in tasks])
        return np.concatenate(self.data.fetch(parts))


class DistributedDataset(Dataset):
    """Dataset whose tokens are distributed over the workers of a dask cluster, for `run_gamp` without acceleration.

    Results equal the results of the original dataset with `accelerate=False`, up to the order of sums. Each worker
    reads tokens from the store, so files must be accessible to all workers. `V_hat`, `memory`, settling and checkpoints
    work as usual; settling, surveys, and the curvature at the end, read the tokens in this process.

    Parameters
    ----------
    data : a dataset with tokens in a store: sampled with `storage`, or built from memory-mapped or chunked arrays.
    client : a `distributed.Client`.
    n_blocks : number of parts into which the samples are divided; two for each worker if not given.

    Raises
    ------
    TypeError : if `data` is not a Dataset, or `client` is not a client of dask.
    ValueError : if the tokens are in the memory of this process, or `n_blocks` is below 1.

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
            raise check.fail_words("data", type(tokens).__name__, needs)
        if not (hasattr(client, "submit") and hasattr(client, "gather") and hasattr(client, "nthreads")):
            raise check.fail("client", client, "a distributed.Client", TypeError)
        if n_blocks is None:
            n_blocks = 2 * max(1, len(client.nthreads()))
        n_blocks = check.integer("n_blocks", n_blocks, low=1)
        n, grain = data.n_samples, tokens.grain
        edges = [min(n, round(n * k / n_blocks / grain) * grain) for k in range(n_blocks)] + [n]
        rows = [slice(a, b) for a, b in pairwise(edges) if a < b]
        vars(self).update(vars(data), client=client, rows=rows)
        vars(self)["parts"] = self.on_all(_load, [(tokens, block, *self._describe_part(block)) for block in rows])

    def replace(self, **changes: Any) -> "Dataset":
        """Return a dataset of the same samples with another penalty, rank or student, see `Dataset.replace`."""
        changed = super().replace(**changes)
        if not {"rank", "student"} & changes.keys():
            return changed
        return DistributedDataset(changed, self.client, len(self.parts))  # the workers need the new loss

    def _describe_part(self, rows: slice) -> tuple[Any, ...]:
        """Return the positions of a part, and the fields of a Part after the matrix."""
        groups = tuple(
            Group(slice(max(group.start, rows.start) - rows.start, min(group.stop, rows.stop) - rows.start), sources)
            for group, sources in self.groups
            if group.start < rows.stop and group.stop > rows.start
        )
        risks = {name: RiskTerms(terms.params[rows], terms.constant[rows]) for name, terms in self._risks.items()}
        return self.positions, groups, self.n_sources, self.loss, risks

    def on_all(self, function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Submit a function of the arguments of each part; return the futures."""
        return [self.client.submit(function, *of_part, pure=False) for of_part in arguments]

    def fetch(self, futures: list[Any]) -> list[Any]:
        """Return the results of futures, in order."""
        return self.client.gather(futures)

    def output_step(self, risk: str, Q: np.ndarray, D: Any, V: np.ndarray, z: Any, effort: Effort) -> OutputStep:
        """Compute ω, z and g of all samples on the workers; return their sums."""
        before, update, age = None, None, 0
        if isinstance(D, Remote) and D.age < MAX_AGE:
            before, update, age = D.outcomes, D.update, D.age
        else:
            D, z = np.asarray(D), None if z is None else np.asarray(z)
            before = [(D[rows], None if z is None else z[rows]) for rows in self.rows]
        tasks = zip(self.parts, before, strict=True)
        outcomes = self.on_all(_advance, [(part, state, update, risk, Q, V, effort) for part, state in tasks])
        sums_of_parts = self.fetch(self.on_all(itemgetter(1), [(outcome,) for outcome in outcomes]))
        sums = [np.sum(terms, axis=0) for terms in zip(*sums_of_parts, strict=True)]

        def remember(*update: Any) -> Remote:
            return Remote(self, outcomes, age + 1, update)

        return OutputStep(Sums(*sums), Remote(self, outcomes, age + 1), remember)

    def sum_risk(self, risk: str, Q: np.ndarray) -> RiskSums:
        """Compute a risk and its gradient on the workers, without the penalty."""
        sums = self.fetch(self.on_all(_risk, [(part, risk, Q) for part in self.parts]))

        def fields() -> np.ndarray:
            return np.concatenate(self.fetch(self.on_all(_fields, [(part, risk, Q) for part in self.parts])))

        return RiskSums(float(sum(loss for loss, _ in sums)), np.sum([smooth for _, smooth in sums], axis=0), fields)
