"""`register_loss` and `register_attention`: what users define, compiled and checked, every fault told in words."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core.errors import NumbaError

from gamp_attention._core import check
from gamp_attention._core.compiled import kernel
from gamp_attention.losses.attention import AttentionLoss, loss_derivatives, loss_value, make_work
from gamp_attention.losses.bounds import curvature_floor, loss_floor
from gamp_attention.losses.point import REGISTERED, PointLoss, compiled
from gamp_attention.losses.user_attention import REGISTERED as MAPS
from gamp_attention.losses.user_attention import attend_all, compile_map

TRIALS = 5  # random fields at which a loss is checked
SIZE = 0.7  # of these
AGREE = 1e-5  # of derivatives with differences, relative
STEP = 1e-5
SYMMETRIC = 1e-10  # relative difference of values that a symmetry says are equal
TRAITS = {"convex": False, "bounded": False, "even": False, "rotations": False, "parts": 1}


def register_loss(cls: type) -> type:
    """Make a NamedTuple with a method `value` a per-sample loss; see `gamp_attention.losses.point`.

    Usable as a decorator. The first use of an instance of it in a model or dataset checks it on the labels there.

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
    check.namedtuple_class("register_loss", cls, ("value(self, p, z)",))
    _add_traits(cls)
    if not cls.convex and "floor" not in vars(cls):  # type: ignore[attr-defined]
        raise TypeError(
            f"register_loss: {cls.__name__} needs convex = True, or a method floor(self, p), a lower bound of the "
            "loss: the search for the global proximal minimum goes by it"
        )
    REGISTERED[cls] = compiled(cls)
    return cls


def check_loss(loss: PointLoss, params: np.ndarray) -> None:
    """Check a registered loss at random fields for the labels in the first rows of params (n, P).

    Raises
    ------
    TypeError : where a method does not compile or returns something else than numbers.
    ValueError : where it returns NaN, or its derivatives, bounds or symmetries are wrong.
    """
    name, rng = type(loss.loss).__name__, np.random.default_rng(0)
    k = loss.n_fields
    for p in params[:TRIALS]:
        z, grad, hess = SIZE * rng.standard_normal(k), np.full(k, np.nan), np.full((k, k), np.nan)
        values = [_try(name, "value", _value, loss, p, x) for x in (z, -z)]
        value = _number(f"{name}.value", values[0])
        again = _number(f"{name}.derivatives", _try(name, "derivatives", _derivatives, loss, p, z, grad, hess))
        if not (np.isfinite(grad).all() and np.isfinite(hess).all()):
            raise ValueError(f"{name}.derivatives: needs to fill grad and hess with finite numbers, left or made NaN")
        _agree(f"{name}.derivatives", "its value", again, value, "value", SYMMETRIC)
        for i in range(k):
            moved = []
            for side in (-1, 1):
                there, slopes = z + side * STEP * np.eye(k)[i], np.empty(k)
                _derivatives(loss, p, there, slopes, np.empty((k, k)))
                moved.append((_value(loss, p, there), slopes))
            slope, curvature = (moved[1][0] - moved[0][0]) / (2 * STEP), (moved[1][1] - moved[0][1]) / (2 * STEP)
            scale = 1 + np.abs(hess).max() + np.abs(grad).max() + abs(value)
            _agree(f"{name}.derivatives", f"grad[{i}]", grad[i], slope, "differences of value", AGREE, scale)
            _agree(f"{name}.derivatives", f"hess[{i}]", hess[i], curvature, "differences of grad", AGREE, scale)
        floor = _number(f"{name}.floor", _try(name, "floor", _floor, loss, p), infinite=True)
        if floor > value + SYMMETRIC * abs(value):
            raise ValueError(f"{name}.floor: needs a lower bound of the loss, got {floor} above its value {value}")
        lowest, radius = np.linalg.eigvalsh(hess)[0], float(np.linalg.norm(z))
        bound = _number(f"{name}.curvature", _try(name, "curvature", _curvature, loss, p, radius), infinite=True)
        if bound > lowest + AGREE * scale:
            what = "convex = True" if loss.loss.convex else "curvature"
            raise ValueError(f"{name}: {what} is wrong, an eigenvalue of the Hessian is {lowest} at z = {z}")
        if loss.loss.even:
            _agree(name, "even = True: value(-z)", _number(name, values[1]), value, "value(z)", SYMMETRIC)
        if loss.loss.rotations and loss.rank > 1:
            turned = z.reshape(-1, loss.rank) @ np.linalg.qr(rng.standard_normal((loss.rank, loss.rank)))[0]
            _agree(name, "rotations = True: value(zO)", _value(loss, p, turned.ravel()), value, "value(z)", SYMMETRIC)


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
    check.namedtuple_class("register_attention", cls, ("attend(self, z, S)",))
    _add_traits(cls)
    compile_map(cls)
    return cls


