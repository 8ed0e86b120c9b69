"""`register_loss` and `register_attention`, and the per-sample loss that a student stands for."""

from typing import Any

from gamp_attention.losses.attention import AttentionLoss
from gamp_attention.losses.point import LOSSES, PointLoss
from gamp_attention.losses.user_attention import MAPS, call_map


def register_loss(cls: type) -> type:
    """Make a NamedTuple with a method `value` a per-sample loss; see `gamp_attention.losses.point`.

    Usable as a decorator. The first use of an instance of it in a model or dataset checks it on the labels there.

    The method ``value(self, p, z)`` returns the loss of a sample with labels p (P,) at fields z (L, r). A method
    ``derivatives(self, p, z, grad, hess)`` returns the loss and fills ``grad`` of shape (L r,) and ``hess`` of shape
    (L r, L r): both are flat over the fields in row-major order, so that the field of token l and column a has index
    l r + a.

    Returns
    -------
    cls itself.

    Raises
    ------
    TypeError : naming what the class lacks, or what is not said of it.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> import gamp_attention as ga
    >>> @ga.register_loss
    ... class Quartic(NamedTuple):
    ...     convex = True
    ...     def value(self, p, z):
    ...         return (z[0, 0] - p[0]) ** 4
    >>> model = ga.glm_model(Quartic(), ga.LinearLabels(), lam=0.1)
    >>> model.loss.n_fields
    1
    """
    LOSSES.complete(cls)
    if not cls.convex and "floor" not in vars(cls):  # type: ignore[attr-defined]
        raise TypeError(
            f"register_loss: {cls.__name__} needs convex = True, or a method floor(self, p), a lower bound of the "
            "loss: the search for the global proximal minimum goes by it"
        )
    LOSSES.add(cls)
    return cls


def register_attention(cls: type) -> type:
    """Make a NamedTuple with a method `attend` an attention map; see `gamp_attention.losses.user_attention`.

    Usable as a decorator. The first use of an instance of it in a model or dataset checks it.

    Returns
    -------
    cls itself.

    Raises
    ------
    TypeError : naming what the class lacks, or what is not said of it.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> @ga.register_attention
    ... class Uniform(NamedTuple):
    ...     even = bounded = True
    ...     def attend(self, z, S):
    ...         S[:] = 1 / len(z)
    >>> Uniform()(np.ones((2, 1))).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    MAPS.add(cls)
    if "__call__" not in vars(cls):
        cls.__call__ = call_map  # type: ignore[method-assign]
    return cls


def sample_loss(student: Any, n_tokens: int, rank: int) -> Any:
    """The per-sample loss of a student: a registered loss itself, or that of the layer for an attention map."""
    return (PointLoss if is_registered_loss(student) else AttentionLoss)(student, n_tokens, rank)


def is_registered_loss(student: Any) -> bool:
    """Whether a student is a loss registered by `register_loss`."""
    return type(student) in LOSSES


def is_registered_attention(student: Any) -> bool:
    """Whether a student is an attention map registered by `register_attention`."""
    return type(student) in MAPS
