"""Hashes of models and plain data that are identical in every process."""

import json
from dataclasses import Field, fields, is_dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check, hashes
from gamp_attention.models.model import Model, require_model
from gamp_attention.models.parameters import has_common_variance, has_omega, with_parameter


def digest(model: Model) -> str:
    """Return a short hash of everything in a model."""
    return short_hash(_described(require_model(model)))


def base_digest(model: Model) -> str:
    """Return a short hash of a model without its ω, λ and σ, which are fields of every cell."""
    model = with_parameter(require_model(model), "lam", 1.0)
    if has_omega(model):
        model = with_parameter(model, "omega", 0.0)
    return digest(with_parameter(model, "sigma", 1.0) if has_common_variance(model) else model)


def short_hash(value: Any) -> str:
    """Return 24 hexadecimal digits for plain finite values, from their JSON text with sorted keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashes.hash_bytes(text.encode(), size=12)


def _described(value: Any) -> Any:
    """Return plain data that describe a value completely."""
    if is_dataclass(value) and not isinstance(value, type):
        used = {f.name: getattr(value, f.name) for f in fields(value) if not _is_unused(f, value)}
        return {"type": type(value).__qualname__} | {name: _described(item) for name, item in used.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {"type": type(value).__qualname__} | {name: _described(v) for name, v in value._asdict().items()}
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "values": value.ravel().tolist()}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_described(v) for v in value]
    raise check.fail("model", value, "fields that are numbers, strings, arrays or dataclasses of them", TypeError)


def _is_unused(f: Field[Any], value: Any) -> bool:
    """Return whether a field was added after cells had been stored and has the value with which they were computed."""
    return bool(f.metadata.get("later")) and getattr(value, f.name) == f.default