def check_attention(attention: Any, n_tokens: int, rank: int) -> None:
    """Check a registered map at random fields.

    Raises
    ------
    TypeError : where `attend` does not compile or run.
    ValueError : where S is not filled with finite numbers, or a trait is wrong.
    """
    name, rng = type(attention).__name__, np.random.default_rng(0)
    for _ in range(TRIALS):
        z = SIZE * rng.standard_normal((1, n_tokens, rank))
        turned = z @ np.linalg.qr(rng.standard_normal((rank, rank)))[0]
        S = []
        for fields in (z, -z, turned):
            S.append(np.full((1, n_tokens, n_tokens), np.nan))
            _try(name, "attend", attend_all, attention, fields, S[-1])
        if not np.isfinite(S[0]).all():
            raise ValueError(f"{name}.attend: needs to fill S {S[0].shape[1:]} with finite numbers, left or made NaN")
        if attention.bounded and (S[0].min() < 0 or np.abs(S[0].sum(axis=2) - 1).max() > SYMMETRIC):
            raise ValueError(
                f"{name}: bounded = True needs rows that are positive and add to 1, got {S[0][0].tolist()}"
            )
        if attention.even:
            _agree(name, "even = True: S[-z]", S[1][0], S[0][0], "S[z]", SYMMETRIC)
        if attention.rotations and attention.parts == 1:
            _agree(name, "rotations = True: S[zO]", S[2][0], S[0][0], "S[z]", SYMMETRIC)


def sample_loss(student: Any, n_tokens: int, rank: int) -> Any:
    """The per-sample loss that a student, an attention map or a registered loss, stands for."""
    return (PointLoss if is_registered_loss(student) else AttentionLoss)(student, n_tokens, rank)


def is_registered_loss(student: Any) -> bool:
    """Whether `register_loss` was told of the class of a student."""
    return type(student) in REGISTERED


def is_registered_attention(student: Any) -> bool:
    """Whether `register_attention` was told of the class of a student."""
    return type(student) in MAPS


def _add_traits(cls: Any) -> None:
    for name, default in TRAITS.items():
        if not hasattr(cls, name):
            setattr(cls, name, default)
    for name in ("convex", "bounded"):
        if not isinstance(getattr(cls, name), bool):
            needs = "True or False for the class, as it is compiled in"
            raise check.fail(f"{cls.__name__}.{name}", getattr(cls, name), needs, TypeError)


@kernel
def _value(loss, p, z):
    return loss_value(loss, p, z, make_work(loss))


@kernel
def _derivatives(loss, p, z, grad, hess):
    return loss_derivatives(loss, p, z, grad, hess, make_work(loss))


@kernel
def _floor(loss, p):
    return loss_floor(loss, p, make_work(loss))


@kernel
def _curvature(loss, p, radius):
    return curvature_floor(loss, p, radius)


def _try(name: str, method: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """The result; what numba says of code that does not compile in one line."""
    try:
        return call(*arguments)
    except NumbaError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        told = next((line for line in lines if not line.startswith(("Failed in", "During", "- "))), lines[0])
        raise TypeError(f"{name}.{method}: needs code that numba compiles, got: {told}") from None
    except (AttributeError, IndexError, NameError, ValueError, TypeError, ZeroDivisionError) as error:
        raise TypeError(
            f"{name}.{method}: needs to run on p and z of the model's shapes, got {type(error).__name__}: {error}"
        ) from error


def _number(what: str, value: Any, infinite: bool = False) -> float:
    if np.ndim(value) or isinstance(value, (tuple, str)) or value is None:
        raise TypeError(f"{what}: needs to return one number, got {type(value).__name__}")
    value = float(value)
    if np.isnan(value) or (not infinite and np.isinf(value)):
        raise ValueError(f"{what}: needs to return a finite number, got {value}")
    return value


def _agree(where: str, what: str, a: Any, b: Any, other: str, tol: float, scale: float | None = None) -> None:
    scale = 1 + float(np.abs(b).max()) if scale is None else scale
    if not np.abs(np.asarray(a) - b).max() <= tol * scale:
        raise ValueError(f"{where}: {what} is {a}, but {other} gives {b}")
