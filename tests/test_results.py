"""Display of results, models and data: a few lines, whatever their size, and conversion to plain data."""

import json
from dataclasses import is_dataclass
from pathlib import Path

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.bayes.amp import BayesHistory
from gamp_attention.extensions.bayes.priors import MixturePrior
from gamp_attention.extensions.comparison.comparison import Branch, Row
from gamp_attention.extensions.sweeps.jobs import Cell
from gamp_attention.extensions.train.survey_averages import InnerAverages
from gamp_attention.gamp.descent import Settled, SettlingHistory
from gamp_attention.gamp.step import StepReport
from gamp_attention.problem.layer import Layer, Units
from gamp_attention.theory.fixed_points.refinement import StateEvolutionHistory
from tests.conftest import QUICK
from validation._tools.names import PUBLIC

WORDS = {status.value for status in ga.Status}
L, R, D, T = 2, 2, 300, 400


def test_scalars_of_overlaps_are_numbers_and_of_histories_arrays():
    for rank in (1, 2):
        overlaps = ga.Overlaps(np.ones((2, rank, rank)), np.ones((2, rank)), np.ones((2, rank, 1)), np.ones((2, 1, 1)))
        assert all(isinstance(value, float) for value in overlaps.scalars().values())
    assert {value.shape for value in make_history().scalars().values()} == {(T,)}


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


def make_arrays(*before):
    """Return the four overlaps, with axes `before` in front."""
    shapes = {"q": (L, R, R), "m": (L, R), "theta": (L, R, 1), "V": (L, R, R)}
    return {name: np.full((*before, *shape), 0.25) for name, shape in shapes.items()}


def make_state_evolution():
    """Return a fixed point with all fields."""
    stability = ga.Stability({"symmetric": np.array([0.5 + 0.1j, 0.2]), "m": np.array([1.5]), "theta": np.array([])})
    return ga.StateEvolutionResult(
        status=ga.Status.INACCURATE,
        n_iter=12,
        residual=1e-5,
        history=StateEvolutionHistory(**make_arrays(12)),
        overlaps=ga.Overlaps(**make_arrays()),
        overlaps_error=ga.Overlaps(**{name: 1e-3 * value for name, value in make_arrays().items()}),
        relative_error=1e-3,
        train_loss=0.1,
        train_loss_error=1e-4,
        test_error=0.2,
        test_error_error=np.nan,
        jump_mass=np.ones((L, R, R)),
        jump_mass_error=np.ones((L, R, R)),
        V_hat=np.ones((L, R, R)),
        V_hat_error=np.ones((L, R, R)),
        replicon=0.5,
        replicon_error=1e-2,
        stability=stability,
        consistent=True,
        validity="consistent, jumps make 0.1 % of V̂",
        response="stein",
        rule="panels",
    )


def make_broken():
    """Return a fixed point with two steps of replica symmetry breaking."""
    fields = vars(make_state_evolution()) | {"validity": "broken: two steps of replica symmetry breaking"}
    levels, parisi, replicons = np.full((3, L, R, R), 0.2), np.array([1.5, 3.0]), np.ones(3)
    return ga.BrokenStateEvolutionResult(
        **fields, levels=levels, levels_error=1e-3 * levels, parisi=parisi, parisi_error=1e-3 * parisi,
        complexity=0 * parisi, complexity_error=1e-6 * parisi, replicons=replicons, replicons_error=1e-3 * replicons,
    )  # fmt: skip


def make_population_map():
    """Return a map of a population loss with two minima."""
    grid = np.full((9, 9), np.nan)
    minima = tuple(ga.PopulationMinimum(a, 1 - a, 0.1, 1e-4) for a in (0.0, 1.0))
    return ga.PopulationMap(np.linspace(-1, 1, 9), grid, grid, minima, np.eye(2), 0.01 * np.eye(2))


def make_history():
    """Return the history of a long run."""
    return ga.History(**make_arrays(T), gradient_norm=np.ones(T), train_loss=np.ones(T), damping=np.ones(T - 1))


def make_gamp():
    """Return the result of a long run."""
    return ga.GampResult(
        status=ga.Status.SETTLED,
        n_iter=T,
        residual=1e-9,
        history=make_history(),
        Q=np.ones((D, R)),
        overlaps=ga.Overlaps(**make_arrays()),
        train_loss=0.1,
        gradient_norm=1e-9,
        message_passing=ga.Status.STALLED,
        n_settle=3,
        fixed_point=True,
        is_minimum=True,
        lowest_eigenvalue=0.003,
        lowest_eigenvalue_error=1e-7,
        direction=np.full((D, R), (D * R) ** -0.5),
        n_off_global=0,
        n_near_jump=1,
        state=make_state(),
        message="Message passing stopped improving after 400 iterations; a descent converged after 3 steps.",
    )


