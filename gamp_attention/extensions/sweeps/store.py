"""Store of a sweep: one file for each finished cell.

The file of a cell is written completely or not at all. It has a checksum, and the versions of the packages and the
commit with which the cell was computed. Several processes may use one folder at a time: if two of them compute the same
cell, both obtain the same numbers, and the first file stays.
"""

import json
import os
import re
import subprocess
import warnings
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gamp_attention._tools import check
from gamp_attention._tools.files import as_path, write_atomically
from gamp_attention._version import __version__
from gamp_attention.extensions.sweeps.jobs import short_hash

CELL_FILE = re.compile(r"[0-9a-f]{24}\.json|.*\.part")  # names in the folder of cells


class Store:
    """Folder with the manifest `sweep.json` and the cells `cells/KEY.json`; `begin` creates it.

    A `temporary` folder is deleted after the call that uses it, so that messages do not propose to continue from it.
    """

    def __init__(self, folder: str | Path, temporary: bool = False) -> None:
        if folder == "":  # Path("") is the current folder
            raise check.fail("folder", folder, "the path of a folder")
        self.folder, self.temporary = as_path("folder", folder).resolve(), temporary
        self._cells, self._manifest = self.folder / "cells", self.folder / "sweep.json"

    def begin(self, manifest: dict[str, Any], keys: Iterable[str]) -> None:
        """Create the folder and write the manifest: plain data with at least "model", the hash of the model.

        Raise ValueError if the folder belongs to another model or has other files, or if it cannot be written and cells
        of `keys` are missing.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise check.fail("folder", str(self.folder), "a folder, or a path that does not exist yet")
        existing = self._read_manifest()
        if existing is not None and existing["model"] != manifest["model"]:
            needs = "another folder, because this folder has the cells of another model or of other code of its classes"
            raise check.fail("folder", str(self.folder), needs)
        names = [entry.name for entry in self._cells.iterdir()] if self._cells.is_dir() else []
        if existing is None and not all(map(CELL_FILE.fullmatch, names)):
            needs = "the folder of a sweep, or a folder whose subfolder 'cells' has no other files; choose another name"
            raise check.fail("folder", str(self.folder), needs)
        try:
            self._cells.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise check.fail("folder", str(self.folder), f"a folder that can be created ({error.strerror})") from error
        writable = os.access(self._cells, os.W_OK)
        if not writable and set(keys) - self.present():
            raise check.fail("folder", str(self.folder), "a folder that can be written to, as cells are missing")
        if existing != manifest and writable:
            text = json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False)
            write_atomically(
                self._manifest, lambda file: file.write(text.encode() + b"\n"), name="folder", overwrite=True
            )

    def _read_manifest(self) -> dict[str, Any] | None:
        """Return the manifest, or None if there is none."""
        try:
            manifest = json.loads(self._manifest.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise ValueError(f"folder: {self._manifest} is not the manifest of a sweep: {error}") from error
        if not isinstance(manifest, dict) or "model" not in manifest:
            raise ValueError(f"folder: {self._manifest} is not the manifest of a sweep")
        return manifest

    def path(self, key: str) -> Path:
        """Return the path of the file of a cell."""
        return self._cells / f"{key}.json"

    def present(self) -> set[str]:
        """Return the keys of all stored cells, without reading their files."""
        with os.scandir(self._cells) as entries:
            return {entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json")}

    def save(self, key: str, parameters: dict[str, Any], row: dict[str, Any], seconds: float) -> None:
        """Write the file of a cell."""
        origin = {"versions": versions(), "commit": commit(), "seconds": seconds}
        content = {"key": key, **parameters, **row, **origin}
        text = json.dumps({"checksum": short_hash(content), "content": content}, sort_keys=True)
        write_atomically(self.path(key), lambda file: file.write(text.encode() + b"\n"), name="folder", overwrite=True)

    def load(self, key: str) -> dict[str, Any] | None:
        """Return the row of a cell with its key, parameters, versions, commit and seconds; None if it is not stored.

        A damaged file causes a warning and is removed, so that its cell is computed again.
        """
        path = self.path(key)
        try:
            stored = json.loads(path.read_bytes())
            content = stored["content"]
            whole = stored["checksum"] == short_hash(content) and content["key"] == key
        except FileNotFoundError:
            return None
        except OSError as error:
            raise check.fail("folder", str(path), f"a cell that can be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError):  # the file is not JSON, or has other entries
            whole = False
        if not whole:
            warnings.warn(f"{path} is damaged; its cell is computed again", RuntimeWarning, stacklevel=2)
            path.unlink(missing_ok=True)
            return None
        return dict(content)


@lru_cache
def versions() -> dict[str, str]:
    """Return the versions of the installed packages that determine the numbers."""
    numbers = {"gamp_attention": __version__}
    for name in ("numpy", "scipy", "numba", "torch"):
        with suppress(PackageNotFoundError):
            numbers[name] = version(name)
    return numbers


@lru_cache
def commit() -> str | None:
    """Return the git commit of the checkout that contains the package; None for an installed package."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    words = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
