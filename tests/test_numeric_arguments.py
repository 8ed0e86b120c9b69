"""Numbers of any size in every argument of every public function: a correct result, or an error that names it."""

import inspect

import pytest

import gamp_attention as ga
from tests.calls import LINES, RESULTS, TESTED_ELSEWHERE, build_names, list_arguments, vary_argument
from tests.evaluation import RecordingModule, evaluate_call
from validation._tools.names import PUBLIC

SIZES = ("0", "-1", "1e-300", "1e-30", "1e30", "1e160", "1e300", "-1e300", "float('nan')", "float('inf')", "10**18")
PATIENCE = 1.0  # maximum CPU time of a call, in seconds
SLOW = {"branches", "compare", "continue_branch", "phase_boundaries", "solve_broken", "solve_with_norm", "sweep"}


def accepts_a_number(parameter):
    """Return whether a parameter has a number as default or is annotated as a number."""
    default, said = parameter.default, str(parameter.annotation).split(" | ")
    return (isinstance(default, int | float) and not isinstance(default, bool)) or bool({"int", "float"} & set(said))


def test_all_public_functions_have_a_call():
    assert set(LINES) | RESULTS | TESTED_ELSEWHERE == set(PUBLIC)
    assert not (set(LINES) & (RESULTS | TESTED_ELSEWHERE))


@pytest.mark.parametrize("name", sorted(LINES))
def test_the_calls_include_all_numeric_arguments(name):
    known = {slot.name for slot in list_arguments(LINES[name]) if slot.kind in ("number", "array")}
    if inspect.isfunction(getattr(ga, name)):
        missing = {
            p.name for p in inspect.signature(getattr(ga, name)).parameters.values() if accepts_a_number(p)
        } - known
        # arguments that do not exist for other methods
        other_methods = {"lr", "momentum", "batch", "parisi", "d", "alpha", "compression"}
        assert missing - {"checkpoint_every", "damping"} - other_methods == set()


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    return build_names(str(tmp_path_factory.mktemp("calls"))) | {"ga": RecordingModule()}


@pytest.mark.slow(keep=15)
@pytest.mark.parametrize("name", sorted(set(LINES) - SLOW, reverse=True))
def test_numbers_of_any_size_are_accepted_or_rejected(name, names):
    line = LINES[name]
    assert evaluate_call(line, names, PATIENCE)["outcome"] == "answered"
    calls = [other for slot in list_arguments(line) for other in vary_argument(slot, line, SIZES)]
    outcomes = {other: evaluate_call(other, names, PATIENCE) for other in calls}
    assert {other: outcome for other, outcome in outcomes.items() if outcome["faults"]} == {}


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("ga.paper_model(omega='one')", None),
        ("np.zeros(3)[7]", "raised"),
        ("np.float64(1e300) * 1e300 > 0", "warned"),
        ("np.full(3, np.nan)", "nan"),
        ("np.sum([sum(range(10**5)) for _ in range(10**2)])", "late"),
    ],
)
def test_faults_are_detected(line, fault, names):
    assert evaluate_call(line, names, 0.05)["faults"] == ([] if fault is None else [fault])
