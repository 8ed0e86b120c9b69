"""Drawing samples and a teacher from a model: tokens in memory, in a file, or regenerated whenever they are read."""

import errno
import math
import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from gamp_attention._tools import check
from gamp_attention._tools.files import ARRAY, TRAILER, replace_file, require_replaceable
from gamp_attention._tools.numerics import generator, guard_call, psd_root
from gamp_attention._tools.threads import over_blocks
from gamp_attention.problem.dataset import Dataset, add_intercept, require_product_memory
from gamp_attention.problem.sources import Group, Sources
from gamp_attention.problem.stores import FileTokens, Tokens, TokenStore
from gamp_attention.sampling.teacher_data import label_dataset, teacher_dataset
from gamp_attention.theory.models.model import Model, require_model


class TokenLaw(NamedTuple):
    """Gaussian tokens: variances (S, d) or (S, 1) of the sources, and means (S, d), or None if all are zero."""

    spectra: np.ndarray
    means: np.ndarray | None

    def draw(self, rng: np.random.Generator, sources: np.ndarray, out: np.ndarray) -> None:
        """Fill an array (N, L, d) with tokens of the sources (L,)."""
        drawn = rng.standard_normal(out.shape)
        drawn *= np.sqrt(self.spectra[sources])
        out[...] = drawn if self.means is None else drawn + self.means[sources]


