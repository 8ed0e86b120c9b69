"""Files that the Python interface writes: they are complete or absent, and never replace a file of the user."""

import os
import subprocess
import sys

import pytest

import gamp_attention as ga
from gamp_attention._tools.files import PICTURE, kind_of
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def trajectory(model):
    return ga.trajectory(model, 1.5, n_iter=2, n_paths=64, n_replicas=2)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("suffix", ["png", "pdf", "svg", "svgz", "eps", "ps", "jpg", "jpeg", "tif", "tiff", "webp"])
def test_pictures_replace_pictures_of_the_package_only(trajectory, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"picture.{suffix}"
    for _ in range(2):
        ga.plot_trajectory(trajectory, path=path)
    assert kind_of(path) == PICTURE
    ours = path.read_bytes()
    foreign = draw_with_matplotlib(path)
    assert kind_of(path) is None
    with pytest.raises(ValueError, match=r"path: needs the name of a new file, or of a picture .*overwrite=True"):
        ga.plot_trajectory(trajectory, path=path)
    assert path.read_bytes() == foreign
    if suffix == "png":  # saving takes most of the time of this test, and replaces files of all kinds in the same way
        ga.plot_trajectory(trajectory, path=path, overwrite=True)
        assert kind_of(path) == PICTURE
        assert len(path.read_bytes()) == pytest.approx(len(ours), rel=0.01)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def draw_with_matplotlib(path):
    from matplotlib.figure import Figure

    drawing = Figure()
    drawing.subplots().set_title("gamp_attention")
    drawing.savefig(path)
    return path.read_bytes()


OTHERS = {
    "text.npz": b"words",
    "damaged.npz": b"PK\x03\x04" + bytes(50),
    "list.json": b"[1, 2]",
    "deep.json": b"[" * 100_000,
    "object.json": b'{"gamp_attention": 3}',
    "other kind.json": b'{"gamp_attention": {"version": "1", "kind": "fit"}}',
    "more keys.json": b'{"gamp_attention": {"version": "1", "kind": "report", "keys": ["a"]}, "a": 1, "mine": 2}',
    "half.json": b'{"gamp_attention": {"version": "1", "ki',
    "damaged.h5": b"\x89HDF\r\n\x1a\n" + bytes(50),
    "words.png": b"Written by gamp_attention 0.1.0",
    "binary": bytes(range(256)),
    "empty": b"",
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_not_recognized_as_results(name, tmp_path):
    (tmp_path / name).write_bytes(OTHERS[name])
    assert kind_of(tmp_path / name) is None


FULL = """
import resource, sys
import gamp_attention as ga
from gamp_attention.extensions.sweeps.sweep import save
data = ga.sample(ga.paper_model(), 40, 1.5, 0)
cells = ga.sweep(ga.paper_model(), "first", alpha=1.0, method="GAMP", d=20).dataset()
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
for call in (
    lambda: ga.train(data, n_starts=1, checkpoint=ga.Checkpoint("run.npz", 0), tol=0, max_iter=3),
    lambda: ga.sweep(ga.paper_model(), "cells", alpha=1.0, method="GAMP", d=20),
    lambda: ga.plot_trajectory(ga.trajectory(ga.paper_model(), 1.5, n_iter=2, n_paths=64, n_replicas=2), path="f.png"),
    lambda: save(cells, "cells.nc"),
):
    try:
        call()
        print("written")
    except OSError as error:
        print(error.errno, error)
"""


@pytest.mark.slow
def test_a_full_disk_is_an_error_that_names_the_file(tmp_path):
    """A limit on the size of files simulates a full disk."""
    for name in ("matplotlib", "xarray", "h5netcdf"):
        pytest.importorskip(name)
    command, environment = [sys.executable, "-c", FULL], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=True)
    said = done.stdout.splitlines()
    names = "checkpoint: run.npz", "path: f.png", "--out: cells.nc"
    for line, name in zip([said[0], said[2], said[3]], names, strict=True):
        assert line == f"27 {name} cannot be written: File too large; free space or choose another folder"
    assert not list(tmp_path.rglob("*.part"))
    assert not list(tmp_path.rglob("*.claim"))
    assert not [path for path in tmp_path.iterdir() if path.is_file()]
