"""Label models of sequence models: targets that are functions of the teacher's fields, of noise, and of a class."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from gamp_attention._core.expressions import Program
from gamp_attention._core.numerics import ignore_float_errors
from gamp_attention.models.user_functions import UserFunction, evaluate_rows

SYMMETRY_ERROR = 1e-11  # relative difference up to which values count as equal by symmetry
N_SYMMETRY = 16  # number of random arguments on which symmetries are checked


def are_equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two arrays are equal up to rounding."""
    return bool(np.abs(a - b).max() <= SYMMETRY_ERROR * (1 + np.abs(a).max()))


@dataclass(frozen=True, eq=False)
class SequenceLabels:
    """Label model of a sequence model: the targets of a function teacher(u, noise), flattened to one row per sample.

    Attributes
    ----------
    function : the function of one sample, u (L, t) and noise (n_noise,), if it cannot be traced; else None.
    target_shape : shape of its result.
    n_fields, count : number of fields L t, and of random numbers per sample.
    even : True if targets stay the same when all fields and the noise change sign.
    program : the traced function; None if it cannot be traced, so that `function` is called once for each sample.
    """

    function: Callable[[np.ndarray, np.ndarray], Any] | None
    target_shape: tuple[int, ...]
    n_fields: int
    count: int
    even: bool
    program: Program | None = field(repr=False, default=None)

    def n_noise(self, n_tokens: int, rank: int) -> int:
        """Return the number of random numbers per sample."""
        return self.count

    @ignore_float_errors
    def __call__(self, u: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return targets (N, P) for fields (N, L, t) and white noise (N, n_noise)."""
        n, P = len(u), prod(self.target_shape)
        if self.program is None:
            assert self.function is not None
            rows = [np.asarray(self.function(*row), dtype=float).ravel() for row in zip(u, noise, strict=True)]
            return np.array(rows).reshape(n, P)
        inputs = np.concatenate([u.reshape(n, -1), noise.reshape(n, -1)], axis=1)
        return evaluate_rows(self.program, inputs)

    def keeps_targets(self, n_tokens: int, rank: int, order: np.ndarray) -> bool:
        """Return whether a permutation of the tokens leaves targets unchanged, or permutes their entries.

        Entries in another order contain the same information. Always False for teachers with noise.
        """
        if self.count:
            return False
        u, no_noise = np.random.default_rng(8).standard_normal((N_SYMMETRY, n_tokens, rank)), np.zeros((N_SYMMETRY, 0))
        first, second = self(u, no_noise), self(u[:, order], no_noise)
        return are_equal(first[:, np.argsort(first[0])], second[:, np.argsort(second[0])])


@dataclass(frozen=True, eq=False)
class LabelsOfClasses:
    """Label models of the classes of a sequence model's samples."""

    of_class: tuple[SequenceLabels, ...]  # label model of each class

    @property
    def even(self) -> bool:
        """True if the targets of all classes stay the same when all fields and the noise change sign."""
        return all(labels.even for labels in self.of_class)

    @property
    def count(self) -> int:
        """Number of random numbers per sample."""
        return self.of_class[0].count

    def n_noise(self, n_tokens: int, rank: int) -> int:
        """Return the number of random numbers per sample."""
        return self.count

    def __call__(self, u: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return targets (N, P) of samples of the first class."""
        return self.of_class[0](u, noise)


def trace_teacher(teacher: Any, L: int, t: int, n_noise: int, c: int | None) -> SequenceLabels:
    """Return the label model of a teacher for samples of class c, after checks on random numbers."""
    shapes = {"u": (L, t), "noise": (n_noise,)}
    function = UserFunction("teacher", teacher, shapes, "(L, t)", "(n_noise,)", c=c)
    shape = function.probe()
    program = function.trace(required=False)  # picklable, as functions defined inside of others are not
    labels = SequenceLabels(function.plain if program is None else None, shape, L * t, n_noise, False, program)
    rng = np.random.default_rng(5)
    u, noise = rng.standard_normal((N_SYMMETRY, L, t)), rng.standard_normal((N_SYMMETRY, n_noise))
    even = are_equal(labels(u, noise), labels(-u, -noise))
    return SequenceLabels(labels.function, shape, L * t, n_noise, even, labels.program)
