"""Attention maps of several heads."""

from typing import Any

from gamp_attention._tools import check
from gamp_attention.problem.losses.attention import DotProductAttention


def MultiHeadAttention(
    heads: int = 2, temperature: float = 1.0, tied: bool = True, causal: bool = False
) -> DotProductAttention:
    """Return the mean of H dot-product attention maps, S[z] = Σ_h S_h[z]/H; each map (head) has its columns of Q.

    The columns of Q are the queries of all heads, one head after the other, and for separate keys then the keys of all
    heads. Heads with value matrices are built by `value_model`.

    Parameters
    ----------
    heads : number of heads H; the number of columns must be a multiple of H, or of 2 H for separate keys.
    temperature, tied, causal : as for `DotProductAttention`.

    Returns
    -------
    DotProductAttention : with this number of heads.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> z = np.array([[1.0, 0.0], [0.0, 2.0]])  # two tokens; each head reads one column
    >>> single = [ga.DotProductAttention()(z[:, [head]]) for head in range(2)]
    >>> np.allclose(ga.MultiHeadAttention(heads=2)(z), np.mean(single, axis=0))
    True
    """
    return DotProductAttention(temperature, tied, causal, heads=heads)


def require_heads(heads: Any, student: Any) -> int:
    """Return the number of heads; raise if it contradicts the student."""
    known = check.integer("student.heads", getattr(student, "heads", 1), low=1)
    if heads is None or heads == known:
        return known
    heads = check.integer("heads", heads, low=1)
    if known > 1:
        raise check.fail("heads", heads, f"{known}, the number of heads of the student, or no value")
    return heads


def with_heads(student: Any, heads: int) -> Any:
    """Return the attention map of several heads, each like the given student."""
    student = DotProductAttention() if student is None else student
    if heads == 1 or getattr(student, "heads", 1) > 1:
        return student
    if not isinstance(student, DotProductAttention):
        needs = "a DotProductAttention, which all heads share, for several heads"
        raise check.fail("student", student, needs, TypeError)
    return student._replace(heads=heads).validated("student")
