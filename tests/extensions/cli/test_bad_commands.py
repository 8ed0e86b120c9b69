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


def bad_file(kind, path):
    """A file of some kind, and a word that the message must hold."""
    if kind == "missing":
        return "no such file"
    if kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("tokens")
    elif kind == "single":
        with path.open("wb") as file:
            np.save(file, np.ones(3))
    elif kind == "pipe":
        os.mkfifo(path)
        return "is not a regular file, for instance a pipe; write the arrays to a file first"
    elif kind == "HDF5":
        path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
        return 'is an HDF5 file; convert its arrays: python -c "import h5py, numpy; f = h5py.File('
    elif kind == "truncated":
        stored(path, tokens=np.ones((9, 2, 9)))
        path.write_bytes(path.read_bytes()[:-40])
    elif kind == "altered":
        content = bytearray(stored(path) and path.read_bytes())
        content[200] ^= 0xFF
        path.write_bytes(content)
    elif kind == "pickle":
        stored(path, tokens=np.array([Malicious(str(path) + ".made")], dtype=object))
        return "tokens holds Python objects"
    elif kind == "lacking":
        np.savez(path, tokens=GOOD["tokens"])
        return "lacks the arrays outputs"
    elif kind == "rows":
        np.savez(path, X=np.ones((3, 4)), y=np.ones(3))
        return "has X, y (for rows X (n, d) with labels y (n,) use scikit-learn, or LabelledDataset in Python)"
    else:
        name, array = WRONG_ARRAYS[kind]
        stored(path, **{name: array})
        return "got 2 NaN or infinite, the first at index (1, 0, 2)" if kind == "NaN" else name
    return path.name


