"""Results of the command `gamp-attention fit`, read from their files."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gamp_attention._tools import check
from gamp_attention.extensions.train.loading import load_fit
from gamp_attention.gamp.result import Trained
from gamp_attention.problem.layer import Layer, Units
from gamp_attention.problem.losses.heads import with_heads
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
    if not isinstance(path, str | Path):
        raise check.fail("path", path, "the path of a file", TypeError)
    return read_result("path", path)


def read_result(argument: str, path: str | Path) -> FitResult:
    """Return the result in a file that an argument names; see `load_result`."""
    arrays = load_fit(argument, path)
    Q, heads = check.array("Q", arrays["Q"], ("d", "r")), int(arrays["heads"])
    d = len(Q)
    positions = check.array("positions", arrays["positions"], ("L", d))
    units = Units(check.array("center", arrays["center"], (d,)), check.array("scale", arrays["scale"], (d,)))
    numbers = {name: float(arrays[name]) for name in ("train_loss", "gradient_norm", "lam")}
    return FitResult(
        path=Path(path), status=Status(str(arrays["status"])), n_iter=int(arrays["n_iter"]), Q=Q,
        layer=Layer(with_heads(None, heads), Q, positions, units), **numbers,
    )  # fmt: skip
