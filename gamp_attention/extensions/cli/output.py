"""Output of commands: checks of all paths before the work, and reports as text or JSON."""

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from gamp_attention._tools.choices import FURTHER_STARTS, STARTS
from gamp_attention._tools.files import (
    CHECKPOINT,
    DATASET,
    MARK,
    PICTURE,
    REPORT,
    mark,
    path_of_unfinished,
    require_checkpoint,
    require_distinct,
    require_replaceable,
    same_path,
    write_atomically,
)
from gamp_attention._tools.optional import require_modules
from gamp_attention._tools.progress import clear
from gamp_attention.extensions.cli.options import quote_options
from gamp_attention.extensions.comparison.figures import require_format
from gamp_attention.extensions.train.loading import ARRAYS, TORCH_FILES

FIT, PREDICTIONS = "a result of gamp-attention fit", "predictions of gamp-attention predict"  # kinds of files
DEFAULT_NAMES = {"fit": "fit", "predict": "predictions"}  # commands with --out, and the default endings of its name
EXTENSIONS = 8  # maximum number of extensions of a path, each with a checkpoint
# extensions of binary files that can be read by their name only; a name without extension is allowed
SUFFIXES = {FIT: (".npz",), PREDICTIONS: (".npz",), DATASET: (".nc", ".nc4", ".cdf", ".h5", ".hdf5")}
# remedies in Python in the messages of training, and the options of `gamp-attention fit` that commands print instead; a
# remedy may also name its option in parentheses
REMEDIES = {
    re.compile(r"(?:a larger max_iter or )?minimize_risk\(data, result\.Q.*?\)(?= continues)"): "--init RESULT.npz",
    re.compile(r"minimize_risk\(data, result\.starts.*?\), or another seed,"): "another --seed",
    re.compile(r"gamp_attention\.train leaves it \(escape=True\)"): "--escape leaves it",
    re.compile(r'response="derivative"'): "--response derivative",
    re.compile(r"(?:(?:run_gamp|regularization_path)\(.*?\)|`groups`) \(gamp-attention fit: (.*?)\)"): r"\1",
}


class Output(NamedTuple):
    """A file that a command writes."""

    flag: str  # the option that names it
    path: str
    kind: str  # kind of the contents, see `_core.files`


def check_extras(options: argparse.Namespace) -> None:
    """Raise ImportError with all optional packages that a command needs and that are not installed."""
    given = vars(options)
    needed = ["torch"] * ("GD" in (given.get("method") or ()))
    needed += ["torch"] * (Path(given.get("data") or "").suffix in TORCH_FILES)
    needed += ["matplotlib"] * bool(given.get("plot"))
    needed += ["xarray", "h5netcdf", "h5py"] * bool(options.command == "sweep" and given.get("out"))
    needed += ["distributed"] * bool(given.get("dask"))
    needed += ["sklearn"] * (given.get("classes", 1) != 1)
    require_modules(f"gamp-attention {options.command}", *needed)


def check_outputs(options: argparse.Namespace) -> None:
    """Raise before the work if a result cannot be written, is an input, or would replace a file of the user."""
    given = vars(options)
    for name in ("data", "result"):
        if given.get(name) is not None and not Path(given[name]).exists():
            raise ValueError(f"{given[name]}: there is no such file")
    if options.command in DEFAULT_NAMES and options.out is None:
        arrays = Path(options.data)
        options.out = f"{arrays if arrays.is_dir() else arrays.with_suffix('')}.{DEFAULT_NAMES[options.command]}.npz"
    outputs = list(_outputs(options))
    folder = given.get("folder")
    manifest = [] if folder is None else [("the list of cells of the folder", str(Path(folder) / "sweep.json"))]
    require_distinct([*manifest, *((output.flag, output.path) for output in outputs)], _inputs(options))
    for output in outputs:
        if folder is not None and same_path(Path(os.path.realpath(output.path)).parent, Path(folder) / "cells"):
            needs = "a file outside of the folder of cells, as inputs are never replaced"
            raise ValueError(f"{output.flag}: needs {needs}, got {output.path!r}; choose another name")
        _check_target(output, options.force)


def target_of(options: argparse.Namespace, path: str, kind: str, finished: bool) -> str:
    """Return the path to which an output is written: `path`, or a similar name instead of the output of a finished run.

    The other name, which is no input, is only for runs that were interrupted or did not converge (`finished` is False).
    """
    inputs = [source for _, source in _inputs(options)]
    return path if finished else path_of_unfinished(path, kind, inputs, options.force)


def picture_of_path(plot: str) -> str:
    """Return the name of the picture of a regularization path, next to the picture of the fit."""
    return str(Path(plot).with_name(f"{Path(plot).stem}.path{Path(plot).suffix}"))


