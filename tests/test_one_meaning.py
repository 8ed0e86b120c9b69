"""Each word of the public interface has one meaning."""

import inspect
from dataclasses import is_dataclass
from typing import get_type_hints

import gamp_attention as ga
from validation._tools.names import PUBLIC

FUNCTIONS = {name: getattr(ga, name) for name in PUBLIC if inspect.isfunction(getattr(ga, name))}
RECORDS = {
    name: getattr(ga, name) for name in PUBLIC
    if is_dataclass(getattr(ga, name)) or hasattr(getattr(ga, name), "_fields")
}  # fmt: skip


def get_field_types(cls):
    """Return the types of all fields of a dataclass or NamedTuple, by name, including inherited fields."""
    return {name: getattr(kind, "__name__", str(kind)) for name, kind in get_type_hints(cls).items()}


def find_arguments(word):
    """Return the defaults of all arguments with this name, by function."""
    parameters = {name: inspect.signature(function).parameters.get(word) for name, function in FUNCTIONS.items()}
    return {name: parameter.default for name, parameter in parameters.items() if parameter is not None}


def find_attributes(word):
    """Return the types of all fields and properties with this name, by class."""
    fields = {name: get_field_types(cls)[word] for name, cls in RECORDS.items() if word in get_field_types(cls)}
    properties = {name: getattr(cls, word, None) for name, cls in RECORDS.items() if name not in fields}
    return fields | {name: "property" for name, value in properties.items() if isinstance(value, property)}


def test_stable_is_a_property_of_solutions_only():
    assert find_arguments("stable") == {}
    assert find_attributes("stable") == {"Stability": "property", "BayesStateEvolution": "bool"}
    assert all(default is True for default in find_arguments("stability").values())
    assert len(find_arguments("stability")) == 3


def test_a_variance_is_a_number():
    assert set(find_arguments("variance")) == {"power_law_spectrum", "sparse_teacher"}
    assert all(isinstance(default, float) for default in find_arguments("variance").values())
    assert find_attributes("variance") == {"BayesAmpResult": "ndarray"}
    assert set(find_arguments("response").values()) == {"stein"}


def test_error_is_in_the_units_of_the_value_it_belongs_to():
    """Relative errors are named `relative_error`."""
    assert find_arguments("error") == {}
    assert find_attributes("error") == {
        "Boundary": "float", "Departure": "float", "PopulationLoss": "ndarray", "PopulationMap": "ndarray",
        "PopulationMinimum": "float", "Trajectory": "Overlaps",
    }  # fmt: skip
    for name, cls in RECORDS.items():
        names = set(get_field_types(cls)) | {
            attribute for attribute in dir(cls) if isinstance(getattr(cls, attribute), property)
        }
        quantities = {attribute.removesuffix("_error") for attribute in names if attribute.endswith("_error")} - {
            "test",
            "relative",
        }
        assert {
            attribute for attribute in quantities if attribute not in names and f"{attribute}_value" not in names
        } == set(), name
