"""Independent trials, each of which is stored when it ends, so that an interrupted script resumes.

Trials are calls of one function with different arguments, on any executor; a stored trial is not computed again.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gamp_attention._tools.display import to_json
from gamp_attention._tools.files import write_atomically
from gamp_attention.extensions.sweeps.jobs import short_hash
from gamp_attention.extensions.sweeps.scheduler import run_chains
from gamp_attention.extensions.sweeps.store import Store


def write_json(path: Path, numbers: dict[str, Any]) -> None:
    """Write numbers and arrays as JSON; an interruption leaves either the old file or the new one."""
    text = json.dumps(to_json(numbers), indent=1) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()), overwrite=True)


@dataclass(frozen=True, eq=False)
class Trial:
    """A call of a module-level function with plain arguments, as a job for `sweeps.scheduler`."""

    function: Callable[..., dict[str, Any]]
    arguments: dict[str, Any]
    version: int

    @property
    def key(self) -> str:
        """Hash of the function's name, the version and the arguments."""
        return short_hash([self.function.__name__, self.version, self.arguments])

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the arguments."""
        return self.arguments

    def run(self, previous: dict[str, Any] | None) -> dict[str, Any]:
        """Return the result of the function; the entry "error" has the message of an exception, or None."""
        try:
            return self.function(**self.arguments) | {"error": None}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}


def run_trials(
    folder: Path, function: Callable[..., dict[str, Any]], arguments: Sequence[dict[str, Any]], executor: Any = None,
    *, version: int = 1,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the rows of all calls, with arguments and results. Increase `version` when the function changes."""
    jobs, store = [Trial(function, each, version) for each in arguments], Store(folder)
    store.begin({"model": short_hash([function.__module__, function.__name__])}, [job.key for job in jobs])
    run_chains([[job] for job in jobs], store, executor)
    rows = [store.load(job.key) for job in jobs]
    failed = [row for row in rows if row is None or row["error"]]
    for row in failed:
        print(f"failed: {row and {name: row[name] for name in arguments[0]}}: {row and row['error']}")
    return [row for row in rows if row is not None and not row["error"]]