def make_fit_result():
    """Return the result of an interrupted command."""
    layer = Layer(ga.DotProductAttention(), np.ones((D, R)), np.zeros((L, D)), Units.raw(D))
    return ga.FitResult(Path("mine.fit.npz"), ga.Status.INTERRUPTED, 3, 0.1, 1e-3, 0.01, layer.Q, layer)


def make_leave_one_out():
    """Return errors that are not trusted."""
    errors, flags = np.arange(90.0), np.arange(90) % 3 == 0
    message = "not to be trusted: the landscape is rough; 30 of 90 samples are doubtful"
    return ga.LeaveOneOut(
        0.1,
        0.01,
        0.0,
        False,
        5e-5,
        0.05,
        errors,
        np.ones((90, L, R)),
        "hessian",
        False,
        flags,
        errors,
        ~flags,
        np.nan,
        message,
    )


def make_references():
    """Return errors of 90 samples, their means and standard errors."""
    errors = np.arange(270.0).reshape(3, 90)
    return errors, errors.mean(axis=1), np.ones(3)


def make_regularization_path():
    """Return a path of three values."""
    values, trusted = np.array([0.01, 0.1, 1.0]), (False, True, True)
    return ga.RegularizationPath(
        "lam", values, values, values / 10, np.zeros((3, 3)), values, np.ones((3, 90)), "cavity", 1, 2, trusted,
        values * np.nan, (make_gamp(),) * 3, None, "The smallest test error is at lam = 0.1.",
    )  # fmt: skip


def make_state():
    """Return a state of message passing."""
    return ga.GampState(np.ones((D, R)), np.ones((L, R, R)), np.ones((D, L, R)), np.ones((D, L, R)))


def make_descent():
    """Return the result of a long descent."""
    overlaps = ga.Overlaps(**make_arrays() | {"V": np.full((L, R, R), np.nan)})
    return ga.DescentResult(
        ga.Status.MAX_ITER,
        T,
        1e-3,
        make_history(),
        np.arange(T),
        np.ones((D, R)),
        overlaps,
        0.1,
        gradient_norm=1e-3,
        is_minimum=False,
        lowest_eigenvalue=np.nan,
        lowest_eigenvalue_error=np.nan,
    )


def make_trajectory():
    """Return a predicted trajectory."""
    hats = np.ones((20, L, R, R))
    losses = dict.fromkeys(("train_loss", "train_loss_error", "test_error", "test_error_error"), np.ones(21))
    responses = dict.fromkeys(("V_hat", "jump_mass", "jump_mass_error"), hats)
    jumps = dict.fromkeys(("jump_share", "jump_share_error", "jump_shift"), np.zeros(20))
    inner = dict.fromkeys(("U", "U_error"), np.zeros((0, L, 1, 1)))
    return ga.Trajectory(
        **make_arrays(21), error=ga.Overlaps(**make_arrays(21)), **losses, **responses, **jumps, **inner
    )


def make_baseline():
    """Return a linear baseline."""
    return ga.LinearBaseline(np.ones((L, L)), np.zeros((L, L)), 0.1, 1e-6, ga.Status.CONVERGED)


def make_row():
    """Return a row of a comparison."""
    values = dict.fromkeys(("q", "m", "theta", "V", "train_loss", "test_error"), 0.5)
    return Row("GAMP", "converged", 12, values, {"test_error": 1e-3}, 1e-9, np.nan, 0.3)


def make_branch():
    """Return a branch of a comparison."""
    spread = {name: np.ones((3, 21)) for name in ("q", "m", "theta", "V")}
    ends = (
        make_gamp(),
        make_trajectory(),
        make_trajectory(),
        make_state_evolution(),
        make_descent(),
        make_descent(),
        make_descent(),
    )
    return Branch("semantic", *ends, spread, [make_row()] * 5)


def make_comparison():
    """Return a comparison on one branch."""
    settings = {"d": D, "n": 450, "alpha": 1.5, "lam": 0.01, "seed": 0, "risk": "exact", "damping": {"semantic": 0.5}}
    return ga.Comparison(settings, [make_branch()], make_baseline(), 12.0)


