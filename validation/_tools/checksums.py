"""SHA-256 checksums of all files in a folder of results, in the format of `sha256sum`."""

import hashlib
from pathlib import Path

from validation._tools.catalog import NOT_RESULTS

NAME = "SHA256SUMS"


def list_files(folder: Path) -> list[Path]:
    """Return numbers, tables, pictures and runs; files that git ignores (quick results, cells, logs) are left out."""
    return [
        path for path in sorted(folder.iterdir())
        if path.is_file() and path.name[0] != "." and path.suffix != ".part"
        and path.name != NAME and not path.stem.endswith(NOT_RESULTS) and "_quick_" not in path.stem
    ]  # fmt: skip


def compute_sums(folder: Path) -> dict[str, str]:
    """Return the checksum of each stored file, by name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in list_files(folder)}


def read_sums(folder: Path) -> dict[str, str]:
    """Return the checksums of the list in the folder; an empty dict if there is no list."""
    path = folder / NAME
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def find_differences(folder: Path) -> list[str]:
    """Return a line for each name whose file and listed checksum differ."""
    then, now = read_sums(folder), compute_sums(folder)
    words = {
        name: "missing" if name not in now else "not listed" if name not in then else "changed"
        for name in sorted(then | now) if then.get(name) != now.get(name)
    }  # fmt: skip
    return [f"{name}: {word}" for name, word in words.items()]


def write_sums(folder: Path) -> list[str]:
    """Update the list and return a line for each change."""
    changed = find_differences(folder)
    text = "".join(f"{digest}  {name}\n" for name, digest in compute_sums(folder).items())
    (folder / NAME).write_text(text, encoding="utf-8", newline="\n")
    return changed
