"""Bad files and flags: exit status 2, one line that names the culprit, nothing written, no code of the file run."""

import os

import numpy as np
import pytest

from gamp_attention.extensions.cli.main import main

GOOD = {"tokens": np.ones((3, 2, 4)), "outputs": np.ones((3, 2, 4)), "positions": np.ones((2, 4))}


class Malicious:
    """Unpickling it makes a folder."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (self.place,)


def stored(path, **changes):
    np.savez(path, **GOOD | changes)
    return str(path)


def store_array(path, array):
    with path.open("wb") as file:
        np.save(file, array)


def cut_in_half(path):
    """Leave the first half of a file, as an interrupted copy does."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


BAD_FILES = {  # what is in the file, and words of the message
    "missing": (lambda path: None, "no such file"),
    "folder": (lambda path: path.mkdir(), "lacks the arrays tokens, outputs and has none"),
    "empty": (lambda path: path.write_bytes(b""), "data.npz"),
    "text": (lambda path: path.write_text("0.1 λ\n"), "it is not an .npz file"),
    "single": (lambda path: store_array(path, np.ones(3)), "it holds one array, not an .npz archive"),
    "pipe": (os.mkfifo, "it is no regular file, for instance a pipe; write the arrays to a file first"),
    "truncated": (lambda path: stored(path) and cut_in_half(path), "it is damaged or incomplete"),
    "pickle": (
        lambda path: stored(path, tokens=np.array([Malicious(f"{path}.made")], dtype=object)),
        "it holds text or Python objects, whose reading could run any code",
    ),
    "lacking": (lambda path: np.savez(path, tokens=GOOD["tokens"]), "lacks the arrays outputs and has tokens"),
}
BAD_ARRAYS = {
    "NaN": (
        "tokens", np.where(np.isin(np.arange(24), [10, 20]), np.nan, 1.0).reshape(3, 2, 4),
        "got 2 NaN or infinite, the first at index (1, 0, 2)",
    ),
    "infinite": ("positions", np.full((2, 4), np.inf), "positions"),
    "other outputs": ("outputs", np.ones((3, 2, 5)), "outputs"),
    "huge": ("tokens", np.full((3, 2, 4), 1e200), "got overflow; divide by standard deviations\n"),
}  # fmt: skip
FIT = {
    "--init semantic": "--init: needs one of spectral, random, positional, or an .npz file with weights Q, got",
    "--path 0": "--path: needs a finite number > 0, got 0.0",
    "--path 1 1": "--path: needs values that all differ",
    "--checkpoint none/c.npz": "--checkpoint: 'none/c.npz' cannot be written: No such file or directory",
    "--init weights.npz": "Q",
    "--init notes.txt": "--init: notes.txt: cannot be read as .npz with Q: it is not an .npz file",
    "--l1 -1": "--l1: needs a finite number >= 0, got -1.0",
    "--n-starts 0": "--n-starts: needs an integer >= 1, got 0",
    "--held-out 0.1": "--held-out: needs a fraction of the 3 samples",
    "--helt-out 0.1": "unrecognized arguments: --helt-out 0.1",
    "--survey --path": "--survey: needs a single λ",
}
COMMANDS = {
    "": "COMMAND",
    "compar": "invalid choice: 'compar'",
    "solve --init semantc": "invalid choice: 'semantc'",
    "solve --rsb 4": "--rsb: needs an integer from 1 to 3, or 'full' for the limit of infinitely many",
    "solve --rsb 1 --l1 0.1": "--l1: needs a ridge penalty with one λ for replica symmetry breaking, got ElasticNet",
    "solve --rsb 1 --score-noise 0.3": "--score-noise: needs noiseless targets",
    "solve --json .": "--json",
    "trajectory --method gd --damping 0.3": "--damping: needs another --method than 'gd', which does not use it",
    "trajectory --method survey": "parisi",
    "trajectory --lr 0.1": "--lr: needs another --method than 'gamp'",
    "compare --d 1000000000": "--d, --alpha",
    "compare --plot picture.xyz": "--plot: needs the name of a picture, which ends in one of",
    "sweep /dev/null": "folder",
    "sweep F --alpha 1 1": "alpha",
    "sweep F --alpha a": "--alpha: needs one or more numbers, or FIRST:LAST:COUNT for evenly spaced numbers, got 'a'",
    "sweep F --alpha 1:2": "FIRST:LAST:COUNT for evenly spaced numbers, got '1:2'",
    "boundaries --omega 2": "--omega: needs a finite number >= 0 and <= 1, got 2.0",
    "boundaries --alphas 2 1": "--alphas: needs (lowest, highest) α in this order, got (2.0, 1.0)",
}


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Checks that a command ends with 2 before any output, names the culprit, and leaves its folder empty."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def check(command, word):
        before = sorted(tmp_path.rglob("*"))
        try:
            status = main(command)
        except SystemExit as error:  # of argparse
            status = error.code
        out, message = capsys.readouterr()
        assert (status, out) == (2, "")
        assert word in message
        assert "Traceback" not in message
        assert "\x1b" not in message
        assert len(message.splitlines()[-1]) < 500
        assert sorted(tmp_path.rglob("*")) == before

    return check


@pytest.mark.parametrize("kind", [*BAD_FILES, *BAD_ARRAYS])
def test_bad_files_are_refused_at_once(kind, tmp_path, refused):
    path = tmp_path / "data.npz"
    if kind in BAD_FILES:
        write, word = BAD_FILES[kind]
        write(path)
    else:
        name, array, word = BAD_ARRAYS[kind]
        stored(path, **{name: array})
    refused(["fit", str(path)], word)
    assert not (tmp_path / "data.npz.made").exists()


def test_bad_folders_are_refused_at_once(tmp_path, refused):
    path = tmp_path / "data"
    path.mkdir()
    np.save(path / "outputs.npy", GOOD["outputs"])
    refused(["fit", str(path)], "lacks the arrays tokens and has outputs")
    np.save(path / "tokens.npy", np.array([Malicious(str(tmp_path / "made"))], dtype=object))
    refused(["fit", str(path)], "objects")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("flags", FIT)
def test_bad_flags_of_fit_are_refused_at_once(flags, tmp_path, refused):
    np.savez(tmp_path / "weights.npz", P=np.ones((4, 1)))
    (tmp_path / "here" / "notes.txt").write_text("a line\n")
    words = [str(tmp_path / word) if word == "weights.npz" else word for word in flags.split()]
    refused(["fit", stored(tmp_path / "data.npz"), *words], FIT[flags])


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_commands_are_refused_at_once(command, refused):
    refused(command.split(), COMMANDS[command])