def make_boundaries():
    """Return a phase diagram of two points."""
    names = [
        f"{name}_{what}" for name in ("semantic", "positional") for what in ("from", "to", "stable_from", "stable_to")
    ]
    boundaries = [ga.Boundary.found(1.25, 1e-4, 1e-3), ga.Boundary.none("none: there is no semantic branch")]
    lines = dict.fromkeys(("alpha_c", "alpha_l", *names), boundaries)
    status = [ga.Status.CONVERGED, ga.Status.INACCURATE]
    return ga.PhaseBoundaries(np.array([0.1, 0.3]), 0.05, 4.0, lines, status, ["", "late"], [{"points": [0] * T}] * 2)


def make_sweep():
    """Return a sweep of many cells."""
    cells = [Cell("SE", "semantic", 0.1 * k, 0.3, 0.01, 0.5, None, None) for k in range(T)]
    rows = [{"status": "converged", "train_loss": np.nan, "overlaps": {"q": [0.1] * 9}} for _ in cells]
    return ga.Sweep(Path("folder"), cells, rows, T, 0, {"model": "abc", "settings": {}})


def make_path():
    """Return the path of a continued branch."""
    growth = {"symmetric": np.ones(T), "m": np.full(T, np.nan), "theta": np.ones(T)}
    overlaps = ga.Overlaps(**make_arrays(T))
    return ga.BranchPath("alpha", np.linspace(1, 2, T), overlaps, np.ones(T), growth, "fold", 2.0, 1e-4, [])


def make_denoised():
    """Return a denoiser's result for many samples."""
    shapes = (D, L, R), (D, L, R), (D, L, R, R), (0, 4, 4), (D,), (D,), (D,), (D,), (D,)
    return ga.Denoised(*(np.ones(shape) for shape in shapes))


def make_survey_report():
    """Return the report of an iteration of survey propagation."""
    shapes = (D, L, R), (D, L, R, R), (D, L, R, R), (D,), (D,)
    averages = InnerAverages(*(np.ones(shape) for shape in shapes))
    return ga.SurveyReport(np.ones((D, L, R)), averages, *4 * [np.ones((L, R, R))])


def make_dataset():
    """Return a dataset of arrays."""
    rng = np.random.default_rng(0)
    return ga.Dataset(rng.normal(size=(D, L, 50)), rng.normal(size=(D, L, 50)), np.ones((L, 50)) / 50)


def make_distributed():
    """Return the same dataset as a distributed dataset without workers."""
    dataset = object.__new__(ga.DistributedDataset)
    vars(dataset).update(vars(make_dataset()))
    return dataset


def make_labelled():
    """Return data of logistic regression."""
    x = np.random.default_rng(0).normal(size=(D, 50))
    return ga.LabelledDataset(x, np.sign(x[:, 0]), ga.LogisticLoss())


def make_sampled_law():
    """Return a law of many classes."""
    rng = np.random.default_rng(0)
    return ga.law_from_samples(rng.random((D, L)), rng.normal(size=(D, L)), rng.normal(size=(D, 1)))


def make_bayes_amp():
    """Return the result of a long run of Bayes-optimal message passing."""
    prior = MixturePrior(np.full(3, 1 / 3), np.zeros((3, R)), np.ones((3, R, R)))
    return ga.BayesAmpResult(
        status=ga.Status.LOST,
        n_iter=T,
        residual=1e-3,
        history=BayesHistory(*[np.ones((T + 1, R, R))] * 2, np.ones((T + 1, L, R, R))),
        Q=np.ones((D, R)),
        variance=np.ones((D, R)),
        overlap=np.full((R, R), np.nan),
        V=np.ones((L, R, R)),
        free_entropy=-np.inf,
        priors=(prior,) * 40,
        noise=0.1,
        starts=(("random", ga.Status.LOST, -0.5),) * 50,
        message="no signal is left",
    )


def make_bayes_fixed_point():
    """Return a fixed point with an infinite free entropy."""
    q, V = np.ones((R, R)), np.ones((L, R, R))
    return ga.BayesStateEvolution(ga.Status.INACCURATE, 12, 1e-9, q, q, V, V, np.inf, np.nan, 0.1, 1e-3, True, True)


