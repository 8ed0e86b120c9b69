"""Words of the public interface have one meaning each."""

import inspect
from dataclasses import is_dataclass

import gamp_attention as ga
from validation._tools.names import PUBLIC

FUNCTIONS = {name: getattr(ga, name) for name in PUBLIC if inspect.isfunction(getattr(ga, name))}
RECORDS = {
    name: getattr(ga, name) for name in PUBLIC
    if is_dataclass(getattr(ga, name)) or hasattr(getattr(ga, name), "_fields")
}  # fmt: skip


def held(cls):
    """The types of the fields of a dataclass or NamedTuple, by name, those of its bases included."""
    found = {}
    for each in reversed(cls.__mro__):
        found |= {
            name: getattr(kind, "__name__", str(kind)) for name, kind in vars(each).get("__annotations__", {}).items()
        }
    return found


def arguments(word):
    """The defaults of all arguments of that name."""
    found = {name: inspect.signature(function).parameters.get(word) for name, function in FUNCTIONS.items()}
    return {name: parameter.default for name, parameter in found.items() if parameter is not None}


def attributes(word):
    """The types of all fields and properties of that name."""
    found = {name: held(cls)[word] for name, cls in RECORDS.items() if word in held(cls)}
    properties = {name: getattr(cls, word, None) for name, cls in RECORDS.items() if name not in found}
    return found | {name: "property" for name, value in properties.items() if isinstance(value, property)}


def test_stable_is_whether_a_solution_is():
    assert arguments("stable") == {}
    assert attributes("stable") == {"Stability": "property", "BayesStateEvolution": "bool"}
    assert all(default is True for default in arguments("stability").values())
    assert len(arguments("stability")) == 3


def test_a_variance_is_a_number():
    assert set(arguments("variance")) == {"power_law_spectrum", "sparse_teacher"}
    assert all(isinstance(default, float) for default in arguments("variance").values())
    assert attributes("variance") == {"BayesAmpResult": "ndarray"}
    assert set(arguments("response").values()) == {"stein"}


def test_an_error_is_that_of_what_bears_it():
    """Of a number or overlaps, in their units; relative ones are called so."""
    assert arguments("error") == {}
    numbers = {"Boundary": "float", "Departure": "float"}
    assert attributes("error") == numbers | {"Trajectory": "Overlaps"}
    for name, cls in RECORDS.items():
        known = set(held(cls)) | {each for each in dir(cls) if isinstance(getattr(cls, each), property)}
        of = {each.removesuffix("_error") for each in known if each.endswith("_error")} - {"test", "relative"}
        assert {each for each in of if each not in known and f"{each}_value" not in known} == set(), name
