"""Numbers of any size in every argument of every public function: a correct result, or an error that names it."""

import inspect

import pytest

import gamp_attention as ga
from tests.calls import LINES, RESULTS, TESTED_ELSEWHERE, list_arguments, vary_argument
from tests.evaluation import TimedEvaluator
from validation._tools.names import PUBLIC

SIZES = ("0", "-1", "1e-300", "1e-30", "1e30", "1e160", "1e300", "-1e300", "float('nan')", "float('inf')", "10**18")
PATIENCE = 1.0  # maximum CPU time of a call, in seconds
SLOW = {"branches", "compare", "continue_branch", "phase_boundaries", "solve_broken", "sweep"}


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
def patient():
    process = TimedEvaluator()
    yield process
    process.end()


@pytest.mark.slow(keep=15)
@pytest.mark.parametrize("name", sorted(set(LINES) - SLOW, reverse=True))
def test_numbers_of_any_size_are_accepted_or_rejected(name, patient):
    line = LINES[name]
    wrong = []
    assert patient(line, PATIENCE, line)["outcome"] == "answered"
    for slot in list_arguments(line):
        for other in vary_argument(slot, line, SIZES):
            outcome = patient(other, PATIENCE, line)
            if outcome["faults"]:
                wrong.append((other, outcome["faults"], outcome["message"], outcome["warned"]))
    assert wrong == []


@pytest.mark.parametrize(
    ("line", "fault", "limit"),
    [
        ("ga.paper_model(omega='one')", None, 0.5),
        ("np.zeros(3)[7]", "raised", 0.5),
        ("np.float64(1e300) * 1e300", "warned", 0.5),
        ("np.full(3, np.nan)", "nan", 0.5),
        (
            "np.sum([sum(range(10**5)) for _ in range(10**5)])",
            "late",
            0.05,
        ),  # a second attempt has twenty times the limit
    ],
)
def test_faults_are_detected(line, fault, limit, patient):
    outcome = patient(line, limit)["faults"]
    assert fault is None or fault in outcome
    assert (fault is None) == (outcome == [])
