"""Reading and changing the parameters ω, λ and σ of a model by name."""

from dataclasses import replace

import numpy as np

from gamp_attention._core import check
from gamp_attention.models.model import Model
from gamp_attention.models.teachers import SoftmaxTeacher
from gamp_attention.penalties.standard import with_lam

PARAMETERS = ("alpha", "omega", "lam", "sigma")


def with_parameter(model: Model, name: str, value: float) -> Model:
    """Return the model with another ω, λ or common token standard deviation σ; α is not part of a model."""
    check.choice("parameter", name, PARAMETERS)
    if name == "omega":
        return replace(model, teacher=replace(softmax_teacher(model), omega=check.real(name, value, low=0, high=1)))
    if name == "lam":
        return replace(model, penalty=with_lam(model.penalty, value))
    if name == "sigma":
        gamma, sigma = model.coordinates.gamma, check.real(name, value, low=0, strict=True)
        if not has_common_variance(model):
            raise check.fail("parameter", name, "omega, lam or alpha, because the tokens have no common variance")
        return replace(model, coordinates=replace(model.coordinates, gamma=np.full_like(gamma, sigma**2)))
    return model


def parameter_value(model: Model, alpha: float, name: str) -> float:
    """Return the current value of α, ω, λ or σ."""
    if name == "omega":
        return softmax_teacher(model).omega
    return {"alpha": alpha, "lam": model.lam, "sigma": float(np.sqrt(model.coordinates.gamma.flat[0]))}[name]


def softmax_teacher(model: Model) -> SoftmaxTeacher:
    """Return the teacher of a model; raise TypeError unless it is the softmax teacher of equation (16)."""
    if not has_omega(model):
        raise check.fail("model.teacher", type(model.teacher).__name__, "a SoftmaxTeacher, with ω and A", TypeError)
    return model.teacher


def has_omega(model: Model) -> bool:
    """Return whether the teacher is the softmax teacher of equation (16), which has an ω."""
    return isinstance(model.teacher, SoftmaxTeacher)


def has_common_variance(model: Model) -> bool:
    """Return whether all tokens have the same isotropic variance σ²."""
    gamma = model.coordinates.gamma
    return bool((gamma == gamma.flat[0]).all())
