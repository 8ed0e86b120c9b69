"""Parts of an experiment that are stored as they end, so that an interrupted script goes on."""

import json
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gamp_attention._core.display import to_json
from gamp_attention._core.files import write_atomically


def kept_rows(
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


def kept_parts(path: Path, parts: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Numbers of named parts in a JSON file, with those that it lacks."""
    numbers = json.loads(path.read_text()) if path.exists() else {}
    for name, part in parts.items():
        if name not in numbers:
            numbers[name] = to_json(part())
            store(path, numbers)
    return numbers


def store(path: Path, numbers: dict[str, Any]) -> None:
    """Write numbers and arrays as JSON, to a file that is whole or absent."""
    text = json.dumps(to_json(numbers), indent=1) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()), overwrite=True)
