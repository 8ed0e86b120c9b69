"""Registration of user-defined losses and attention maps, whose methods `gamp_attention.problem.losses.point` lists."""

from typing import Any

import numpy as np

from gamp_attention.problem.losses.checks import check_attention, check_finite, check_loss
from gamp_attention.problem.losses.point import LOSSES, MAPS, PointLoss, call_map


def register_loss(cls: type) -> type:
    """Register a NamedTuple with a method `value` as a per-sample loss; see `gamp_attention.problem.losses.point`.

    Usable as a decorator. The first use of an instance in a model or dataset checks its methods on the labels there.

    The method ``value(self, p, z)`` returns the loss of a sample with labels p (P,) at fields z (L, r). A method
    ``derivatives(self, p, z, grad, hess)`` returns the loss and fills ``grad`` of shape (L r,) and ``hess`` of shape
    (L r, L r): both are flat over the fields in row-major order, so that the field of token l and column a has index
    l r + a.

    Returns
    -------
    cls itself.

    Raises
    ------
    TypeError : if `cls` is not derived from NamedTuple, if it has no method `value`, if it does not set `convex` to
        True and has no method `floor`, or if `convex` is not True or False.

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
            f"register_loss: {cls.__name__} needs convex = True, or a method floor(self, p) that returns a lower bound "
            "of the loss, which the search for the global proximal minimum requires"
        )
    LOSSES.add(cls)
    cls.check_labels = _check_labels  # type: ignore[attr-defined]
    return cls


def _check_labels(self: Any, labels: np.ndarray, n_tokens: int, rank: int) -> None:
    """Check a loss at random fields for given labels (n, P); derivatives of losses of the package have own tests."""
    check = check_finite if hasattr(self, "require_labels") else check_loss
    check(PointLoss(self, n_tokens, rank), labels)


def register_attention(cls: type) -> type:
    """Register a NamedTuple with a method `attend` as an attention map; see `gamp_attention.problem.losses.point`.

    Usable as a decorator. The first use of an instance in a model or dataset checks it.

    Returns
    -------
    cls itself.

    Raises
    ------
    TypeError : if `cls` is not derived from NamedTuple, if it has no method `attend`, or if `bounded` is not True or
        False.

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
    cls.check_sizes = check_attention  # type: ignore[attr-defined]
    if "__call__" not in vars(cls):
        cls.__call__ = call_map  # type: ignore[method-assign]
    return cls