def checkpoint_of_path(checkpoint: str, extension: int = 0) -> str:
    """Return the name of the checkpoint of a regularization path, or of its extensions from number 1 on."""
    return str(Path(checkpoint).with_suffix(f".path{extension or ''}.npz"))


def _outputs(options: argparse.Namespace) -> Any:
    """Yield all files that a command writes, with the names that it derives from others."""
    given = vars(options)
    along = given.get("path") is not None
    if given.get("out") is not None:
        kind = {"sweep": DATASET, "predict": PREDICTIONS}.get(options.command, FIT)
        yield Output("--out", options.out, kind)
    if given.get("plot") is not None:
        yield Output("--plot", options.plot, PICTURE)
        if along and options.plot:
            yield Output("--plot with --path", picture_of_path(options.plot), PICTURE)
    if given.get("checkpoint") is not None:
        yield Output("--checkpoint", options.checkpoint, CHECKPOINT)
        if along and options.checkpoint:
            for extension in range(EXTENSIONS + 1):
                name = checkpoint_of_path(options.checkpoint, extension)
                yield Output("--checkpoint with --path", name, CHECKPOINT)
    if given.get("json") not in (None, "-"):
        yield Output("--json", options.json, REPORT)


def _inputs(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return all files that a command reads, each with the argument that names it."""
    given = vars(options)
    names = {"data": "TOKENS" if options.command == "predict" else "DATA", "teacher": "--teacher", "result": "RESULT"}
    inputs = [(f"the input {name}", given[key]) for key, name in names.items() if given.get(key) is not None]
    if given.get("data") is not None:
        arrays = {Path(options.data) / f"{name}.npy" for name in ARRAYS} | {*Path(options.data).glob("*.npy")}
        inputs += [(f"an array of the input {names['data']}", str(array)) for array in sorted(arrays)]
    if options.command == "fit" and options.init not in (*STARTS, *FURTHER_STARTS):
        inputs.append(("the input --init", options.init))
    return inputs


def _check_target(output: Output, force: bool) -> None:
    """Raise if an output cannot be written: a temporary file is tried in the same folder."""
    flag, target, kind = output
    folder = Path(os.path.realpath(target)).parent  # of a link, the folder of the file that it names
    if kind == CHECKPOINT and not folder.is_dir():
        raise ValueError(f"{flag}: needs a file in an existing folder, got {target!r}")
    try:
        if target in ("", "-") or Path(target).is_dir():
            raise ValueError("it is not the name of a file")
        with tempfile.TemporaryFile(dir=folder):
            pass
        if kind == PICTURE:
            require_format(target)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"{flag}: {target!r} cannot be written: {why}") from error
    if kind == CHECKPOINT:
        require_checkpoint(flag, target)
    else:
        require_replaceable(flag, target, kind, force)
    suffixes = SUFFIXES.get(kind, ())
    if suffixes and Path(target).suffix.lower() not in ("", *suffixes):
        raise ValueError(f"{flag}: needs a name that ends in {suffixes[0]}, got {target!r}")


def say(options: argparse.Namespace, text: str) -> None:
    """Print a text, with options in place of arguments of Python: to standard error if JSON goes to standard output."""
    clear()
    for remedy, option in REMEDIES.items():
        text = remedy.sub(option, text)
    text = quote_options(text, options.flags)
    try:
        print(text, file=sys.stderr if options.json == "-" else sys.stdout, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(f"the output cannot be written: {error.strerror}; free space or choose another file") from error


def indent(*lines: str) -> str:
    """Return the lines of a section, indented below its title."""
    return "\n".join(f"  {row}" for line in lines for row in line.split("\n"))


def report(options: argparse.Namespace, text: str, data: dict[str, Any], finished: bool = True) -> None:
    """Print the text, and write the data to the file of --json; see `target_of` for `finished`."""
    say(options, text)
    write_report(options, data, finished)


def write_report(options: argparse.Namespace, data: dict[str, Any], finished: bool = True) -> None:
    """Write the data to the file of --json, if there is one."""
    if not options.json:
        return
    written = json.dumps({MARK: mark(REPORT, finished) | {"keys": sorted(data)}, **data}, allow_nan=False) + "\n"
    if options.json == "-":
        sys.stdout.write(written)
        return
    target, force = target_of(options, options.json, REPORT, finished), options.force
    write_atomically(target, lambda file: file.write(written.encode()), name="--json", kind=REPORT, overwrite=force)
    if target != options.json:
        say(options, f"The report is in {describe_kept(options.json, target)}.")


def describe_kept(path: str, target: str) -> str:
    """Return a clause for the output of a run that did not finish, which was written to another file than `path`."""
    return target if target == path else f"{target}, as {path} holds the output of a finished run"


def select(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the options with these names, as keywords of a function."""
    return {name: getattr(options, name) for name in names}
