"""Registration of user-defined losses and attention maps, and checks of them with messages that name the faulty method.

The methods are listed in `gamp_attention.problem.losses.point`. They are checked at random fields.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from gamp_attention._kernels.compiled import kernel
from gamp_attention._kernels.content import require_unchanged
from gamp_attention._kernels.user_code import attempt
from gamp_attention.problem.losses.kinks import has_kinks_of_fields
from gamp_attention.problem.losses.point import LOSSES, MAPS, PointLoss, attend_all
from gamp_attention.problem.losses.protocol import loss_curvature, loss_derivatives, loss_floor, loss_value

VALUE_ERROR = 1e-10  # allowed relative difference of values that a symmetry requires to be equal


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
    LOSSES.add(cls)
    if not cls.convex and "floor" not in vars(cls):  # type: ignore[attr-defined]
        raise TypeError(
            f"register_loss: {cls.__name__} needs convex = True, or a method floor(self, p) that returns a lower bound "
            "of the loss, which the search for the global proximal minimum requires"
        )
    cls.check_labels = _check_labels  # type: ignore[attr-defined]
    return cls


def _check_labels(self: Any, labels: np.ndarray, n_tokens: int, rank: int) -> None:
    """Check a loss at random fields for given labels (n, P); derivatives of losses of the package have own tests."""
    require_unchanged(type(self))
    if not hasattr(self, "require_labels"):
        check_loss(PointLoss(self, n_tokens, rank), labels)
        return
    for p, z in _draw_samples(labels, n_tokens, rank):
        with np.errstate(all="ignore"):
            _number(f"{type(self).__name__}.value", self.value, p, z)


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
        cls.__call__ = _call_map  # type: ignore[method-assign]
    return cls


def _draw_fields(*shape: int) -> np.ndarray:
    """Return five random arrays of fields, at which softmax weights are neither equal nor 0 or 1."""
    return 0.7 * np.random.default_rng(0).standard_normal((5, *shape))


def _draw_samples(labels: np.ndarray, *shape: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Return pairs of labels and random fields; the rows of labels (n, P) are evenly spaced in increasing order."""
    fields, ordered = _draw_fields(*shape), labels[np.lexsort(labels.T[::-1])]
    return zip(ordered[np.unique(np.linspace(0, len(labels) - 1, len(fields)).astype(int))], fields, strict=False)


def check_loss(loss: PointLoss, params: np.ndarray, step: float = 1e-5, relative_error: float = 1e-5) -> None:
    """Check a registered loss at random fields for some labels, from the smallest to the largest of params (n, P).

    The user's derivatives are compared with central differences of a given step; differences of `relative_error` are
    allowed.
    """
    name, k, rng = type(loss.loss).__name__, loss.n_fields, np.random.default_rng(1)
    for labels, fields in _draw_samples(params, k):
        p, z, grad, hess = labels.copy(), fields.copy(), np.full(k, np.nan), np.full((k, k), np.nan)
        shapes = f"p has shape {p.shape} and z has shape (L, r) = {(loss.n_tokens, loss.rank)}"
        require_indices(f"{name}.value", loss.loss.value, p, z.reshape(-1, loss.rank), shapes=shapes)
        value = _number(f"{name}.value", _value, loss, p, z, shapes=shapes)
        shapes += f", grad has shape (L r,) = {(k,)} and hess has shape (L r, L r) = {(k, k)}"
        shapes += ", with field (l, a) at index l r + a"
        again = _number(f"{name}.derivatives", _derivatives, loss, p, z, grad, hess, shapes=shapes)
        if not (np.isfinite(grad).all() and np.isfinite(hess).all()):
            needs, got = "to fill all of grad and hess with finite numbers", "entries that were not filled or are NaN"
            raise ValueError(f"{name}.derivatives: needs {needs}, got {got}; {shapes}")
        _require_unchanged(f"{name}.value, {name}.derivatives", (p, labels), (z, fields))
        _agree(f"{name}.derivatives", "its value", again, value, "value")
        smooth = not has_kinks_of_fields(loss, params)  # next to a kink, differences are not derivatives
        error = relative_error * (1 + np.abs(hess).max() + np.abs(grad).max() + abs(value))
        for i, offset in enumerate(step * np.eye(k) if smooth and hasattr(loss.loss, "derivatives") else ()):
            values, gradients = np.empty(2), np.empty((2, k))
            for side, point in enumerate((z - offset, z + offset)):
                values[side] = _derivatives(loss, p, point, gradients[side], np.empty((k, k)))
            slope, curvature = (np.diff(ends, axis=0)[0] / (2 * step) for ends in (values, gradients))
            _agree(f"{name}.derivatives", f"grad[{i}]", grad[i], slope, "differences of value", error)
            _agree(f"{name}.derivatives", f"hess[{i}]", hess[i], curvature, "differences of grad", error)
        floor = _number(f"{name}.floor", _floor, loss, p, infinite=True)
        if floor > value + VALUE_ERROR * abs(value):
            got = f"{floor}, which is above the loss {value}"
            raise ValueError(f"{name}.floor: needs a lower bound of the loss, got {got}")
        lowest, ball = np.linalg.eigvalsh(hess)[0], (np.zeros(k), float(np.linalg.norm(z)))
        bound = _number(f"{name}.curvature", curvature_bound, loss, p, *ball, infinite=True)
        if smooth and bound > lowest + error:
            declared = "convex = True" if loss.loss.convex else "curvature"
            raise ValueError(f"{name}: {declared} is wrong, an eigenvalue of the Hessian is {lowest} at z = {z}")
        if loss.loss.even:
            _agree(name, "even = True: value(-z)", _value(loss, p, -z), value, "value(z)")
        if loss.loss.rotations and loss.rank > 1:
            rotated = z.reshape(-1, loss.rank) @ np.linalg.qr(rng.standard_normal((loss.rank, loss.rank)))[0]
            _agree(name, "rotations = True: value(zO)", _value(loss, p, rotated.ravel()), value, "value(z)")


