"""A user's file is never overwritten: inputs never, other files only with --force, results of the package freely."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from gamp_attention.extensions.cli.main import main
from gamp_attention.extensions.cli.options import COMMANDS, build_parser
from tests.conftest import ROOT

NEW = "needs the name of a new file"
INPUT = "inputs are never replaced"
TWICE = "needs a file of its own"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with arrays in an archive and in a folder, links to them, and other files of the user."""
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).standard_normal((40, 2, 12))
    arrays = {"tokens": x, "outputs": x[:, ::-1]}
    np.savez("z.npz", **arrays)
    np.savez("other.npz", **arrays)
    np.savez("w.npz", Q=np.ones((12, 1)), notes=np.ones(3))
    (tmp_path / "folder").mkdir()
    for name, values in (arrays | {"subject": np.arange(40)}).items():
        np.save(f"folder/{name}.npy", values)
    os.symlink("z.npz", "soft.npz")
    os.symlink("other.npz", "soft_other.npz")
    os.symlink("loop.npz", "loop.npz")
    (tmp_path / "notes.json").write_text('{"a": 1}\n')
    (tmp_path / "words.txt").write_text("words\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n of another program")
    return tmp_path


def contents(folder):
    return {path: (path.is_symlink(), path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()}


REFUSED = {
    "fit z.npz --out z.npz": f"--out: {TWICE}, as {INPUT}, got 'z.npz', which is the input DATA",
    "fit z.npz --out soft.npz --force": INPUT,
    "fit z.npz --out Z.npz": INPUT,
    "fit folder --json folder/positions.npy": "which is an array of the input DATA",
    "fit z.npz --checkpoint z.npz --force": INPUT,
    "fit z.npz --init w.npz --checkpoint ./w.npz": "which is the input --init",
    "fit z.npz --out other.npz": f"--out: {NEW}, or of a result of gamp-attention fit that this package wrote, got "
    "'other.npz', which this package did not write, or which was changed; choose another name, or replace the file "
    "with --force",
    "fit z.npz --out soft_other.npz": NEW,
    "fit z.npz --out words.txt": NEW,
    "fit z.npz --out loop.npz": f"--out: {NEW}, or of a result of gamp-attention fit that this package wrote, got",
    "fit z.npz --out folder": "--out: needs the name of a file, got 'folder'",
    "fit z.npz --out /dev/null --force": "which is no regular file",
    "fit z.npz --json notes.json": f"--json: {NEW}, or of a report in JSON",
    "fit z.npz --plot picture.png": f"--plot: {NEW}, or of a picture",
    "fit z.npz --checkpoint other.npz --force": f"--checkpoint: {NEW}, or of a checkpoint",
    "fit z.npz --out a --json A": "got 'A', which is --out",
    "fit z.npz --checkpoint z.fit.npz": f"--checkpoint: {TWICE}",
    "solve --json words.txt": NEW,
    "compare --plot picture.png": NEW,
}


@pytest.mark.parametrize("command", REFUSED)
def test_files_of_the_user_are_not_replaced(command, here, capsys):
    before = contents(here)
    assert main(command.split()) == 2
    message = capsys.readouterr().err
    assert REFUSED[command] in message
    assert "remove" not in message
    assert "delete" not in message
    assert contents(here) == before


@pytest.mark.slow
def test_results_are_replaced_by_their_own_kind_and_others_with_force(here, capsys):
    fit = ["fit", "z.npz", "--n-starts", "1", "--max-iter", "3", "--plot", "f.png", "--json", "r.json"]
    for _ in range(2):  # the second run replaces the files of the first
        assert main(fit) in (0, 1)
    capsys.readouterr()
    kept = contents(here)
    for command in ("--out r.json", "--json z.fit.npz --out new.npz", "--json f.png", "--out f.png"):
        assert main([*fit[:2], *command.split()]) == 2
        assert "which holds a " in capsys.readouterr().err
    assert contents(here) == kept
    assert main([*fit[:4], "--out", "other.npz", "--json", "notes.json", "--plot", "picture.png", "--force"]) == 0
    assert np.load(here / "other.npz")["Q"].shape == (12, 1)
    assert json.loads((here / "notes.json").read_text())["gradient_norm"] > 0
    assert (here / "picture.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_results_that_the_user_changed_or_protected_are_kept(here, capsys):
    fit = ["fit", "z.npz", "--n-starts", "1", "--no-survey", "--max-iter", "3", "--json", "r.json"]
    assert main([*fit, "--out", "f.npz"]) in (0, 1)
    written = contents(here)
    with np.load("f.npz") as stored:
        np.savez("f.npz", **{**stored, "Q": 2 * stored["Q"]})
    report = json.loads((here / "r.json").read_text())
    (here / "r.json").write_text(json.dumps(report | {"notes": "mine"}))
    capsys.readouterr()
    changed = contents(here)
    assert main([*fit, "--out", "f.npz"]) == main([*fit, "--out", "new.npz"]) == 2
    words = capsys.readouterr().err
    assert "--out: needs" in words
    assert "--json: needs" in words
    assert contents(here) == changed
    for name in ("f.npz", "r.json"):
        (here / name).write_bytes(written[here / name][1])
    (here / "f.npz").chmod(0o444)
    assert main([*fit, "--out", "f.npz"]) == 2
    assert "got 'f.npz', which is read-only" in capsys.readouterr().err
    assert contents(here) == written
    assert main([*fit, "--out", "f.npz", "--force"]) in (0, 1)


@pytest.mark.parametrize("command", ["compare", "fit z.npz --plot f.png"])
def test_what_is_not_installed_is_named_at_once(command, here, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    before = contents(here)
    assert main(command.split()) == 2
    assert "needs matplotlib: pip install 'gamp-attention[plot]'" in capsys.readouterr().err
    assert contents(here) == before


def test_examples_of_the_help_are_valid_commands():
    for name, (_, examples, _) in COMMANDS.items():
        for example in examples:
            assert build_parser().parse_args([name, *example.split()]).command == name


def test_a_reader_that_ends_early_is_no_error(tmp_path):
    """As in `gamp-attention solve | head`: no message, and the status that shells report for this case."""
    command = [sys.executable, "-m", "gamp_attention", "solve", "--rtol", "1e-2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, env=environment, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
