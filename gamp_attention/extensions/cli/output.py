"""Output of commands: checks of all paths before the work, and reports as text or JSON."""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from gamp_attention._tools import check, files
from gamp_attention._tools.choices import FURTHER_STARTS, STARTS
from gamp_attention._tools.progress import clear
from gamp_attention.extensions.cli.options import quote_options
from gamp_attention.extensions.comparison.figures import require_format

FIT = "a result of gamp-attention fit"  # kind of a file; KINDS has the kinds of the files that options name
KINDS = {"out": FIT, "plot": files.PICTURE, "checkpoint": files.CHECKPOINT, "json": files.REPORT}
# remedies in Python in the messages of training, and the options of `gamp-attention` that commands print instead
REMEDIES = {
    re.compile(r"(?:a larger max_iter or )?minimize_risk\(data, result\.Q.*?\)(?= continues)"): "--init RESULT.npz",
    re.compile(r"gamp_attention\.train leaves it \(escape=True\)"): "--escape leaves it",
}


def check_outputs(options: argparse.Namespace) -> None:
    """Raise before the work if a result cannot be written, is an input, or would replace a file of the user."""
    given, inputs = vars(options), list[tuple[str, str]]()  # an input is the argument that names a file, and the file
    if options.command == "fit":
        arrays = Path(options.data)
        if not arrays.exists():
            raise ValueError(f"{options.data}: there is no such file")
        options.out = options.out or f"{arrays if arrays.is_dir() else arrays.with_suffix('')}.fit.npz"
        names = {"tokens.npy", "outputs.npy", "positions.npy"} | {path.name for path in arrays.glob("*.npy")}
        inputs = [("an array of the input DATA", str(arrays / name)) for name in sorted(names)]
        inputs.append(("the input DATA", options.data))
        if options.init not in (*STARTS, *FURTHER_STARTS):
            inputs.append(("the input --init", options.init))
    outputs = [(f"--{name}", given[name], kind) for name, kind in KINDS.items() if given.get(name) is not None]
    outputs = [output for output in outputs if output[:2] != ("--json", "-")]
    files.require_distinct([output[:2] for output in outputs], inputs)
    for flag, path, kind in outputs:
        if path in ("", "-") or Path(path).is_dir():
            raise check.fail(flag, path, "the name of a file")
        if kind == files.PICTURE:
            require_format(flag, path)
        files.require_folder(flag, path)
        if kind == files.CHECKPOINT:
            files.require_checkpoint(flag, path)
        else:
            files.require_replaceable(flag, path, kind, options.force)


def say(options: argparse.Namespace, text: str) -> None:
    """Print a text, with options in place of arguments of Python: to standard error if JSON goes to standard output."""
    clear()
    for remedy, option in REMEDIES.items():
        text = remedy.sub(option, text)
    print(quote_options(text, options.flags), file=sys.stderr if options.json == "-" else sys.stdout, flush=True)


def report(options: argparse.Namespace, text: str, data: dict[str, Any], finished: bool = True) -> int:
    """Print the text, write the data for --json, and return the exit status; unfinished runs replace no file."""
    say(options, text)
    if options.json:
        written = json.dumps({files.MARK: files.mark(files.REPORT, data), **data}, allow_nan=False) + "\n"
        if options.json == "-":
            sys.stdout.write(written)
        else:
            target = options.json if finished else files.path_of_unfinished(options.json)
            files.write_atomically(
                target, lambda f: f.write(written.encode()), name="--json", kind=files.REPORT, overwrite=options.force
            )
            if target != options.json:
                say(options, f"The report is in {target}.")
    return 0 if finished else 1


def select(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the options with these names, as keywords of a function."""
    return {name: getattr(options, name) for name in names}
