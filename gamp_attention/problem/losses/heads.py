"""Arguments that state a number of heads."""

from typing import Any

from gamp_attention._tools import check
from gamp_attention.problem.losses.attention import DotProductAttention


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
