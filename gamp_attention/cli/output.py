"""What commands write: targets are tried before the work, and text stays out of JSON on standard output."""

import argparse
import sys
import tempfile
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from gamp_attention._core.files import write_json
from gamp_attention._core.progress import clear
from gamp_attention.experiments.figures import require_format


def forgiving_streams() -> None:
    """Print "?" for what a terminal's encoding lacks, such as Greek letters, in place of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def check_target(flag: str, target: str | None) -> None:
    """Raise before the work if its result cannot be written: a temporary file is tried in the same folder."""
    if target is None or (target == "-" and flag == "--json"):
        return
    try:
        if target in ("", "-") or Path(target).is_dir():
            raise ValueError("it is not the name of a file")
        with tempfile.TemporaryFile(dir=Path(target).parent):
            pass
        if flag == "--plot":
            require_format(target)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"{flag}: {target!r} cannot be written: {why}") from error


def say(options: argparse.Namespace, text: str) -> None:
    """Print for a reader: to standard error where JSON goes to standard output."""
    clear()
    print(text, file=sys.stderr if options.json == "-" else sys.stdout)


def report(options: argparse.Namespace, text: str, data: dict[str, Any]) -> None:
    """Say the text, and write the data where --json asks for them."""
    say(options, text)
    if options.json:
        write_json(options.json, data)


def chosen(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Options that a function takes under the same names."""
    return {name: getattr(options, name) for name in names}
