"""Markdown from the numbers that validation scripts have stored: what was checked, when, with which versions."""

import re
from pathlib import Path
from statistics import median
from typing import Any

from validation._tools import catalogue
from validation._tools.catalogue import Script

STORED = catalogue.ROOT / "results"
ABOUT = ("versions", "when", "commit", "held", "failed")
MAX_ROWS, MAX_COLUMNS = 16, 10


def stored(name: str) -> Any:
    """The numbers of one file."""
    return catalogue.load_result(STORED / f"{name}.json")


def number(value: float, digits: int = 3) -> str:
    """Short, without an exponent where that is not needed."""
    return f"{value:.{digits}g}" if abs(value) < 10**digits or value != round(value) else str(round(value))


def substitutions() -> dict[str, str]:
    """Numbers that stand in prose, as {{ name }}."""
    speed, jumps = stored("gamp_speed"), stored("rs_validity")["predictions"]["1.5 stein"]["jump_share"]
    found = {
        "jump_percent": f"{100 * abs(jumps):.0f} %",
    }
    for end, dtype in (("", "float64"), ("_single", "float32")):
        row = speed["iteration"][dtype]
        found |= {f"{part}{end}": f"{row['least'][part]:.2f}" for part in ("stream", "cached", "loops", "prox")}
    found["bandwidth"] = number(speed["iteration"]["float64"]["bandwidth"] / 1e9, 2)
    gaps = stored("jump_gaps")
    for name, key in (("scatter", "shift"), ("mass_scatter", "jump mass"), ("forms_scatter", "forms")):
        factor, spread = gaps["fits"][key]
        found[f"jump_{name}"] = f"{100 * spread / factor:.0f} %"
    found |= {"jump_models": str(gaps["fits"]["models"]), "jump_factor": number(gaps["fits"]["shift"][0])}
    found |= {f"jump_largest_{key}": f"{-100 * low:.0f} %" for key, low in gaps["fits"]["largest"].items()}
    low = stored("explorer")["low"]
    found |= {f"low_{name}": number(median(row[name] for row in low), 2) for name in ("q", "step_q", "kept")}
    found |= {"low_count": str(len(low)), "low_least": f"{100 - 100 * min(row['q'] for row in low):.0f} %"}
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
    """A section for every group and script, with all results that it has stored."""
    parts = [_overview()]
    for group in catalogue.GROUPS:
        parts.append(f"## {catalogue.title(group)}")
        for script in (script for script in catalogue.scripts() if script.group == group):
            title, _, rest = script.description.partition("\n")
            parts += [f"({_anchor(script)})=\n\n### `{script.name}`", _prose(title), _prose(rest)]
            parts += [_result(path) for path in script.results(STORED)] or ["No results are stored of this script."]
    return "\n\n".join(parts) + "\n"


def _anchor(script: Script) -> str:
    return script.name.replace("_", "-")


def _overview() -> str:
    lines = ["| | script | stored | commit | checks that held | that failed |", "|---|---|---|---|---|---|"]
    for script in catalogue.scripts():
        for path in script.results(STORED):
            found = catalogue.load_result(path)
            counts = (str(len(found[key])) for key in ("held", "failed"))
            words = (script.group, f"[{path.stem}](#{_anchor(script)})", found["when"], found["commit"], *counts)
            lines.append(f"| {' | '.join(words)} |")
    return "\n".join(lines)


def _result(path: Path) -> str:
    found, name = catalogue.load_result(path), path.stem
    versions = ", ".join(f"{module} {version}" for module, version in found["versions"].items())
    parts = [f"**{path.name}**, {found['when']}, commit {found['commit']}: {versions}."]
    if found["failed"]:
        parts.append("These checks failed:\n\n" + "\n".join(f"- {_prose(claim)}" for claim in found["failed"]))
    else:
        parts.append(f"All {len(found['held'])} checks held.")
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
    keys, left = keys[:MAX_COLUMNS], max(len(keys) - MAX_COLUMNS, 0)
    lines = ["| | " + " | ".join(map(_prose, keys)) + " |", "|---" * (len(keys) + 1) + "|"]
    for where, row in rows[:MAX_ROWS]:
        lines.append(f"| {_prose(where)} | " + " | ".join(_cell(row[key]) for key in keys) + " |")
    more = [f"{n} more {what}" for n, what in ((len(rows) - MAX_ROWS, "rows"), (left, "columns")) if n > 0]
    return "\n".join(lines) + ("\n\nThe file has " + " and ".join(more) + "." if more else "")


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return number(value) if isinstance(value, float) else _prose(str(value))
