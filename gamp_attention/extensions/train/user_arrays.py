"""Arrays of users: files, standard units, and results of the command `gamp-attention fit`."""

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.files import as_path
from gamp_attention._tools.numerics import check_squarable, guard_call
from gamp_attention.gamp.result import Trained
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.layer import Layer, Units
from gamp_attention.problem.losses.heads import with_heads
from gamp_attention.problem.stores import as_tokens
from gamp_attention.results import Status


@dataclass(frozen=True, eq=False)
class FitResult(Trained):
    """Result of `gamp-attention fit`, returned by `load_result`.

    Attributes
    ----------
    path : the file, whose other arrays `numpy.load` reads.
    status, n_iter, train_loss, gradient_norm : as for `GampResult`; status INTERRUPTED after an interruption.
    lam : λ of the penalty.
    Q : (d, r) weights, for standardized tokens if the arrays were standardized.
    layer : the trained layer in the units of the file of the training data, which `predict` uses.
    """

    path: Path
    status: Status
    n_iter: int
    train_loss: float
    gradient_norm: float
    lam: float
    Q: np.ndarray
    layer: Layer


def load_result(path: str | Path) -> FitResult:
    """Read a result of the command `gamp-attention fit` from its file.

    Parameters
    ----------
    path : the .npz file that `fit` wrote, by default DATA.fit.npz.

    Returns
    -------
    FitResult, whose method `predict` returns outputs for new tokens in the units of the training data.

    Raises
    ------
    TypeError : if `path` is not a path.
    ValueError : if there is no such file, or `fit` did not write it.

    Examples
    --------
    >>> from contextlib import redirect_stdout
    >>> from io import StringIO
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> from gamp_attention.extensions.cli.main import main
    >>> tokens = np.random.default_rng(0).normal(size=(90, 2, 20))
    >>> with TemporaryDirectory() as folder, redirect_stdout(StringIO()):
    ...     np.savez(f"{folder}/mine.npz", tokens=tokens, outputs=0.8 * tokens + 0.2 * tokens[:, ::-1])
    ...     status = main(["fit", f"{folder}/mine.npz", "--n-starts", "1"])
    ...     result = ga.load_result(f"{folder}/mine.fit.npz")
    >>> result.predict(tokens[:3]).shape
    (3, 2, 20)
    """
    path, names = as_path("path", path), ("train_loss", "gradient_norm", "lam")
    arrays = load_arrays(path, ("Q", "positions", "center", "scale", "heads", "status", "n_iter", *names), (), "path")
    Q, heads = check.array("Q", arrays["Q"], ("d", "r")), int(arrays["heads"])
    positions = check.array("positions", arrays["positions"], ("L", len(Q)))
    units = Units(check.array("center", arrays["center"], (len(Q),)), check.array("scale", arrays["scale"], (len(Q),)))
    return FitResult(
        path=path, status=Status(str(arrays["status"])), n_iter=int(arrays["n_iter"]), Q=Q,
        layer=Layer(with_heads(None, heads), Q, positions, units), **{name: float(arrays[name]) for name in names},
    )  # fmt: skip


def load_arrays(
    path: str | Path, needed: tuple[str, ...], optional: tuple[str, ...] = (), argument: str = ""
) -> dict[str, Any]:
    """Load arrays from an .npz file, or from a folder of .npy files, which stay on the disk; nothing is unpickled.

    `argument` is the name of the argument that contains the path. Raises ValueError if a needed array is missing or
    cannot be read; the message names the file and the reason.
    """
    file, start = Path(path), f"{argument}: " if argument else ""
    if not file.exists():
        raise ValueError(f"{start}{path}: there is no such file")
    try:
        arrays, names = _read(file, (*needed, *optional))
        missing = [name for name in needed if name not in names]
        if missing:
            raise ValueError(f"it lacks the arrays {', '.join(missing)} and has {', '.join(names) or 'none'}")
        return arrays
    except Exception as error:  # damaged archives raise many kinds of errors
        why = str(error).partition("\n")[0][:400]
        if isinstance(error, zipfile.BadZipFile):
            why = "it is damaged or incomplete; write or copy the file again"
        elif "pickle" in why:
            why = "it holds text or Python objects, whose reading could run any code; it needs arrays of numbers"
        kind = "a folder of .npy files" if file.is_dir() else ".npz"
        raise ValueError(f"{start}{path}: cannot be read as {kind} with {', '.join(needed)}: {why}") from error


def _read(path: Path, wanted: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """Return the wanted arrays of an .npz file or of a folder, and the names of all of its arrays."""
    if path.is_dir():
        files = {file.stem: file for file in sorted(path.glob("*.npy"))}
        return {name: np.load(files[name], "r", allow_pickle=False) for name in wanted if name in files}, [*files]
    if not path.is_file():  # to open a named pipe would wait for its writer
        raise ValueError("it is no regular file, for instance a pipe; write the arrays to a file first")
    with open(path, "rb") as file:
        if file.read(2) not in (b"PK", np.lib.format.MAGIC_PREFIX[:2]):  # numpy reads all other files as pickles
            raise ValueError("it is not an .npz file, as numpy.savez writes")
        file.seek(0)
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array, not an .npz archive; a folder may hold tokens.npy and outputs.npy")
        return {name: archive[name] for name in wanted if name in archive}, archive.files


@guard_call
def standard_units(tokens: Any) -> Units:
    """Return the mean and standard deviation of each coordinate over all tokens; scale 1 if it is constant."""
    flat = check_squarable("tokens", tokens, ("n", "L", "d"))
    flat = flat.reshape(-1, flat.shape[2])
    center, scale = flat.mean(axis=0), flat.std(axis=0)
    constant = scale <= 1e-12 * np.abs(center)  # equal up to rounding
    return Units(center, np.where(constant, 1.0, scale), int(np.count_nonzero(constant)))


def build_dataset(
    tokens: ArrayLike, outputs: ArrayLike, positions: ArrayLike | None, standardize: bool, **options: Any
) -> tuple[Dataset, Units]:
    """Return a dataset, in standard units if `standardize` is True, and its units; `options` are for `Dataset`."""
    x, y = as_tokens("tokens", tokens), as_tokens("outputs", outputs)
    require_same_shape(x, y)
    L, d = x.shape[1:]
    units = standard_units(x) if standardize else Units.raw(d)
    if positions is not None:
        positions = check.array("positions", positions, (L, d)) / units.scale
    return Dataset(units.standardize(x), units.standardize(y), positions, **options), units


def require_same_shape(tokens: np.ndarray, outputs: np.ndarray) -> None:
    """Raise ValueError if outputs do not have the shape of the tokens."""
    if outputs.shape != tokens.shape:
        raise ValueError(f"outputs: needs shape {tokens.shape}, got shape {outputs.shape}")
