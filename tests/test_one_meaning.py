"""Each word of the public interface has one meaning."""

import inspect
from dataclasses import is_dataclass

import gamp_attention as ga
from validation._tools.names import PUBLIC

FUNCTIONS = {name: getattr(ga, name) for name in PUBLIC if inspect.isfunction(getattr(ga, name))}
RECORDS = {
    name: getattr(ga, name) for name in PUBLIC
    if is_dataclass(getattr(ga, name)) or hasattr(getattr(ga, name), "_fields")
}  # fmt: skip


def field_types(cls):
    """Return the types of all fields of a dataclass or NamedTuple, by name, including inherited fields."""
    annotations = {}
    for base in reversed(cls.__mro__):
        annotations |= vars(base).get("__annotations__", {})
    return {name: getattr(kind, "__name__", str(kind)) for name, kind in annotations.items()}


def arguments(word):
    """Return the defaults of all arguments with this name, by function."""
    found = {name: inspect.signature(function).parameters.get(word) for name, function in FUNCTIONS.items()}
    return {name: parameter.default for name, parameter in found.items() if parameter is not None}


def attributes(word):
    """Return the types of all fields and properties with this name, by class."""
    found = {name: field_types(cls)[word] for name, cls in RECORDS.items() if word in field_types(cls)}
    properties = {name: getattr(cls, word, None) for name, cls in RECORDS.items() if name not in found}
    return found | {name: "property" for name, value in properties.items() if isinstance(value, property)}


def test_stable_is_a_property_of_solutions_only():
    assert arguments("stable") == {}
    assert attributes("stable") == {"Stability": "property", "BayesStateEvolution": "bool"}
    assert all(default is True for default in arguments("stability").values())
    assert len(arguments("stability")) == 3


def test_a_variance_is_a_number():
    assert set(arguments("variance")) == {"power_law_spectrum", "sparse_teacher"}
    assert all(isinstance(default, float) for default in arguments("variance").values())
    assert attributes("variance") == {"BayesAmpResult": "ndarray"}
    assert set(arguments("response").values()) == {"stein"}


def test_error_is_in_the_units_of_the_value_it_belongs_to():
    """Relative errors are named `relative_error`."""
    assert arguments("error") == {}
    assert attributes("error") == {"Boundary": "float", "Departure": "float", "Trajectory": "Overlaps"}
    for name, cls in RECORDS.items():
        known = set(field_types(cls)) | {each for each in dir(cls) if isinstance(getattr(cls, each), property)}
        of = {each.removesuffix("_error") for each in known if each.endswith("_error")} - {"test", "relative"}
        assert {each for each in of if each not in known and f"{each}_value" not in known} == set(), name