RESULTS = {
    "BayesAmpResult": make_bayes_amp,
    "BayesHistory": lambda: make_bayes_amp().history,
    "BayesStateEvolution": make_bayes_fixed_point,
    "BayesThresholds": lambda: ga.BayesThresholds(
        0.5, 0.1, np.nan, np.nan, (1.0, 1.1), (0.1, 0.1), {"full_recovery": "none"}
    ),
    "RecoveryStage": lambda: ga.RecoveryStage((1,), 0.18, 0.01),
    "StagedThresholds": lambda: ga.StagedThresholds(
        0.18, 0.01, np.nan, np.nan, None, None, {"hard": "not computed"}, (ga.RecoveryStage((0, 1), 0.18, 0.01),)
    ),
    "Boundary": lambda: ga.Boundary.found(1.25, 1e-4, 1e-3),
    "Branch": make_branch,
    "BranchPath": make_path,
    "BrokenStateEvolutionResult": make_broken,
    "Branches": lambda: ga.Branches(
        [make_state_evolution()] * 3, ["semantic", "positional", "a mixture"], {"random": "lost"}
    ),
    "Comparison": make_comparison,
    "Denoised": make_denoised,
    "Departure": lambda: ga.Departure("correlation", 0.1, 0.01, 0.0, "mild", "samples are not independent"),
    "DebiasedWeights": lambda: ga.DebiasedWeights(
        np.ones((D, R)), np.ones((D, R)), np.ones((1, R, R)), trusted=True, message="", form="independent", dof=np.inf
    ),
    "DescentResult": make_descent,
    "SpectralDirections": lambda: ga.SpectralDirections(np.ones(3), np.ones((3, D, 1))),
    "HessianSpectrum": lambda: ga.HessianSpectrum(
        *2 * [np.ones(2)],
        *2 * [np.ones((2, 3, 1))],
        *2 * [np.ones(2)],
        *2 * [np.ones(1)],
        np.ones((1, 3, 1)),
        np.full(1, np.nan),
        *2 * [np.ones(1)],
        *2 * [np.ones((2, 4))],
    ),
    "LimitingSpectrum": lambda: ga.LimitingSpectrum(
        0.1,
        2.0,
        *4 * [np.ones(1)],
        *2 * [np.ones(5)],
        np.ones((2, 1, 1)),
        0.1,
        np.nan,
        *4 * [np.ones(1)],
        np.ones(5),
        np.ones((2, 1, 1)),
        0.1,
    ),
    "SpectralOverlap": lambda: ga.SpectralOverlap(-1.0, 1.5, *3 * [np.ones(1)], 0.1, np.nan, *3 * [np.ones(1)]),
    "StartRecord": lambda: ga.StartRecord(
        "random 1", False, None, 6, 0.1, 1.0, np.inf, 0.5, ga.Overlaps(**make_arrays()), np.ones((D, R))
    ),
    "FitResult": make_fit_result,
    "GampResult": make_gamp,
    "LeaveOneOut": make_leave_one_out,
    "History": make_history,
    "LinearBaseline": make_baseline,
    "LinearFit": lambda: ga.LinearFit(np.ones((L, L)), 0.1),
    "OnlineResult": lambda: ga.OnlineResult(**vars(make_descent()), Q_star=np.ones((D, 1)), n_samples=10 * D),
    "Overlaps": lambda: ga.Overlaps(**make_arrays()),
    "PhaseBoundaries": make_boundaries,
    "PopulationLoss": lambda: ga.PopulationLoss(np.ones(T), np.ones(T)),
    "PopulationMap": make_population_map,
    "PopulationMinimum": lambda: ga.PopulationMinimum(1.0, 0.0, 0.1, 1e-4),
    "ReferenceErrors": lambda: ga.ReferenceErrors(("linear", "mean", "zero"), *make_references(), True, np.zeros(3)),
    "ReferenceVerdict": lambda: RESULTS["ReferenceErrors"]().verdict(np.ones(90)),
    "RegularizationPath": make_regularization_path,
    "Row": make_row,
    "Settled": lambda: Settled(np.ones((D, R)), 1e-9, 12, 0.5, SettlingHistory(np.ones(13), np.ones(13))),
    "SettlingHistory": lambda: SettlingHistory(np.ones(T), np.ones(T)),
    "Stability": lambda: make_state_evolution().stability,
    "StateEvolutionResult": make_state_evolution,
    "SurveyRecord": lambda: ga.SurveyRecord("random 1", 250.0, ga.SurveyEnd.COLLAPSED, 42, 1e-3, 0.1, np.ones((D, R))),
    "Sweep": make_sweep,
    "TrainResult": lambda: ga.TrainResult(
        **vars(make_gamp()), starts=8 * (RESULTS["StartRecord"](),), surveys=3 * (RESULTS["SurveyRecord"](),)
    ),
    "Trajectory": make_trajectory,
}
OTHERS = {
    "AttentionLoss": lambda: make_dataset().loss,
    "Checkpoint": lambda: ga.Checkpoint("run.npz"),
    "ClassLabels": ga.ClassLabels,
    "ClassLaw": lambda: ga.ClassLaw([[0, 2], [1, 3]], [0.6, 0.4]),
    "ColumnRidge": lambda: ga.ColumnRidge([0.1, "sphere"]),
    "CoordinateClasses": lambda: ga.power_law_spectrum(1.0),
    "CoordinateLaw": ga.coordinate_law,
    "DataLaw": lambda: ga.law_of(ga.sample(ga.paper_model(), 20, 2.0), replicas=2),
    "Dataset": make_dataset,
    "DistributedDataset": make_distributed,
    "DotProductAttention": ga.DotProductAttention,
    "ElasticNet": lambda: ga.ElasticNet(0.1, 0.1),
    "GradientDescent": ga.GradientDescent,
    "MessagePassing": ga.MessagePassing,
    "SinglePass": ga.SinglePass,
    "Survey": lambda: ga.Survey(10.0),
    "GLMModel": lambda: ga.glm_model(ga.LogisticLoss(), lam=0.1),
    "GampState": make_state,
    "IterationOptions": lambda: ga.IterationOptions(V_hat=np.ones((T, L, R, R)), V=np.ones((L, R, R))),
    "IntensityLabels": ga.IntensityLabels,
    "LabelledDataset": make_labelled,
    "LinearLabels": ga.LinearLabels,
    "LogisticLabels": ga.LogisticLabels,
    "LogisticLoss": ga.LogisticLoss,
    "MixtureModel": lambda: ga.mixture_model([[0.4, 0.15], [0.1, 0.35]], [[0.5, -0.7], [0.3, -0.2]]),
    "Model": ga.paper_model,
    "MultiHeadAttention": ga.MultiHeadAttention,
    "MultinomialLoss": ga.MultinomialLoss,
    "PhaseRetrievalLoss": ga.PhaseRetrievalLoss,
    "Ridge": lambda: ga.Ridge(0.1),
    "SampledLaw": make_sampled_law,
    "SequenceModel": lambda: ga.sequence_model(lambda u, _: u[0, 0], lambda z: z[0, 0], n_tokens=1, rank=1),
    "SoftmaxTeacher": lambda: ga.paper_model().teacher,
    "SquaredLoss": ga.SquaredLoss,
    "SurveyReport": make_survey_report,
    "SurveyState": lambda: ga.SurveyState(np.ones((D, R)), *2 * [np.ones((L, R, R))], np.ones((D, L, R))),
    "StepReport": lambda: StepReport(
        np.ones((D, L, R)), make_denoised(), np.ones((L, R, R)), np.ones((L, R, R)), lambda: (0.1, 1e-3)
    ),
}


