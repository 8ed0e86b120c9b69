"""The scripts by group, and the stored results of each."""

import ast
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

GROUPS = ("paper", "claims", "speed")
ROOT = Path(__file__).parent.parent
NOT_RESULTS = ("_parts", "_quick")  # suffixes of files that are no results
MARKER = ".gamp_attention_results"  # name of a file that marks folders of results


class Script(NamedTuple):
    """A script in the folder of its group."""

    group: str
    path: Path

    @property
    def name(self) -> str:
        """Name of the file, and of its results."""
        return self.path.stem

    @property
    def module(self) -> str:
        """Name of the module for `python -m`."""
        return f"{ROOT.name}.{self.group}.{self.name}"

    @property
    def relative_path(self) -> str:
        """Path of the file, relative to the checkout."""
        return self.path.relative_to(ROOT.parent).as_posix()

    @property
    def description(self) -> str:
        """Docstring; its first line states the claim that the script checks."""
        return ast.get_docstring(ast.parse(self.path.read_text())) or ""

    def results(self, folder: Path, quick: bool = False) -> list[Path]:
        """Return the stored results: the file of the same name, and files with a suffix such as `_other`."""
        others, end = {script.name for script in scripts()} - {self.name}, "_quick" * quick
        stems = {path: path.stem.removesuffix(end) for path in sorted(folder.glob(f"{self.name}*{end}.json"))}
        return [
            path for path, stem in stems.items()
            if stem not in others and f"{stem}_".startswith(f"{self.name}_") and not stem.endswith(NOT_RESULTS)
        ]  # fmt: skip


def scripts() -> list[Script]:
    """Return all scripts, group by group."""
    return [
        Script(group, path) for group in GROUPS for path in sorted((ROOT / group).glob("*.py"))
        if not path.stem.startswith("_")
    ]  # fmt: skip


def title(group: str) -> str:
    """Return a description of a group in a few words."""
    text = ast.get_docstring(ast.parse((ROOT / group / "__init__.py").read_text())) or group
    return text.rstrip(".")


def select_scripts(names: Sequence[str]) -> list[Script]:
    """Return the scripts of names of scripts and groups, each once, in the order of the names.

    Raises
    ------
    ValueError : if a name is neither a script, a group nor "all".
    """
    known = scripts()
    selected: dict[Script, None] = {}
    for name in names:
        matches = [script for script in known if name in ("all", script.group, script.name)]
        if not matches:
            raise ValueError(f"got {name}, need names of scripts or groups ({', '.join(GROUPS)}), or all")
        selected |= dict.fromkeys(matches)
    return list(selected)


def load_result(path: Path) -> dict[str, Any]:
    """Return the numbers of a stored result, with date, versions, commit and checks."""
    return json.loads(path.read_text())


def open_results(folder: Path) -> None:
    """Create a folder of results.

    Raises
    ------
    ValueError : if the folder has files but no results, as these files may be the user's.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARKER).touch()
    elif not (folder.is_dir() and any(map(_is_results, [folder / MARKER, *folder.glob("*.json")]))):
        raise ValueError(f"--out: needs a new or empty folder, or one of earlier results, got {folder}")


def _is_results(path: Path) -> bool:
    """Return whether a file is the marker of a folder of results, or a result that a script has stored."""
    if path.name == MARKER:
        return path.exists()
    try:
        return {"versions", "when", "held", "failed"} <= load_result(path).keys()
    except (AttributeError, ValueError):
        return False


def format_listing(folder: Path) -> str:
    """Return a line for every script: its stored results and the first line of its docstring."""
    lines = []
    for group in GROUPS:
        lines += ["", f"{group}: {title(group)}"]
        for script in (script for script in scripts() if script.group == group):
            states = {path.stem: _state(path) for path in script.results(folder)} or {script.name: "nothing stored"}
            words = script.description.partition("\n")[0]
            lines += [f"  {name:21}  {state:43}  {words}" for name, state in states.items()]
    if sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns
        lines = [line if len(line) <= columns else line[: columns - 1] + "…" for line in lines]
    return "\n".join(lines[1:])


def _state(path: Path) -> str:
    result = {"when": "", "commit": "", "held": (), "failed": ()} | load_result(path)
    commit = result["commit"].partition(" ")[0]
    return f"{result['when']:10} {commit:11} {len(result['held']):3} held {len(result['failed']):3} failed"
