"""Files that the Python interface writes: they are complete or absent, and never replace a file of the user."""

import os
import subprocess
import sys

import pytest

from gamp_attention._tools.files import PICTURE, kind_of
from gamp_attention.extensions.comparison.figures import figure
from tests.conftest import ROOT


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("suffix", ["png", "pdf", "svg", "eps"])
def test_pictures_replace_pictures_of_the_package_only(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    def draw(overwrite=False):
        with figure(path, 1, 1, (2, 2), overwrite) as axes:
            axes[0, 0].plot([0, 1])

    path = tmp_path / f"picture.{suffix}"
    for _ in range(2):
        draw()
    assert kind_of(path) == PICTURE
    drawing = Figure()
    drawing.subplots().set_title("gamp_attention")
    drawing.savefig(path)
    foreign = path.read_bytes()
    assert kind_of(path) is None
    with pytest.raises(ValueError, match=r"path: needs the name of a new file, or of a picture .*overwrite=True"):
        draw()
    assert path.read_bytes() == foreign
    draw(overwrite=True)
    assert kind_of(path) == PICTURE
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


OTHERS = {
    "text.npz": b"words",
    "damaged.npz": b"PK\x03\x04" + bytes(50),
    "list.json": b"[1, 2]",
    "deep.json": b"[" * 100_000,
    "half.json": b'{"gamp_attention": {"version": "1", "ki',
    "words.png": b"Written by gamp_attention 0.1.0",
    "binary": bytes(range(256)),
    "empty": b"",
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_not_recognized_as_results(name, tmp_path):
    (tmp_path / name).write_bytes(OTHERS[name])
    assert kind_of(tmp_path / name) is None


FULL = """
import resource
import gamp_attention as ga
data = ga.sample(ga.paper_model(), 40, 1.5, 0)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
print(ga.train(data, n_starts=1, checkpoint=ga.Checkpoint("run.npz", 0), tol=0, max_iter=3).n_iter)
"""


@pytest.mark.slow
def test_a_full_disk_is_a_warning_that_names_the_file(tmp_path):
    """A limit on the size of files simulates a full disk."""
    command, environment = [sys.executable, "-c", FULL], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "3\n"
    assert "checkpoint: run.npz cannot be written: File too large; free space or choose another folder" in done.stderr
    assert not list(tmp_path.iterdir())