def find_statuses(value):
    """Yield all words under a key named status."""
    if isinstance(value, dict):
        own = value.get("status") or []  # None for starts that were stopped early
        yield from [own] if isinstance(own, str) else own
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from find_statuses(item)


@pytest.mark.parametrize("name", RESULTS | OTHERS)
def test_repr_fits_a_screen(name):
    shown = repr((RESULTS | OTHERS)[name]())
    assert shown.startswith(f"{name}(")
    assert "array([" not in shown
    assert len(shown.splitlines()) <= 20
    assert max(map(len, shown.splitlines())) <= 120


@pytest.mark.parametrize("name", RESULTS)
def test_results_have_a_summary_and_a_table(name):
    result = RESULTS[name]()
    summary, table = str(result), result._repr_html_()
    assert summary != repr(result)
    assert "array([" not in summary
    assert len(summary.splitlines()) <= 30
    assert table.startswith("<table>")
    assert table.count("<tr>") <= 30
    if name == "StartRecord":
        assert "stopped early" in summary
    elif hasattr(result, "status") and not isinstance(result.status, list):
        word = getattr(result.status, "value", result.status)
        assert word in summary
        assert word in table


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_plain_data(name):
    result = RESULTS[name]()
    plain = result.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert set(find_statuses(plain)) <= WORDS
    names = result._fields if isinstance(result, tuple) else vars(result)
    left_out = {"state", "Q", "layer"} if name in ("StartRecord", "SurveyRecord") else {"state", "layer"}
    assert set(names) - left_out <= set(plain)


def test_every_public_class_is_covered():
    classes = {name for name in PUBLIC if isinstance(getattr(ga, name), type)}
    data = {
        name
        for name in classes
        if is_dataclass(getattr(ga, name)) or issubclass(getattr(ga, name), (tuple, ga.Dataset))
    }
    assert data <= {*RESULTS, *OTHERS}
    assert classes - data == {"ConvergenceError", "KinkWarning", "Status", "SurveyEnd"}


def test_known_errors_are_shown_with_their_numbers():
    text = str(make_state_evolution())
    assert text.startswith("StateEvolutionResult: inaccurate after 12 iterations, residual 1.0e-05")
    assert "0.100000(100)" in text
    assert "unstable; growth by sector: symmetric 0.5, m 1.5" in text
