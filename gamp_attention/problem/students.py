"""Checks of attention maps, losses with their labels, and penalties of columns."""

from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention.problem.losses.attention import require_valid_attention
from gamp_attention.problem.penalties.standard import without_intercept


def check_columns(penalty: Any, student: Any, rank: int) -> None:
    """Raise ValueError if a penalty of columns is for another rank, or leaves the risk without a minimum."""
    penalty = without_intercept(penalty)
    if not penalty.by_column:
        return
    if penalty.rank != rank:
        raise check.fail(
            "lam, penalty", list(penalty.lams), f"one number, or one entry for each of the {rank} column(s) of Q"
        )
    strengths = penalty.curvature
    if (strengths < 0).any() and (getattr(student, "bounded", False) or getattr(student, "grows_slowly", False)):
        needs = "no negative λ, because this loss grows at most linearly and the risk would have no lower bound"
        raise check.fail("lam, penalty", list(penalty.lams), needs)
    if (strengths <= 0).any() and student.parts > 1:
        needs = "positive λ for queries and keys, because a factor of queries and its inverse of keys cancel"
        raise check.fail("lam, penalty", list(penalty.lams), needs)


def check_student(student: Any, n_tokens: int, rank: int, name: str = "n_tokens") -> Any:
    """Return the student; raise TypeError or ValueError unless it is a valid attention map or loss for these sizes.

    `name` is the argument that determines the number of tokens.
    """
    student = require_valid_attention("student", student, rank)
    if n_tokens == 1 and getattr(student, "bounded", False):
        needs = "at least 2 tokens per sample, as the softmax of one score is 1 for all weights"
        raise ValueError(f"{check.fail_words(name, '1 token', needs)}; rows with labels: LabelledDataset, glm_model")
    if hasattr(student, "check_sizes"):  # a registered map
        student.check_sizes(n_tokens, rank)
    elif not hasattr(type(student), "loss_class"):
        needs = "a DotProductAttention, or an attention map registered by register_attention"
        needs += ", or a loss registered by register_loss" if hasattr(student, "value") else ""
        raise check.fail("student", student, needs, TypeError)
    if rank % student.parts:
        raise check.fail("rank", rank, f"a multiple of {student.parts}, as queries and keys have separate columns")
    return student


def require_loss(loss: Any) -> Any:
    """Return the argument if it is an instance of a registered loss; raise TypeError if not."""
    if not (hasattr(type(loss), "check_labels") or hasattr(type(loss), "read_targets")):
        cls, needs = loss if isinstance(loss, type) else type(loss), "an instance of a loss that is registered"
        remedy = f"decorate the class {cls.__name__} with @gamp_attention.register_loss"
        if hasattr(cls, "check_labels"):
            remedy = f"call the class, {cls.__name__}(...)"
        elif cls.__module__ == "builtins":
            remedy = "for example gamp_attention.LogisticLoss()"
        raise TypeError(f"{check.fail('loss', loss, f'{needs} by register_loss')}; {remedy}")
    return loss


def check_labels(loss: Any, labels: Any, n: int, n_tokens: int, rank: int) -> np.ndarray:
    """Return labels as an array (n, P); raise ValueError if the loss cannot be evaluated with them."""
    if hasattr(loss, "read_targets"):  # a traced function: its derivatives are exact
        return loss.read_targets(labels, n, n_tokens, rank)
    labels = np.array(check.array("labels", labels, (n, "P")), order="C")
    smallest = 1e-100  # squares of numbers below this size are rounded to zero
    if 0 < (largest := np.abs(labels).max()) < smallest:
        needs = f"sizes of at least {smallest:g}, as smaller squares are rounded to zero (multiply them by a factor)"
        raise check.fail_words("labels", f"at most {largest:.3g}", needs)
    if hasattr(loss, "require_labels"):
        loss.require_labels(labels, n_tokens, rank)
    loss.check_labels(labels, n_tokens, rank)
    return labels