class RegeneratedTokens(TokenStore):
    """Tokens that are drawn again whenever they are read, with identical bits each time.

    The states of the generator are stored at every `grain` samples. So the tokens are identical to tokens drawn into
    memory, and parts can be drawn in parallel, in any order, and in other processes.
    """

    def __init__(
        self, law: TokenLaw, groups: tuple[Group, ...], shape: tuple[int, int, int], dtype: Any,
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        """Draw all tokens once, because generators cannot skip normal numbers; this advances `rng` as drawing does."""
        self.law, self.shape, self.dtype = law, shape, np.dtype(dtype)
        self.kind, self.parts, self.grain = type(rng.bit_generator), [], _samples_at_a_time(shape)
        scratch = np.empty((self.grain, *shape[1:]))
        for rows, sources in _parts(groups, self.grain):
            self.parts.append((rows, sources, deepcopy(rng.bit_generator.state)))
            rng.standard_normal(out=scratch[: rows.stop - rows.start])

    def fill(self, rows: slice, out: np.ndarray) -> None:
        """Draw a range of samples again, on all threads."""
        within = [part for part in self.parts if part[0].start < rows.stop and part[0].stop > rows.start]

        def draw(first: int, last: int) -> None:
            for part, sources, state in within[first:last]:
                generator = self.kind(0)
                generator.state = state
                low, high, n = max(part.start, rows.start), min(part.stop, rows.stop), part.stop - part.start
                target = out[low - rows.start : high - rows.start]
                drawn = target if len(target) == n else np.empty((n, *self.shape[1:]), self.dtype)
                self.law.draw(np.random.Generator(generator), sources, drawn)
                if drawn is not target:  # the range contains only a section of this part
                    target[:] = drawn[low - part.start : high - part.start]

        over_blocks(draw, len(within), 1)


def require_storage(storage: Any, overwrite: bool = False) -> str | Path:
    """Return `storage`: "memory", "none", or the path of a file that can be written and may be replaced; else raise."""
    needs = "'memory', 'none' or the path of an .npy file"
    if not isinstance(storage, str | Path):
        raise check.fail("storage", storage, needs, TypeError)
    if storage in ("memory", "none"):
        return storage
    path = Path(storage)
    if path.suffix != ".npy":
        raise check.fail("storage", str(storage), needs)
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise check.fail("storage", str(storage), "a folder that exists and can be written to")
    require_replaceable("storage", path, ARRAY, overwrite)
    return path


def draw_tokens(
    rng: np.random.Generator,
    n_samples: int,
    d: int,
    positions: np.ndarray,
    means: np.ndarray,
    spectra: np.ndarray,
    groups: Callable[[int, np.random.Generator], tuple[Group, ...]],
    dtype: Any = np.float64,
    storage: str | Path = "memory",
    overwrite: bool = False,
) -> tuple[Tokens, Sources]:
    """Draw tokens x (n, L, d) with the covariances and means of their sources, which `groups` draws for the samples."""
    shape, drawn = (n_samples, len(positions), d), groups(n_samples, rng)
    sources, shift = Sources(positions, means, drawn), None
    if means is not positions:
        shift = np.array(means)
        for _, of_group in drawn:
            shift[of_group] = means[of_group] - positions
    law = TokenLaw(spectra, shift)
    if storage == "none":
        return RegeneratedTokens(law, drawn, shape, dtype, rng), sources
    if storage == "memory":
        tokens = np.empty(shape, dtype)
        _draw_all(law, rng, drawn, tokens)
        return tokens, sources
    with replace_file("storage", storage, ARRAY, overwrite) as temporary:
        offset = _write_header(temporary, np.dtype(dtype), shape)
        mapped = np.memmap(temporary, dtype, "r+", offset, shape)
        _draw_all(law, rng, drawn, mapped)
        mapped.flush()
        del mapped
    return FileTokens(storage, offset, shape, dtype), sources


def _write_header(path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> int:
    """Write the header of an .npy file, space for its numbers and the mark; return the offset of the numbers."""
    with open(path, "wb") as file:
        about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, about)
        offset = file.tell()
        end = offset + dtype.itemsize * math.prod(shape)
        # a full disk raises an error here; while writing to mapped memory it would kill the process
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(file.fileno(), 0, end + len(TRAILER))
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # not offered by the file system
                    raise
        file.seek(end)
        file.write(TRAILER)
    return offset


def _draw_all(law: TokenLaw, rng: np.random.Generator, groups: tuple[Group, ...], tokens: np.ndarray) -> None:
    for rows, sources in _parts(groups, _samples_at_a_time(tokens.shape)):
        law.draw(rng, sources, tokens[rows])


def _samples_at_a_time(shape: tuple[int, ...]) -> int:
    """Return the number of samples drawn at a time: up to 64, in at most 4 MB; the tokens do not depend on it."""
    return max(1, min(64, (1 << 22) // (8 * shape[1] * shape[2])))


def _parts(groups: tuple[Group, ...], step: int) -> Iterator[Group]:
    for rows, sources in groups:
        for first in range(rows.start, rows.stop, step):
            yield Group(slice(first, min(first + step, rows.stop)), sources)


def require_size(model: Any, d: Any, alpha: Any) -> tuple[Model, int, float]:
    """Return model, d and α; raise TypeError or ValueError if such data cannot be drawn from the model."""
    model = require_model(model)
    d, alpha = check.integer("d", d, low=1), check.real("alpha", alpha, low=0, strict=True)
    if not 1 <= np.round(alpha * d) <= check.MAX_INTEGER:
        raise check.fail("alpha", alpha, f"at least one sample, 1 <= alpha * d, at d = {d}")
    return model, d, alpha


@guard_call
def sample(
    model: Model, d: int, alpha: float, seed: int | np.random.Generator = 0, dtype: DTypeLike = np.float64,
    storage: str | Path = "memory",
    overwrite: bool = False,
) -> Dataset:  # fmt: skip
    """Draw n = round(αd) samples and the teacher from a model.

    Eq. :eq:`teacher`.

    Parameters
    ----------
    model : the model, or a token distribution estimated from data, see `law_of`.
    d : dimension of a token, at least 1.
    alpha : sample complexity n/d; must give at least one sample.
    seed : an integer or a numpy Generator.
    dtype : of the tokens, float64 or float32; the same numbers, rounded.
    storage : "memory"; or the path of an .npy file to which tokens are written, and which is read at every pass; or
        "none": tokens are drawn again at every pass, with identical bits, so that memory does not limit d and n.
    overwrite : whether to replace a file at the path `storage` that does not contain sampled tokens.

    Returns
    -------
    Dataset with Q_star (d, t) and targets (n, L, L), score noise included. If the model has an intercept, d grows by 1,
        and the last coordinate is the intercept's, see `LabelledDataset`.

    Raises
    ------
    TypeError : if `model` is not a model, or an argument has the wrong type.
    ValueError : if `d` is below 1, `alpha` gives no sample, `seed` is negative, `dtype` is unknown, the tokens do not
        fit into memory, or `storage` cannot be written.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=200, alpha=1.5, seed=0)
    >>> data.tokens.shape, data.Q_star.shape
    ((300, 2, 200), (200, 1))
    """
    model, d, alpha = require_size(model, d, alpha)
    n = round(alpha * d)
    rng, storage = generator(seed), require_storage(storage, check.flag("overwrite", overwrite))
    if storage == "memory":
        check.require_memory("d, alpha", n, model.n_tokens, d)
    if model.attention:
        require_product_memory("d, alpha", n, model.n_tokens)
    law = model.coordinates
    # the number of coordinates of each class is its weight times d, rounded
    edges = np.round(np.cumsum(law.weight) * d).astype(int)
    k = np.searchsorted(edges, np.arange(d), side="right").clip(max=len(edges) - 1)
    roots = psd_root(law.teacher_cov)
    Q_star = law.teacher_mean[k] + np.einsum("ist,it->is", roots[k], rng.standard_normal((d, model.teacher_rank)))
    tau = (law.tau - model.class_means)[:, model.classes.first]  # positions without the means of the classes, times √d
    means = positions = np.ascontiguousarray(tau[k].T) / np.sqrt(d)
    if model.is_mixture or not np.array_equal(tau, law.tau):
        means = np.ascontiguousarray(law.means_of(Q_star, k).T) / np.sqrt(d)
    spectra = law.gamma.T.copy() if len(law.weight) == 1 else np.ascontiguousarray(law.gamma[k].T)
    if model.intercept:
        is_plain = means is positions
        positions, spectra = add_intercept(positions, np.broadcast_to(spectra, (len(spectra), d)))
        means = positions if is_plain else np.concatenate([means, np.ones((len(means), 1))], axis=1)
        Q_star, d = np.concatenate([Q_star, np.zeros_like(Q_star[:1])]), d + 1
    tokens, sources = draw_tokens(
        rng, n, d, positions, means, spectra, model.classes.draw, _precision(dtype), storage, overwrite
    )
    return _with_targets(model, tokens, sources, Q_star, spectra, rng)


def new_samples(data: Dataset, n: int, rng: np.random.Generator) -> Dataset:
    """Draw n samples of the same teacher and positions as a dataset that was drawn from a model."""
    model, Q_star, positions, spectra = data.model, data.Q_star, data.positions, data.spectra
    assert model is not None
    assert Q_star is not None
    tokens, sources = draw_tokens(rng, n, data.dim, positions, data.source_means, spectra, model.classes.draw)
    return _with_targets(model, tokens, sources, Q_star, spectra, rng)


def _with_targets(
    model: Model, tokens: Tokens, sources: Sources, Q_star: np.ndarray, spectra: np.ndarray, rng: np.random.Generator
) -> Dataset:
    """Return samples with the labels or the noisy outputs of a teacher."""
    if not model.attention:
        return label_dataset(model, tokens, sources, Q_star, spectra, rng)
    n, L, _ = tokens.shape
    noise = model.score_noise * rng.standard_normal((n, L, L)) if model.score_noise else None
    return teacher_dataset(model, tokens, sources.positions, Q_star, spectra, sources, noise)


def _precision(dtype: Any) -> np.dtype:
    if isinstance(dtype, (str, type, np.dtype)) and dtype in (np.float64, np.float32, "float64", "float32"):
        return np.dtype(dtype)
    raise check.fail("dtype", dtype, "float64 or float32")
