"""Storage of partial results, so that an interrupted script resumes: rows, parts and independent trials.

Trials are calls of one function with different arguments: each is stored when it ends, on any executor, and is not
computed again.
"""

import fcntl
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gamp_attention._tools.display import to_json
from gamp_attention._tools.files import write_atomically
from gamp_attention.extensions.sweeps.jobs import short_hash
from gamp_attention.extensions.sweeps.scheduler import run_chains
from gamp_attention.extensions.sweeps.store import Store


def complete_rows(
    path: Path, plan: Mapping[Hashable, Callable[[], list[dict[str, Any]]]],
    key: Callable[[dict[str, Any]], Hashable], description: str,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return all rows of a file of JSON lines, after computing the rows of a plan that the file lacks.

    Several processes may complete a file at the same time: a part that another process has stored is not computed.

    Parameters
    ----------
    path : the file; each part of the plan appends its rows when it ends.
    plan : for each key, a function that computes its rows.
    key : a function that returns the key of a row.
    description : label of the progress bar.
    """
    missing = plan.keys() - set(map(key, read_rows(path, key)))
    for each in tqdm([each for each in plan if each in missing], desc=description, disable=None):
        if each not in map(key, read_rows(path, key)):  # another process may have computed it
            append_rows(path, each, plan[each](), key)
    return read_rows(path, key)


def read_rows(path: Path, key: Callable[[dict[str, Any]], Hashable]) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines; none if it does not exist.

    If the last line was cut off, because the process was killed or the disk was full, the part that it belongs to is
    left out, so that it is computed again.
    """
    return [row for row, _ in _complete_lines(path, key)]


def append_rows(
    path: Path, part: Hashable, rows: Sequence[dict[str, Any]], key: Callable[[dict[str, Any]], Hashable]
) -> None:
    """Append the rows of a part to a file of JSON lines, unless another process has done so; all of them or none."""
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    with path.open("ab", buffering=0) as file:  # a buffer would be written again when the file is closed
        fcntl.flock(file, fcntl.LOCK_EX)
        stored = _complete_lines(path, key)
        if part in (key(row) for row, _ in stored):
            return
        end = stored[-1][1] if stored else 0
        file.truncate(end)
        try:
            while text:
                text = text[file.write(text) :]
        except BaseException:
            file.truncate(end)
            raise


def _complete_lines(path: Path, key: Callable[[dict[str, Any]], Hashable]) -> list[tuple[dict[str, Any], int]]:
    """Return the rows of all complete parts of a file, and for each the position at which its line ends."""
    content, lines, end = path.read_bytes() if path.exists() else b"", list[tuple[dict[str, Any], int]](), 0
    *whole, cut = content.split(b"\n")
    for number, line in enumerate(whole, start=1):
        end += len(line) + 1
        try:
            lines.append((json.loads(line), end))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: needs a row in JSON, got {line[:40]!r}") from error
    if cut and lines:
        last = key(lines[-1][0])
        while lines and key(lines[-1][0]) == last:
            lines.pop()
    return lines


def complete_instances(
    path: Path, run: Callable[[int, int], list[dict[str, Any]]], counts: Mapping[int, int]
) -> list[dict[str, Any]]:
    """Return the rows of instances 0, 1, … of each d, stored or computed now by `run(d, seed)`.

    `counts` has the number of instances by d. Each row has the entries "d" and "seed"; other rows of the file are left
    out.
    """
    plan = {(d, seed): partial(run, d, seed) for d, count in counts.items() for seed in range(count)}
    rows = complete_rows(path, plan, itemgetter("d", "seed"), "instances")
    return [row for row in rows if (row["d"], row["seed"]) in plan]


def complete_parts(path: Path, parts: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return the numbers of named parts in a JSON file, after computing the parts that the file lacks."""
    numbers = json.loads(path.read_text()) if path.exists() else {}
    for name, part in parts.items():
        if name not in numbers:
            numbers[name] = to_json(part())
            write_json(path, numbers)
    return numbers


def write_json(path: Path, numbers: dict[str, Any]) -> None:
    """Write numbers and arrays as JSON; an interruption leaves either the old file or the new one."""
    text = json.dumps(to_json(numbers), indent=1) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()), overwrite=True)


FORMER_MODULES = {  # former names of modules, under which their trials were stored
    "validation.paper._architectures.instances": "validation._architectures",
    "validation.paper._architectures.theory": "validation._architecture_theory",
}


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


def hash_origin(function: Callable[..., dict[str, Any]]) -> str:
    """Return a hash of the module and name of a function, which identifies the trials of a folder."""
    return short_hash([FORMER_MODULES.get(function.__module__, function.__module__), function.__name__])


def run_trials(
    folder: Path, function: Callable[..., dict[str, Any]], arguments: Sequence[dict[str, Any]], executor: Any = None,
    *, version: int = 1,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the rows of all calls, with arguments and results. Increase `version` when the function changes."""
    jobs, store = [Trial(function, each, version) for each in arguments], Store(folder)
    store.begin({"model": hash_origin(function)})
    run_chains([[job] for job in jobs], store, executor)
    rows = [store.load(job.key) for job in jobs]
    failed = [row for row in rows if row is None or row["error"]]
    for row in failed:
        print(f"failed: {row and {name: row[name] for name in arguments[0]}}: {row and row['error']}")
    return [row for row in rows if row is not None and not row["error"]]
