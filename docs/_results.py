"""Pages of the validation scripts: claim, command and stored results with their date, commit and versions."""

import re
from pathlib import Path
from typing import Any

from validation._tools import catalog
from validation._tools.catalog import Script

STORED = catalog.ROOT / "results"
ABOUT = ("versions", "when", "commit", "held", "failed")
MAX_ROWS, MAX_COLUMNS = 16, 10


def load_stored(name: str) -> Any:
    """Load the stored results of a script."""
    return catalog.load_result(STORED / f"{name}.json")


def format_number(value: float, digits: int = 3) -> str:
    """Format a number with few digits, without an exponent for large integers."""
    return f"{value:.{digits}g}" if abs(value) < 10**digits or value != round(value) else str(round(value))


def build_substitutions() -> dict[str, str]:
    """Return the numbers that pages of the manual quote as {{ name }}."""
    speed, jumps = load_stored("speed"), load_stored("rs_validity")["predictions"]["1.5 stein"]["jump_share"]
    values = {"jump_percent": f"{100 * abs(jumps):.0f} %"}
    for end, dtype in (("", "float64"), ("_single", "float32")):
        least = speed["iteration"][dtype]["least"]
        values |= {f"{part}{end}": f"{least[part]:.2f}" for part in ("stream", "cached", "loops", "prox")}
    values["bandwidth"] = format_number(speed["iteration"]["float64"]["bandwidth"] / 1e9, 2)
    return values


def write_pages(folder: Path) -> Path:
    """Write a page for every script and a table of all scripts, and remove pages of scripts that no longer exist."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {script.name: build_script_page(script) for script in catalog.scripts()}
    for path in folder.glob("*.md"):
        if path.stem not in pages:
            path.unlink()
    for name, text in pages.items():
        write_changed(folder / f"{name}.md", text)
    write_changed(folder.parent / "validation_index.md", build_index())
    return folder


def write_changed(path: Path, text: str) -> None:
    """Write a file unless it has this text, because Sphinx builds every page again whose file is newer."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def build_index() -> str:
    """Return a section for each group: a table of its scripts with the claim and the result of each."""
    parts = []
    for group in catalog.GROUPS:
        parts += [f"## {catalog.title(group)}", f"`python -m validation {group}` runs all scripts of this section."]
        scripts = [script for script in catalog.scripts() if script.group == group]
        parts.append("\n".join(["| script | claim | checks |", "|---|---|---|", *map(_format_row, scripts)]))
        entries = "\n".join(f"generated/validation/{script.name}" for script in scripts)
        parts.append(f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n{entries}\n```")
    return "\n\n".join(parts) + "\n"


def _format_row(script: Script) -> str:
    title = script.description.partition("\n")[0].rstrip(".")
    results = [catalog.load_result(path) for path in script.results(STORED)]
    held, failed = (sum(len(result[key]) for result in results) for key in ("held", "failed"))
    checks = (f"{held} hold" + f", **{failed} fail**" * bool(failed)) if results else "not stored"
    return f"| [`{script.name}`](generated/validation/{script.name}.md) | {_escape_prose(title)} | {checks} |"


def build_script_page(script: Script) -> str:
    """Return the page of a script: its claim, the command that runs it, and its stored results."""
    title, _, rest = script.description.partition("\n")
    parts = [f"# {script.name}", _escape_prose(title), _escape_prose(rest)]
    parts.append(f"```bash\npython -m validation {script.name}\n```")
    parts += [_format_result(path, title) for path in script.results(STORED)] or [
        "No results of this script are stored."
    ]
    return "\n\n".join(parts) + "\n"


def _format_result(path: Path, claim: str) -> str:
    result, name = catalog.load_result(path), path.stem
    versions = ", ".join(f"{module} {version}" for module, version in result["versions"].items())
    parts = [f"**{path.name}**, {result['when']}, commit {result['commit']}: {versions}."]
    if result["failed"]:
        parts.append("These checks failed:\n\n" + "\n".join(f"- {_escape_prose(claim)}" for claim in result["failed"]))
    else:
        parts.append(f"All {len(result['held'])} checks held.")
    if (STORED / f"{name}.png").exists():
        parts.append(f"![Results of {name}. {_escape_prose(claim)}](../../../validation/results/{name}.png)")
    table = STORED / f"{name}.md"
    if table.exists():
        parts.append(table.read_text().strip())
    else:
        numbers = {key: value for key, value in result.items() if key not in ABOUT}
        parts += ["<details><summary>Numbers</summary>", *format_tables(numbers), "</details>"]
    return "\n\n".join(parts)


def _escape_prose(text: str) -> str:
    """Convert the plain text of a docstring to Markdown; text between backticks is not changed."""
    parts = re.split(r"(`[^`]+`)", text.strip())
    return "".join(part if part.startswith("`") else re.sub(r"([_|*<$`])", r"\\\1", part) for part in parts)


def format_tables(numbers: Any) -> list[str]:
    """Return tables of all dicts of plain values in stored results; dicts with the same keys share a table."""
    groups: dict[tuple[str, ...], list[tuple[str, dict[str, Any]]]] = {}
    for location, row in _iterate_rows(numbers, ()):
        groups.setdefault(tuple(row), []).append((location, row))
    return [_format_table(list(keys), rows) for keys, rows in groups.items()]


def _iterate_rows(value: Any, keys: tuple[str, ...]) -> Any:
    """Yield the location and the plain entries of every dict that has plain values."""
    if isinstance(value, dict):
        plain = {key: entry for key, entry in value.items() if _is_plain(entry)}
        if plain and keys:
            yield " ".join(keys), plain
        value = value.items()
    elif isinstance(value, list):
        value = enumerate(value)
    else:
        return
    for key, entry in value:
        yield from _iterate_rows(entry, (*keys, str(key)))


def _is_plain(entry: Any) -> bool:
    is_pair = isinstance(entry, list) and len(entry) == 2 and all(isinstance(v, int | float) for v in entry)
    return is_pair or isinstance(entry, str | int | float)


def _format_table(keys: list[str], rows: list[tuple[str, dict[str, Any]]]) -> str:
    keys, hidden = keys[:MAX_COLUMNS], max(len(keys) - MAX_COLUMNS, 0)
    lines = ["| | " + " | ".join(map(_escape_prose, keys)) + " |", "|---" * (len(keys) + 1) + "|"]
    for location, row in rows[:MAX_ROWS]:
        lines.append(f"| {_escape_prose(location)} | " + " | ".join(_format_cell(row[key]) for key in keys) + " |")
    more = [f"{n} more {unit}" for n, unit in ((len(rows) - MAX_ROWS, "rows"), (hidden, "columns")) if n > 0]
    return "\n".join(lines) + ("\n\nThe file has " + " and ".join(more) + "." if more else "")


def _format_cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_format_cell, value))
    return format_number(value) if isinstance(value, float) else _escape_prose(str(value))
