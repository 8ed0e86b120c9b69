"""Experiments of many independent trials: each is stored as it ends, on any executor, and none is run twice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gamp_attention.experiments.sweeps.cells import short_hash
from gamp_attention.experiments.sweeps.scheduler import run_chains
from gamp_attention.experiments.sweeps.store import Store

FORMER = {  # modules that have moved, by the names under which their trials were stored
    "validation.paper._architectures.instances": "validation._architectures",
    "validation.paper._architectures.theory": "validation._architecture_theory",
}


@dataclass(frozen=True, eq=False)
class Trial:
    """A call of a function of a module with plain arguments, as a job for `sweeps.scheduler`."""

    function: Callable[..., dict[str, Any]]
    arguments: dict[str, Any]
    version: int

    @property
    def key(self) -> str:
        """A hash of the function's name and version, and of the arguments."""
        return short_hash([self.function.__name__, self.version, self.arguments])

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments."""
        return self.arguments

    def run(self, previous: dict[str, Any] | None) -> dict[str, Any]:
        """What the function returns; what it raises is an entry "error" in the row."""
        try:
            return self.function(**self.arguments) | {"error": None}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}


def origin(function: Callable[..., dict[str, Any]]) -> str:
    """A hash of where a function is from, which says whose trials a folder holds."""
    return short_hash([FORMER.get(function.__module__, function.__module__), function.__name__])


def run_trials(
    folder: Path, function: Callable[..., dict[str, Any]], arguments: Sequence[dict[str, Any]], executor: Any = None,
    *, version: int = 1,
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of all calls, with arguments and results. Raise the version when the function changes."""
    jobs, store = [Trial(function, each, version) for each in arguments], Store(folder)
    store.begin({"model": origin(function)})
    run_chains([[job] for job in jobs], store, executor)
    rows = [store.load(job.key) for job in jobs]
    failed = [row for row in rows if row is None or row["error"]]
    for row in failed:
        print(f"failed: {row and {name: row[name] for name in arguments[0]}}: {row and row['error']}")
    return [row for row in rows if row is not None and not row["error"]]
