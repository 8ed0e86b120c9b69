"""Markdown from the numbers that validation scripts have stored: what was checked, when, with which versions."""

import ast
import json
import re
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
STORED = ROOT / "validation" / "results"
ABOUT = ("versions", "when", "commit", "held", "failed")
MOST_ROWS, MOST_COLUMNS = 16, 10


def stored(name: str) -> Any:
    """The numbers of one file."""
    return json.loads((STORED / f"{name}.json").read_text())


def number(value: float, digits: int = 3) -> str:
    """Short, without an exponent where that is not needed."""
    return f"{value:.{digits}g}" if abs(value) < 10**digits or value != round(value) else str(round(value))


def substitutions() -> dict[str, str]:
    """Numbers that stand in prose, as {{ name }}."""
    speed, jumps = stored("gamp_speed"), stored("rs_validity")["predictions"]["1.5 stein"]["jump_share"]
    found = {
        "jump_percent": f"{100 * abs(jumps):.0f} %",
        "pass_ratio": number(speed["iteration"]["float64"]["held"], 2),
    }
    times = stored("state_evolution_speed")
    found |= {"split_rough": number(times["semantic 0.0001"]["seconds"], 2)}
    found |= {"split_fine": number(times["semantic 1e-08"]["seconds"], 2)}
    for d in (1000, 4000):
        for branch, row in speed[f"solution {d}"].items():
            for name, key in (("accelerated", "n_iter"), ("damped", "n_damped")):
                counts = [one[key] for one in row["instances"]]
                found[f"{name}_{branch}_{d}"] = f"{min(counts)}, {median(counts):g}, {max(counts)}"
    return found


def results_page() -> str:
    """A section for every script, with all results that it has stored."""
    parts = [_overview()]
    for script in scripts():
        title, _, rest = (ast.get_docstring(ast.parse(script.read_text())) or "").partition("\n")
        parts.append(f"({script.stem.replace('_', '-')})=\n\n## `{script.stem}`\n\n{_prose(title)}\n\n{_prose(rest)}")
        parts += [_result(name) for name in _names(script)] or ["No results are stored of this script."]
    return "\n\n".join(parts) + "\n"


def scripts() -> list[Path]:
    """All validation scripts."""
    return [path for path in sorted((ROOT / "validation").glob("*.py")) if not path.stem.startswith("_")]


def _names(script: Path) -> list[str]:
    """Of the results of a script: its own name, and with endings such as _other."""
    others = {path.stem for path in scripts()}
    found = [path.stem for path in sorted(STORED.glob(f"{script.stem}*.json"))]
    return [name for name in found if "_quick" not in name and (name == script.stem or name not in others)]


def _overview() -> str:
    lines = ["| script | stored | checks that held | checks that failed |", "|---|---|---|---|"]
    for script in scripts():
        for name in _names(script) or [""]:
            found = stored(name) if name else {}
            held = str(len(found["held"])) if "held" in found else "not recorded" if name else ""
            link = f"[{name or script.stem}](#{script.stem.replace('_', '-')})"
            when, failed = (_when(name), len(found["failed"])) if name else ("no", "")
            lines.append(f"| {link} | {when} | {held} | {failed} |")
    return "\n".join(lines)


def _when(name: str) -> str:
    """The day that a script stored its results, or that they were committed."""
    found = stored(name)
    if "when" in found:
        return str(found["when"])
    command = ["git", "log", "-1", "--format=%cs", "--", str(STORED / f"{name}.json")]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() or "new"
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _result(name: str) -> str:
    found = stored(name)
    parts = [f"**{name}.json**, {_when(name)}: " + ", ".join(f"{k} {v}" for k, v in found["versions"].items()) + "."]
    if found["failed"]:
        parts.append("These checks failed:\n\n" + "\n".join(f"- {_prose(claim)}" for claim in found["failed"]))
    else:
        parts.append("No check failed.")
    if (STORED / f"{name}.png").exists():
        parts.append(f"![Picture of {name}](../validation/results/{name}.png)")
    table = STORED / f"{name}.md"
    if table.exists():
        parts.append(table.read_text().strip())
    else:
        numbers = {key: value for key, value in found.items() if key not in ABOUT}
        parts += ["<details><summary>Numbers</summary>", *tables(numbers), "</details>"]
    return "\n\n".join(parts)


def _prose(text: str) -> str:
    """Plain text of a docstring as Markdown, with what stands between backticks as it is."""
    parts = re.split(r"(`[^`]+`)", text.strip())
    return "".join(part if part.startswith("`") else re.sub(r"([_|*<$`])", r"\\\1", part) for part in parts)


def tables(numbers: Any) -> list[str]:
    """Tables of all dicts of plain values inside of stored numbers, those with the same keys in one table."""
    groups: dict[tuple[str, ...], list[tuple[str, dict[str, Any]]]] = {}
    for where, row in _rows(numbers, ()):
        groups.setdefault(tuple(row), []).append((where, row))
    return [_table(list(keys), rows) for keys, rows in groups.items()]


def _rows(value: Any, path: tuple[str, ...]) -> Any:
    """Every dict with plain values in it, and where it stands."""
    if isinstance(value, dict):
        plain = {key: entry for key, entry in value.items() if _is_plain(entry)}
        if plain and path:
            yield " ".join(path), plain
        value = value.items()
    elif isinstance(value, list):
        value = enumerate(value)
    else:
        return
    for key, entry in value:
        yield from _rows(entry, (*path, str(key)))


def _is_plain(entry: Any) -> bool:
    few = isinstance(entry, list) and len(entry) == 2 and all(isinstance(v, int | float) for v in entry)
    return few or isinstance(entry, str | int | float)


def _table(keys: list[str], rows: list[tuple[str, dict[str, Any]]]) -> str:
    keys, left = keys[:MOST_COLUMNS], max(len(keys) - MOST_COLUMNS, 0)
    lines = ["| | " + " | ".join(map(_prose, keys)) + " |", "|---" * (len(keys) + 1) + "|"]
    for where, row in rows[:MOST_ROWS]:
        lines.append(f"| {_prose(where)} | " + " | ".join(_cell(row[key]) for key in keys) + " |")
    more = [f"{n} more {what}" for n, what in ((len(rows) - MOST_ROWS, "rows"), (left, "columns")) if n > 0]
    return "\n".join(lines) + ("\n\nThe file has " + " and ".join(more) + "." if more else "")


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return number(value) if isinstance(value, float) else _prose(str(value))
