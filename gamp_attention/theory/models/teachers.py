"""Teachers T: attention maps from the teacher's fields u = xQ*/√d (..., L, t) to target matrices (..., L, L)."""

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import DisplayMixin
from gamp_attention._tools.numerics import check_squarable
from gamp_attention.problem.losses.attention import DotProductAttention, require_valid_attention


class Teacher(Protocol):
    """Interface of a teacher: a callable with one property. A `Model` tries it on a small input at construction."""

    @property
    def even(self) -> bool:
        """True if T[−u] = T[u] for all u."""

    def __call__(self, u: np.ndarray) -> np.ndarray:
        """Return target attention matrices (..., L, L) for teacher fields u (..., L, t)."""


@dataclass(frozen=True, eq=False)
class SoftmaxTeacher(DisplayMixin):
    """Softmax teacher T[u] = (1 − ω) S[u] + ω A, equation (16), with S[u] = softmax_rows(u uᵀ) or another attention.

    Eq. :eq:`teacher`.

    Attributes
    ----------
    omega : fraction ω of the positional matrix.
    A : (L, L) positional matrix.
    attention : attention map S; pass a `DotProductAttention` for a temperature, a causal mask or separate keys.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> ga.SoftmaxTeacher(0.5, np.eye(2))(np.zeros((2, 1))).tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    """

    omega: float
    A: np.ndarray
    attention: DotProductAttention = field(default_factory=DotProductAttention)

    def __post_init__(self) -> None:
        object.__setattr__(self, "omega", check.real("omega", self.omega, low=0, high=1))
        A = np.array(check_squarable("A", self.A, ("L", "L")))  # a copy, which the caller cannot change
        if len(A) != A.shape[1]:
            raise check.fail_words("A", f"shape {A.shape}", "a square matrix")
        object.__setattr__(self, "A", A)
        object.__setattr__(self, "attention", require_valid_attention("attention", self.attention))

    @property
    def even(self) -> bool:
        """True if T[−u] = T[u] for all u."""
        return self.attention.even

    def __call__(self, u: np.ndarray) -> np.ndarray:
        """Return target attention matrices (..., L, L) for teacher fields u (..., L, t)."""
        return (1 - self.omega) * self.attention(u) + self.omega * self.A


def probe_fields(n_tokens: int, rank: int) -> np.ndarray:
    """Return three fields (3, L, rank) on which maps are tested, identical at every call."""
    return np.random.default_rng(3).standard_normal((3, n_tokens, rank))


def check_teacher(teacher: Any, n_tokens: int, teacher_rank: int) -> None:
    """Raise TypeError or ValueError unless a teacher returns consistent matrices for a few fields."""
    if not callable(teacher):
        raise check.fail("teacher", teacher, "a callable u (..., L, t) → (..., L, L)", TypeError)
    even = getattr(teacher, "even", "missing")
    if not isinstance(even, bool | np.bool_):
        needs = "a property `even`, True if T[-u] = T[u] for all u, else False"
        raise check.fail_words("teacher", f"{type(teacher).__name__} with even = {even!r}", needs, TypeError)

    def evaluate(u: np.ndarray) -> np.ndarray:
        shape = (*u.shape[:-1], n_tokens)
        try:
            matrices = teacher(u)
        except Exception as error:
            got = f"{type(error).__name__}: {error}"
            raise check.fail_words("teacher", got, f"a map of fields of shape {u.shape} to matrices {shape}") from error
        return check.array(f"teacher(u) for u of shape {u.shape}", matrices, shape)

    u = probe_fields(n_tokens, teacher_rank)
    together = evaluate(u)
    if not np.allclose(evaluate(u[0]), together[0], rtol=1e-9, atol=1e-12):
        needs = "to return the same matrix for one sample as for a batch"
        raise check.fail_words("teacher", "different matrices", needs)
    evaluate(np.zeros((n_tokens, teacher_rank)))
    if even and not np.allclose(teacher(-u), together, rtol=1e-9, atol=1e-12):
        raise check.fail_words("teacher", "even = True", "T[-u] = T[u] for all u if `even` is True")


def keeps_order(attention: Any, rank: int, order: np.ndarray) -> bool:
    """Return whether a permutation of the tokens permutes rows and columns of the attention matrix equally."""
    u = probe_fields(len(order), rank)
    return bool(np.allclose(attention(u[:, order]), attention(u)[:, order][:, :, order], rtol=1e-12, atol=1e-13))


def keeps_columns(attention: Any, n_tokens: int, rank: int) -> bool:
    """Return whether the matrix is unchanged if the columns of the fields are rotated or one of them is reflected."""
    u = probe_fields(n_tokens, rank)
    rotation, _ = np.linalg.qr(np.random.default_rng(4).standard_normal((rank, rank)))
    reflection = np.diag([-1.0] + [1.0] * (rank - 1))
    return all(np.allclose(attention(u @ O), attention(u), rtol=1e-12, atol=1e-13) for O in (rotation, reflection))


def is_invariant(values: np.ndarray, *axes: int) -> bool:
    """Return whether no permutation of the indices of given axes together changes an array, to the last bit."""
    moved, n = np.moveaxis(values, axes, range(len(axes))), values.shape[axes[0]]
    orders = [1, 0, *range(2, n)], [*range(1, n), 0]
    return all(np.array_equal(moved[np.ix_(*[order] * len(axes))], moved) for order in orders)
