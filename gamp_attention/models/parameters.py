"""The parameters ω, λ and σ of a model by name, read and changed."""

from dataclasses import replace

import numpy as np

from gamp_attention._core import check
from gamp_attention.models.model import Model
from gamp_attention.models.teachers import SoftmaxTeacher
from gamp_attention.penalties.standard import with_lam

PARAMETERS = ("alpha", "omega", "lam", "sigma")


def with_parameter(model: Model, name: str, value: float) -> Model:
    """The model with ω, λ or the common standard deviation σ of its tokens changed; α is no part of it."""
    check.choice("parameter", name, PARAMETERS)
    if name == "omega":
        return replace(model, teacher=replace(softmax_teacher(model), omega=check.real(name, value, low=0, high=1)))
    if name == "lam":
        return replace(model, penalty=with_lam(model.penalty, value))
    if name == "sigma":
        gamma, sigma = model.coordinates.gamma, check.real(name, value, low=0, strict=True)
        if not has_common_variance(model):
            raise check.fail("parameter", name, "another one, as the tokens have no common variance")
        return replace(model, coordinates=replace(model.coordinates, gamma=np.full_like(gamma, sigma**2)))
    return model


def parameter_value(model: Model, alpha: float, name: str) -> float:
    """The present value of α, ω, λ or σ."""
    if name == "omega":
        return softmax_teacher(model).omega
    return {"alpha": alpha, "lam": model.lam, "sigma": float(np.sqrt(model.coordinates.gamma.flat[0]))}[name]


def softmax_teacher(model: Model) -> SoftmaxTeacher:
    """The teacher of a model, if it is that of equation (16)."""
    if not has_omega(model):
        raise check.fail("model.teacher", type(model.teacher).__name__, "a SoftmaxTeacher, with ω and A", TypeError)
    return model.teacher


def has_omega(model: Model) -> bool:
    """Whether the teacher is that of equation (16), with an ω."""
    return isinstance(model.teacher, SoftmaxTeacher)


def has_common_variance(model: Model) -> bool:
    """Whether the tokens have a common variance, of which σ is the root."""
    gamma = model.coordinates.gamma
    return bool((gamma == gamma.flat[0]).all())
