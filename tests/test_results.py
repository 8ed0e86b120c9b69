"""Display of results, models and data: a few lines, whatever their size, and conversion to plain data."""

import dataclasses
import enum
import inspect
import json
import types
import typing
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.comparison.comparison import Row
from tests.conftest import QUICK
from validation._tools.names import PUBLIC

WORDS = {status.value for status in ga.Status}
L, R, D, T = 2, 2, 300, 400
ARRAY = np.full((T, L, R), 0.25)
SIMPLE = {
    float: 0.1, int: 12, bool: True, str: "word", np.ndarray: ARRAY, Path: Path("folder"), dict: {}, list: [],
    ga.Status: ga.Status.INACCURATE,
}  # fmt: skip


def make_arrays(*before):
    """Return the four overlaps, with axes `before` in front."""
    shapes = {"q": (L, R, R), "m": (L, R), "theta": (L, R, 1), "V": (L, R, R)}
    return {name: np.full((*before, *shape), 0.25) for name, shape in shapes.items()}


def fill(kind, **given):
    """Return an object of a type whose fields are long arrays, numbers and words, or the `given` values."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return fill(next(each for each in arguments if each is not type(None)))
    if origin is tuple:
        return (fill(arguments[0]),) * 3 if arguments[1:] == (...,) else tuple(map(fill, arguments))
    if origin in (list, dict):
        return [fill(arguments[0])] * 3 if origin is list else {"one": fill(arguments[1])}
    if Callable in (origin, kind):
        return lambda *arguments: (0.1, 1e-3)
    if kind in SIMPLE:
        return SIMPLE[kind]
    if issubclass(kind, enum.Enum):
        return next(iter(kind))
    if not (dataclasses.is_dataclass(kind) or issubclass(kind, tuple)):
        return None
    names = kind._fields if issubclass(kind, tuple) else [each.name for each in dataclasses.fields(kind) if each.init]
    hints = typing.get_type_hints(kind, vars(inspect.getmodule(kind)))
    time = (T,) if {"gradient_norm", "error", "growth"} & set(names) else ()
    arrays = {name: value for name, value in make_arrays(*time).items() if hints.get(name) is np.ndarray}
    return kind(**{name: fill(hints[name]) for name in names if name not in given} | arrays | given)


def make_state_evolution(**given):
    stability = ga.Stability({"symmetric": np.array([0.5 + 0.1j, 0.2]), "m": np.array([1.5]), "theta": np.array([])})
    fixed = {"stability": stability, "replicon": 0.5, "residual": 1e-5, "train_loss_error": 1e-4}
    return fill(ga.StateEvolutionResult, **fixed | given)


def make_arrays_only():
    rng = np.random.default_rng(0)
    return ga.Dataset(rng.normal(size=(D, L, 50)), rng.normal(size=(D, L, 50)), np.ones((L, 50)) / 50)


def make_labelled():
    x = np.random.default_rng(0).normal(size=(D, 50))
    return ga.LabelledDataset(x, np.sign(x[:, 0]), ga.LogisticLoss())


def make_boundaries():
    names = [
        f"{name}_{what}" for name in ("semantic", "positional") for what in ("from", "to", "stable_from", "stable_to")
    ]
    boundaries = [ga.Boundary.found(1.25, 1e-4, 1e-3), ga.Boundary.none("none: there is no semantic branch")]
    lines = dict.fromkeys(("alpha_c", "alpha_l", *names), boundaries)
    status = [ga.Status.CONVERGED, ga.Status.INACCURATE]
    return ga.PhaseBoundaries(np.array([0.1, 0.3]), 0.05, 4.0, lines, status, ["", "late"], [{"points": [0] * T}] * 2)


def make_row():
    values = dict.fromkeys(("q", "m", "theta", "V", "train_loss", "test_error"), 0.5)
    return Row("GAMP", "converged", 12, values, {"test_error": 1e-3}, 1e-9, np.nan, 0.3)


def make_comparison():
    settings = {"d": D, "n": 450, "alpha": 1.5, "lam": 0.01, "seed": 0, "risk": "exact", "damping": {"semantic": 0.5}}
    comparison = fill(ga.Comparison, settings=settings)
    del comparison.branches[2:]
    for branch in comparison.branches:
        object.__setattr__(branch, "name", "semantic")
        branch.rows[:] = [make_row()] * 5
    return comparison


def make_trajectory():
    vectors = [each.name for each in dataclasses.fields(ga.Trajectory) if "loss" in each.name or "test" in each.name]
    return fill(ga.Trajectory, error=ga.Overlaps(**make_arrays(T)), **dict.fromkeys(vectors, np.ones(T)))


def make_curve():
    def equations(x, average, p):
        return {"m": 0.5 * x.m + p}

    return ga.follow_equations(equations, ga.solve_equations(equations, {"m": 0.1}, p=0.1), p=(0.1, 0.2))


def make_path():
    overlaps = ga.Overlaps(**make_arrays(T))
    return ga.BranchPath("alpha", np.linspace(1, 2, T), overlaps, np.ones(T), "fold", 2.0, 1e-4)


ONE, PAIR = np.ones(1), np.ones(2)
NUMBERS = np.array([0.01, 0.1, 1.0])
# objects whose fields must fit together; all other public classes are filled with arrays of one shape
MADE = {
    "BayesStateEvolution": lambda: ga.BayesStateEvolution(
        ga.Status.INACCURATE, 12, 1e-9, *2 * [np.ones((R, R))], *2 * [np.ones((L, R, R))], np.inf, np.nan, 0.1, 1e-3,
        True,
    ),
    "BranchPath": make_path,
    "EquationsCurve": make_curve,
    "BrokenStateEvolutionResult": lambda: fill(
        ga.BrokenStateEvolutionResult, stability=make_state_evolution().stability,
        levels=np.full((3, L, R, R), 0.2), levels_error=np.full((3, L, R, R), 1e-3), parisi=PAIR, parisi_error=PAIR,
        complexity=PAIR, complexity_error=PAIR, replicons=np.ones(3), replicons_error=np.ones(3),
    ),
    "ClassLaw": lambda: ga.ClassLaw([[0, 2], [1, 3]], [0.6, 0.4]),
    "Comparison": make_comparison,
    "CoordinateClasses": lambda: ga.power_law_spectrum(1.0),
    "CoordinateLaw": ga.coordinate_law,
    "DataLaw": lambda: ga.law_of(ga.sample(ga.paper_model(), 20, 2.0)),
    "Dataset": make_arrays_only,
    "DebiasedWeights": lambda: ga.DebiasedWeights(
        *2 * [np.ones((D, R))], np.ones((1, R, R)), trusted=True, message="", form="independent", dof=np.inf
    ),
    "GLMModel": lambda: ga.glm_model(ga.LogisticLoss(), lam=0.1),
    "GradientDescent": ga.GradientDescent,
    "HessianSpectrum": lambda: ga.HessianSpectrum(
        *2 * [PAIR], *2 * [np.ones((2, 3, 1))], *2 * [PAIR], *2 * [ONE], np.ones((1, 3, 1)), np.full(1, np.nan),
        *2 * [ONE], *2 * [np.ones((2, 4))],
    ),
    "IterationOptions": lambda: ga.IterationOptions(V_hat=np.ones((T, L, R, R)), V=np.ones((L, R, R))),
    "LabelledDataset": make_labelled,
    "LimitingSpectrum": lambda: ga.LimitingSpectrum(
        0.1, 2.0, *4 * [ONE], *2 * [np.ones(5)], np.ones((2, 1, 1)), 0.1, np.nan, *4 * [ONE], np.ones(5),
        np.ones((2, 1, 1)), 0.1,
    ),
    "MixtureModel": lambda: ga.mixture_model([[0.4, 0.15], [0.1, 0.35]], [[0.5, -0.7], [0.3, -0.2]]),
    "Model": ga.paper_model,
    "PhaseBoundaries": make_boundaries,
    "RegularizationPath": lambda: ga.RegularizationPath(
        NUMBERS, NUMBERS, NUMBERS / 10, NUMBERS, np.ones((3, 90)), "cavity", 1, 2, (False, True, True),
        (fill(ga.GampResult),) * 3, "The smallest test error is at 0.1.",
    ),
    "SequenceModel": lambda: ga.sequence_model(lambda u, _: u[0, 0], lambda z: z[0, 0], n_tokens=1, rank=1),
    "SoftmaxTeacher": lambda: ga.paper_model().teacher,
    "StateEvolutionResult": make_state_evolution,
    "Sweep": lambda: fill(
        ga.Sweep, rows=[{"status": "converged", "train_loss": np.nan, "overlaps": {"q": [0.1] * 9}}] * 3
    ),
    "Trajectory": make_trajectory,
}  # fmt: skip
DATA = [
    name
    for name in PUBLIC
    if isinstance(cls := getattr(ga, name), type)
    and (dataclasses.is_dataclass(cls) or issubclass(cls, (tuple, ga.Dataset)))
]
RESULTS = [name for name in DATA if hasattr(getattr(ga, name), "to_dict") and name != "DataLaw"]


def make(name):
    return MADE[name]() if name in MADE else fill(getattr(ga, name))


def find_statuses(value):
    """Yield all words under a key named status."""
    if isinstance(value, dict):
        own = value.get("status") or []  # None for starts that were stopped early
        yield from [own] if isinstance(own, str) else own
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from find_statuses(item)


@pytest.mark.parametrize("name", DATA)
def test_repr_fits_a_screen(name):
    shown = repr(make(name))
    assert shown.startswith(f"{name}(")
    assert "array([" not in shown
    assert len(shown.splitlines()) <= 20
    assert max(map(len, shown.splitlines())) <= 120


@pytest.mark.parametrize("name", RESULTS)
def test_results_have_a_summary(name):
    result = make(name)
    summary, table = str(result), result._repr_html_()
    assert summary != repr(result)
    assert "array([" not in summary
    assert len(summary.splitlines()) <= 30
    assert table.startswith("<pre>")
    if hasattr(result, "status") and not isinstance(result.status, list):
        word = getattr(result.status, "value", result.status)
        assert word in summary
        assert word in table


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_plain_data(name):
    result = make(name)
    plain = result.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert set(find_statuses(plain)) <= WORDS
    names = result._fields if isinstance(result, tuple) else vars(result)
    left_out = {"state", "Q", "layer"} if name in ("StartRecord", "SurveyRecord") else {"state", "layer"}
    assert set(names) - left_out <= set(plain)


def test_known_errors_are_shown_with_their_numbers():
    text = str(make_state_evolution())
    assert text.startswith("StateEvolutionResult: inaccurate after 12 iterations, residual 1.0e-05")
    assert "0.10000(10)" in text
    assert "unstable; growth by sector: symmetric 0.5, m 1.5" in text


def test_scalars_are_traces_norms_and_means_over_tokens():
    one = np.ones(2)
    columns = ga.Overlaps(
        q=np.array([np.diag([1.0, 2.0]), np.diag([3.0, 4.0])]), m=np.array([[3.0, 4.0], [0.0, 0.0]]),
        theta=np.array([[[1.0], [0.0]], [[0.0], [2.0]]]), V=np.array([np.diag([2.0, 4.0]), np.diag([6.0, 8.0])]),
    )  # fmt: skip
    assert columns.scalars() == pytest.approx({"q": 5.0, "m": 5.0, "theta": 1.5, "V": 5.0})
    single = ga.Overlaps(one[:, None, None], -one[:, None], -one[:, None, None], 3 * one[:, None, None])
    assert single.scalars() == pytest.approx({"q": 1.0, "m": -1.0, "theta": -1.0, "V": 3.0})  # with their signs


def test_single_items_are_counted_in_the_singular(model, tmp_path):
    one = ga.run_gamp(
        ga.sample(model, d=20, alpha=1.0, seed=0), "semantic", max_iter=1, iteration=ga.IterationOptions(settling=False)
    )
    assert "after 1 iteration\n" in str(one).partition("  ")[0]
    assert "limit of 1 iteration." in one.message
    done = ga.sweep(model, tmp_path, **QUICK, branch="semantic")
    assert str(done).startswith("1 cell, 1 computed now")
