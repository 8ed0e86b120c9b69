"""Experiments of many independent trials: each is stored as it ends, on any executor, and none is run twice."""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gamp_attention._core.files import write_aside
from gamp_attention._core.text import plain
from gamp_attention.experiments.sweeps.digests import short_hash
from gamp_attention.experiments.sweeps.scheduler import run_chains
from gamp_attention.experiments.sweeps.store import Store


def complete_rows(
    path: Path, plan: Mapping[Hashable, Callable[[], list[dict[str, Any]]]],
    key: Callable[[dict[str, Any]], Hashable], description: str,
) -> list[dict[str, Any]]:  # fmt: skip
    """All rows of a file of JSON lines, with those of a plan that it lacks.

    Parameters
    ----------
    path : the file; each part of the plan adds its rows when it ends.
    plan : what computes the rows of a key.
    key : that of a row.
    description : of the progress bar.
    """
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {key(row) for row in rows}
    with path.open("a") as file:
        for each in tqdm([each for each in plan if each not in known], desc=description, disable=None):
            new = plan[each]()
            file.write("".join(json.dumps(row) + "\n" for row in new))
            file.flush()
            rows += new
    return rows


def complete_parts(path: Path, parts: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Numbers of named parts in a JSON file, with those that it lacks."""
    numbers = json.loads(path.read_text()) if path.exists() else {}
    for name, part in parts.items():
        if name not in numbers:
            numbers[name] = plain(part())
            write_json(path, numbers)
    return numbers


def write_json(path: Path, numbers: dict[str, Any]) -> None:
    """Write numbers and arrays as JSON, to a file that is whole or absent."""
    text = json.dumps(plain(numbers), indent=1) + "\n"
    write_aside(path, lambda file: file.write(text.encode()), overwrite=True)


FORMER_MODULES = {  # modules that have moved, by the names under which their trials were stored
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


def hash_origin(function: Callable[..., dict[str, Any]]) -> str:
    """A hash of where a function is from, which says whose trials a folder holds."""
    return short_hash([FORMER_MODULES.get(function.__module__, function.__module__), function.__name__])


def run_trials(
    folder: Path, function: Callable[..., dict[str, Any]], arguments: Sequence[dict[str, Any]], executor: Any = None,
    *, version: int = 1,
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of all calls, with arguments and results. Raise the version when the function changes."""
    jobs, store = [Trial(function, each, version) for each in arguments], Store(folder)
    store.begin({"model": hash_origin(function)})
    run_chains([[job] for job in jobs], store, executor)
    rows = [store.load(job.key) for job in jobs]
    failed = [row for row in rows if row is None or row["error"]]
    for row in failed:
        print(f"failed: {row and {name: row[name] for name in arguments[0]}}: {row and row['error']}")
    return [row for row in rows if row is not None and not row["error"]]