WRONG_ARRAYS = {
    "complex": ("tokens", GOOD["tokens"] * 1j),
    "words": ("tokens", np.full((3, 2, 4), "a")),
    "no samples": ("tokens", np.ones((0, 2, 4))),
    "two axes": ("tokens", np.ones((3, 8))),
    "NaN": ("tokens", np.where(np.isin(np.arange(24), [10, 20]), np.nan, 1.0).reshape(3, 2, 4)),
    "infinite": ("positions", np.full((2, 4), np.inf)),
    "other outputs": ("outputs", np.ones((3, 2, 5))),
    "other positions": ("positions", np.ones(4)),
}
KINDS = (
    "missing",
    "folder",
    "empty",
    "text",
    "single",
    "pipe",
    "HDF5",
    "truncated",
    "altered",
    "pickle",
    "lacking",
    "rows",
    *WRONG_ARRAYS,
)
FIT = {
    "--init semantic": "--init: 'semantic' needs a known teacher, which the arrays of a file do not have; use spectral",
    "--path 0": "--path: needs a finite number > 0, got 0.0",
    "--path 1 -1": "--path: needs a finite number",
    "--path 1 1": "--path: needs values that all differ",
    "--path --tol 0": "--tol: needs a finite number > 0",
    "--out fit.txt": "--out: needs a name that ends in .npz, got 'fit.txt'",
    "--out fit.npz.gz": "--out: needs a name that ends in .npz",
    "--checkpoint c.npz --checkpoint-every -1": "--checkpoint-every: needs",
    "--init weights.npz": "Q",
    "--init notes.txt": "init: notes.txt: cannot be read as .npz with Q: notes.txt holds text",
    "--rank 0": "rank",
    "--rank 1.5": "--rank",
    "--rank 10000000000000": "rank: needs at most 4",
    "--lam nan": "lam",
    "--lam wide": "--lam",
    "--l1 -1": "l1",
    "--l1 inf": "l1",
    "--tol -1": "tol",
    "--max-iter 0": "--max-iter: needs an integer >= 1, got 0",
    "--seed -1": "seed",
    "--n-starts 0": "--n-starts: needs an integer >= 1, got 0",
    "--held-out -0.1": "--held-out",
    "--held-out 1": "--held-out",
    "--held-out 0.1": "--held-out: needs a fraction of the 3 samples",
    "--held-out nan": "--held-out",
    "--held-out 2": "--held-out: needs a fraction of the 3 samples, below 1, that leaves at least one on each side, or "
    "0 for none, got 2.0; for 2 samples give 0.667",
    "--helt-out 0.1": "unrecognized arguments: --helt-out 0.1; did you mean '--held-out'?",
    "--plot picture.xyz": "--plot",
    "--groups subject": "--groups: needs --path or --held-out, which leave out whole groups, got 'subject'",
    "--groups subject --path": "--groups: ",
    "--survey --path": "--survey: needs a single λ",
    "--out .": "--out",
    "--out -": "--out",
    "--out no/where.npz": "--out",
    "--out /proc/fit.npz": "--out",
    "--json no/where.json": "--json",
}
COMMANDS = {
    "": "COMMAND",
    "nothing": "nothing",
    "compar": "did you mean 'compare'?",
    "boundary": "did you mean 'boundaries'?",
    "solve --init semantc": "did you mean 'semantic'?",
    "solve --sigm 0.5 --alfa 1": "did you mean '--alpha'?",
    "--nothing": "COMMAND",
    "fit": "required: DATA",
    "solve --alpha 0": "alpha",
    "solve --alpha 1e400": "alpha",
    "solve --alpha one": "--alpha",
    "solve --omega nan": "omega",
    "solve --sigma 0": "sigma",
    "solve --lam 0": "lam",
    "solve --l1 -2": "l1",
    "solve --init nowhere": "--init",
    "solve --rtol 1": "rtol",
    "solve --rule gauss": "--rule",
    "solve --variance both": "--variance",
    "solve --seed -1": "seed",
    "solve --rsb 4": "--rsb: needs an integer from 1 to 3, or 'full' for the limit of infinitely many",
    "solve --rsb all": "--rsb: needs an integer from 1 to 3, or 'full' for the limit of infinitely many",
    "solve --rsb one --parisi x": "--parisi",
    "solve --parisi 100": "--rsb: needs",
    "solve --rsb 2 --parisi 3 1": "parisi",
    "solve --json .": "--json",
    "trajectory --n-iter 0": "--n-iter: needs",
    "trajectory --n-iter 100000": "n_paths",
    "trajectory --damping nan": "damping",
    "trajectory --method gd --damping 0.3": "damping: needs method 'gamp' or 'survey', as 'gd' does not use it",
    "trajectory --method survey": "parisi",
    "trajectory --compression 0.1": "compression: needs hold_after",
    "trajectory --method gd --compression 2": "compression",
    "trajectory --parisi 100": "parisi: needs method 'survey', as 'gamp' does not use it, got 100.0",
    "trajectory --lr 0.1": "lr: needs method 'gd' or 'momentum' or 'nesterov' or 'sgd' or 'online', as",
    "trajectory --seed x": "--seed",
    "compare --omega 2": "omega",
    "compare --d 0": "d:",
    "compare --d 1000000000": "--d, --alpha",
    "compare --d 10 --alpha 0.01": "alpha",
    "compare --gd-steps 0": "--gd-steps: needs",
    "compare --risk both": "--risk",
    "compare --plot no/where.png": "--plot",
    "compare --plot picture.xyz": "--plot: 'picture.xyz'",
    "sweep": "FOLDER",
    "sweep /proc/cells": "folder",
    "sweep /dev/null": "folder",
    "sweep F --alpha 1:2": "--alpha",
    "sweep F --alpha 1:2:0": "--alpha",
    "sweep F --alpha 1:2:10000000000": "--alpha",
    "sweep F --alpha nan": "alpha",
    "sweep F --alpha 1 1": "alpha",
    "sweep F --omega 2": "omega",
    "sweep F --lam 0": "lam",
    "sweep F --sigma -1": "sigma",
    "sweep F --A 1,x": "--A",
    "sweep F --A 1,2;3": "--A: needs a square matrix",
    "sweep F --A 0.6,0.4": "in quotes '0.6,0.4;0.4,0.6', since a shell ends a command at a semicolon, got '0.6,0.4'",
    "sweep F --method AMP": "--method",
    "sweep F --branch other": "--branch",
    "sweep F --d 0": "d:",
    "sweep F --seed -1": "seed",
    "sweep F --rtol 2": "rtol",
    "sweep F --risk both": "--risk",
    "sweep F --workers 0": "workers",
    "sweep F --workers 1000000000": "workers",
    "sweep F --workers 1 --dask tcp://localhost:1": "--workers, --dask",
    "sweep F --out no/where.nc": "--out",
    "boundaries --omega": "--omega",
    "boundaries --omega 2": "omega",
    "boundaries --lam 0": "lam",
    "boundaries --sigma 0": "sigma",
    "boundaries --A x": "--A",
    "boundaries --A 1,2/3": "--A: needs a square matrix",
    "law data.npz --classes -1": "--classes: needs a number of classes >= 1, or auto, got '-1'",
    "law data.npz --classes two": "--classes: needs a number of classes >= 1, or auto, got 'two'",
    "law data.npz": "data.npz: there is no such file",
    "boundaries --alphas 2 1": "--alphas: needs (lowest, highest) α in this order, got (2.0, 1.0)",
    "boundaries --alphas 0 1": "--alphas: needs a finite number > 0, got 0.0",
    "sweep F --out cells.txt": "--out: needs a name that ends in .nc, got 'cells.txt'",
    "predict a.npz": "required: TOKENS",
    "predict a.npz b.npz": "b.npz: there is no such file",
    "boundaries --alphas 1": "--alphas",
    "boundaries --tol 0": "tol",
    "boundaries --tol small": "--tol: needs a number, got 'small'",
    "compare --d 1.5": "--d: needs an integer, got '1.5'",
    "boundaries --folder /proc/cells": "folder",
    "boundaries --plot picture.xyz": "--plot",
    "boundaries --workers 0": "workers",
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


@pytest.mark.parametrize("kind", KINDS)
def test_bad_files_are_refused_at_once(kind, tmp_path, refused):
    word = bad_file(kind, tmp_path / "data.npz")
    refused(["fit", str(tmp_path / "data.npz")], word)
    assert not (tmp_path / "data.npz.made").exists()


@pytest.mark.parametrize(
    ("kind", "words"), [("truncated", "the archive is damaged or incomplete"), ("lacking", "it lacks the arrays Q")]
)
def test_bad_files_of_weights_are_named_with_their_option(kind, words, tmp_path, refused):
    data, weights = stored(tmp_path / "mine.npz"), tmp_path / "data.npz"
    bad_file(kind, weights)
    refused(["law", data, "--teacher", str(weights)], f"--teacher: {weights}: cannot be read as .npz with Q: {words}")


def test_a_pickle_would_have_run(tmp_path):
    """A malicious file runs its code if pickles are allowed, so that the test of malicious files tests something."""
    bad_file("pickle", tmp_path / "data.npz")
    with np.load(tmp_path / "data.npz", allow_pickle=True) as archive:
        archive["tokens"]
    assert (tmp_path / "data.npz.made").is_dir()


def cut_in_half(path):
    """Leave the first half of a file, as an interrupted copy does."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


NOT_FILES = {
    "empty folder": "lacks the arrays tokens, outputs and has none",
    "one array alone": "lacks the arrays outputs and has tokens",
    "pickle in a folder": "a folder of .npy files",
    "pickle of torch": "a dict of tensors",
    "tensor alone": "it holds a Tensor",
    "model of torch": "objects of Python classes, for instance a whole model",
    "weights of torch": "the state_dict of a model (weight, bias)",
    "text for torch": "data.pt holds text, and needs to be a file as torch.save writes it",
    "text for an array": "tokens.npy holds text, and needs to be an .npy file as numpy.save writes it",
    "text for an archive": "data.npz holds text, and needs to be an .npz file as numpy.savez writes it",
    "table": "cannot be read as .npz",
    "half of an array": "tokens.npy is damaged or incomplete; write or copy the file again",
    "half of torch": "it is damaged or incomplete; write or copy the file again",
}


@pytest.mark.parametrize("kind", NOT_FILES)
def test_other_bad_files_are_refused_at_once(kind, tmp_path, refused):
    path = tmp_path / "data"
    path.mkdir()
    evil = Malicious(str(tmp_path / "made"))
    if kind == "one array alone":
        np.save(path / "tokens.npy", GOOD["tokens"])
    elif kind == "pickle in a folder":
        for name in ("tokens", "outputs"):
            np.save(path / f"{name}.npy", np.array([evil], dtype=object))
    elif kind == "half of an array":
        for name in ("tokens", "outputs"):
            np.save(path / f"{name}.npy", GOOD[name])
        cut_in_half(path / "tokens.npy")
    elif kind == "text for an array":
        (path / "tokens.npy").write_text("0.1 0.2\n")
        np.save(path / "outputs.npy", GOOD["outputs"])
    elif kind.startswith("text"):
        path = tmp_path / ("data.npz" if kind.endswith("archive") else "data.pt")
        path.write_text("tokens, outputs\n0.1, 0.2 λ\n")
    elif kind == "table":
        path = tmp_path / "data.parquet"
        path.write_bytes(b"PAR1")
    elif kind != "empty folder":
        torch = pytest.importorskip("torch")
        path = tmp_path / "data.pt"
        model = torch.nn.Linear(2, 2)
        found = {"tensor alone": torch.ones(3), "model of torch": model, "weights of torch": model.state_dict()}
        found["half of torch"] = {name: torch.tensor(GOOD[name]) for name in ("tokens", "outputs")}
        torch.save(found.get(kind, {"tokens": evil, "outputs": evil}), path)
    if kind == "half of torch":
        cut_in_half(path)
    refused(["fit", str(path)], NOT_FILES[kind])
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