def require_indices(method: str, function: Any, *arguments: np.ndarray, shapes: str) -> None:
    """Raise ValueError if a user's method, run in Python, uses an index outside of its arguments.

    Compiled code does not check indices: it would read other memory. Any other error of Python is ignored, because the
    compiled method may run nevertheless.
    """
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            function(*(argument.copy() for argument in arguments))
    except IndexError as error:
        raise ValueError(f"{method}: needs indices within its arguments, got {error}; {shapes}") from None
    except Exception:  # code that only numba runs
        return


def _require_unchanged(methods: str, *pairs: tuple[np.ndarray, np.ndarray]) -> None:
    """Raise ValueError if a compiled method has changed an argument; each pair is an argument and its first value."""
    if not all(np.array_equal(argument, first, equal_nan=True) for argument, first in pairs):
        raise ValueError(f"{methods}: need to leave p and z unchanged, got changed entries; change copies of them")


def check_attention(attention: Any, n_tokens: int, rank: int) -> None:
    """Check a registered map at random fields."""
    require_unchanged(type(attention))
    name, rng, maps = type(attention).__name__, np.random.default_rng(1), list[np.ndarray]()
    for z in _draw_fields(1, n_tokens, rank):
        rotated = z @ np.linalg.qr(rng.standard_normal((rank, rank)))[0]
        S = []
        for fields in (z, -z, rotated):
            S.append(np.full((1, n_tokens, n_tokens), np.nan))
            shapes = f"z has shape (L, r) = {(n_tokens, rank)} and S has shape (L, L) = {(n_tokens, n_tokens)}"
            require_indices(f"{name}.attend", attention.attend, fields[0], S[-1][0], shapes=shapes)
            first = fields.copy()
            attempt(f"{name}.attend", attend_all, attention, fields, S[-1], shapes=shapes)
            _require_unchanged(f"{name}.attend", (fields, first))
        if not np.isfinite(S[0]).all():
            needs = f"to fill S {S[0].shape[1:]} with finite numbers"
            raise ValueError(f"{name}.attend: needs {needs}, got entries that were not filled or are NaN")
        if attention.bounded and (S[0].min() < 0 or np.abs(S[0].sum(axis=2) - 1).max() > VALUE_ERROR):
            needs = "bounded = True needs rows that are positive and add up to 1"
            raise ValueError(f"{name}: {needs}, got {S[0][0].tolist()}")
        if attention.even:
            _agree(name, "even = True: S[-z]", S[1][0], S[0][0], "S[z]")
        if attention.rotations and attention.parts == 1:
            _agree(name, "rotations = True: S[zO]", S[2][0], S[0][0], "S[z]")
        maps.append(S[0])
    if not np.ptp(maps, axis=0).any():
        raise ValueError(f"{name}.attend: needs to depend on the fields, got equal S for all fields; {shapes}")


@kernel
def _value(loss, p, z):
    return loss_value(loss, p, z, z)  # the value of a registered loss needs no scratch


@kernel
def _derivatives(loss, p, z, grad, hess):
    return loss_derivatives(loss, p, z, grad, hess, np.empty((len(z) + 2) * len(z)), True)


@kernel
def _floor(loss, p):
    return loss_floor(loss, p, p)


@kernel
def curvature_bound(loss, p, center, reach):
    """Return the lower bound of the eigenvalues of the Hessian of a loss in a ball of fields."""
    return loss_curvature(loss, p, center, reach)


def _number(method: str, kernel: Any, *arguments: Any, infinite: bool = False, shapes: str = "") -> float:
    """Return the result of a kernel as a number; raise unless it is one finite number, or infinite if allowed."""
    value = attempt(method, kernel, *arguments, shapes=shapes)
    about = f"; {shapes}" if shapes else ""
    if np.ndim(value) or isinstance(value, (tuple, str)) or value is None:
        raise TypeError(f"{method}: needs to return one number, got {type(value).__name__}{about}")
    value = float(value)
    if np.isnan(value) or (not infinite and np.isinf(value)):
        raise ValueError(f"{method}: needs to return a finite number, got {value}")
    return value


def _agree(name: str, quantity: str, a: Any, b: Any, other: str, error: float | None = None) -> None:
    """Raise unless a quantity `a` agrees with its value `b` from another source, up to an error."""
    allowed = VALUE_ERROR * (1 + float(np.abs(b).max())) if error is None else error
    if not np.abs(np.asarray(a) - b).max() <= allowed:
        raise ValueError(f"{name}: {quantity} is {a}, but {other} gives {b}")


def _call_map(self: Any, z: Any) -> Any:
    """Return attention matrices (..., L, L) for local fields (..., L, r), as numpy arrays or torch tensors."""
    if not isinstance(z, np.ndarray):
        if not hasattr(self, "torch"):
            raise TypeError(f"data: minimize_risk needs a loss with a method torch(self, z), got {type(self).__name__}")
        return self.torch(z)
    L = z.shape[-2]
    flat = np.ascontiguousarray(z).reshape(-1, L, z.shape[-1])
    S = np.empty((len(flat), L, L))
    attend_all(self, flat, S)
    return S.reshape(*z.shape[:-1], L)
