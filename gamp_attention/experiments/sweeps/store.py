"""One file for each finished cell, whole or absent, with a checksum and where its numbers come from."""

import json
import math
import os
import re
import subprocess
import warnings
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gamp_attention._core import check
from gamp_attention._core.files import write_aside
from gamp_attention._version import __version__
from gamp_attention.experiments.sweeps.claims import Claims
from gamp_attention.experiments.sweeps.digests import short_hash

CELL_FILE = re.compile(r"[0-9a-f]{24}\.(json|claim|lock)|.*\.part")  # names in the folder of cells
NUMBER = "float"  # a number that JSON has no word for is {"float": "nan"}


class Store:
    """A folder with `sweep.json`, the manifest, and `cells/KEY.json`; `begin` makes it.

    Several processes may use one folder at a time; `claims` divides the cells among them.
    """

    def __init__(self, folder: str | Path) -> None:
        if not isinstance(folder, (str, os.PathLike)):
            raise check.fail("folder", folder, "a path", TypeError)
        if folder == "":  # which would be the current folder
            raise check.fail("folder", folder, "the path of a folder")
        self.folder = Path(folder).resolve()
        self._cells = self.folder / "cells"
        self.claims = Claims(self._cells)

    def begin(self, manifest: dict[str, Any]) -> None:
        """Write the manifest, plain data with at least "model", a hash of the one model that a folder is for."""
        if self.folder.exists() and not self.folder.is_dir():
            raise check.fail("folder", str(self.folder), "a folder, or a path where there is nothing")
        known = self.manifest()
        if known is not None and known.get("model") != manifest["model"]:
            needs = "a folder of its own, this one holds the cells of another model"
            raise check.fail("folder", str(self.folder), needs)
        if known is None and self._has_other_files():
            needs = "a folder of a sweep, or one without a folder 'cells' that holds other files; choose another name"
            raise check.fail("folder", str(self.folder), needs)
        try:
            self._cells.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise check.fail("folder", str(self.folder), f"a folder that can be made ({error.strerror})") from error
        if not os.access(self._cells, os.W_OK):
            raise check.fail("folder", str(self.folder), "a folder that can be written to")
        if known != manifest:
            text = json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False)
            path = self.folder / "sweep.json"
            write_aside(path, lambda file: file.write(text.encode() + b"\n"), name="folder", overwrite=True)

    def _has_other_files(self) -> bool:
        """Return whether the folder of cells, in a folder without a manifest, holds files that are no cells."""
        names = [entry.name for entry in self._cells.iterdir()] if self._cells.is_dir() else []
        return not all(CELL_FILE.fullmatch(name) for name in names)

    def manifest(self) -> dict[str, Any] | None:
        """The manifest, or None where there is none."""
        path = self.folder / "sweep.json"
        try:
            found = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise ValueError(f"folder: {path} is no manifest of a sweep: {error}") from error
        if not isinstance(found, dict) or "model" not in found:
            raise ValueError(f"folder: {path} is no manifest of a sweep")
        return found

    def path(self, key: str) -> Path:
        """The file of a cell."""
        if Path(key).name != key:  # of a manifest that was altered
            raise check.fail("folder", str(self.folder), "a manifest whose keys are no paths")
        return self._cells / f"{key}.json"

    def present(self) -> set[str]:
        """Keys of all files of cells, without reading them."""
        with os.scandir(self._cells) as entries:
            return {entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json")}

    def save(self, key: str, parameters: dict[str, Any], row: dict[str, Any], seconds: float) -> None:
        """Write the file of a cell."""
        origin = {"versions": versions(), "commit": commit(), "seconds": seconds}
        content = _encoded({"key": key, **parameters, **row, **origin})
        text = json.dumps({"checksum": short_hash(content), "content": content}, sort_keys=True, allow_nan=False)
        write_aside(self.path(key), lambda file: file.write(text.encode() + b"\n"), name="folder", overwrite=True)

    def load(self, key: str) -> dict[str, Any] | None:
        """The row of a cell with its key, parameters, versions, commit and seconds; None where there is none.

        A damaged file is named in a warning and removed, so that its cell is computed again.
        """
        path = self.path(key)
        try:
            stored = json.loads(path.read_bytes())
            content = stored["content"]
            whole = stored["checksum"] == short_hash(content) and content["key"] == key
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):  # no JSON, or other JSON
            whole = False
        if not whole:
            warnings.warn(f"{path} is damaged; its cell is computed again", RuntimeWarning, stacklevel=2)
            path.unlink(missing_ok=True)
            return None
        return _decoded(content)


@lru_cache
def versions() -> dict[str, str]:
    """Versions of the packages that numbers depend on, as far as they are installed."""
    found = {"gamp_attention": __version__}
    for name in ("numpy", "scipy", "numba", "torch"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@lru_cache
def commit() -> str | None:
    """The git commit of the checkout that the package is in, or None outside of one."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def _encoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _encoded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encoded(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {NUMBER: str(value)}
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {NUMBER}:
            return float(value[NUMBER])
        return {key: _decoded(item) for key, item in value.items()}
    return [_decoded(item) for item in value] if isinstance(value, list) else value
