"""Runs at finite d follow the predictions of `trajectory` for their instances, for every method, model and start."""

from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.dynamics.stored_times import StoredPaths
from gamp_attention.extensions.train.survey import SurveyState, first_variances, survey_step
from gamp_attention.gamp.step import averaged_memory, naive_memory
from gamp_attention.problem.risk import overlaps
from gamp_attention.problem.starts import initial_weights
from tests.conftest import CLASSES, MEANS, SIGMA
from tests.extensions.sequence.test_sequence_classes import uneven
from tests.problem.penalties.test_intercept import shifted_model


class Case(NamedTuple):
    """A model, a method and the size of its runs."""

    make: Any
    start: str
    method: Any
    n_iter: int = 8
    alpha: float = 1.5
    d: int = 300
    seeds: int = 8
    V_hat: bool = False  # whether GAMP uses the predicted response, as the response of the samples has no jumps
    checked: tuple[str, ...] = ("q", "m", "theta", "V", "train_loss")
    by_source: bool = False  # whether all entries are compared, with an error of 1/(4√d) of the largest


LOSS = "train_loss"
GAMP = {"d": 500, "seeds": 10, "checked": ("q", "m", "theta", "V")}
MIX = {"d": 500, "seeds": 6, "checked": ("q", "m", "theta", "V"), "by_source": True}
WEAK, SURVEY = "weak", {"n_iter": 10, "d": 500, "seeds": 6, "checked": ("q", "m", "theta", "V", "U")}


SEQUENCE = {"n_iter": 5, "alpha": 3.0, "d": 400, "seeds": 6, "by_source": True, "checked": ("q", "m", "theta", "V")}
INTERCEPT = {"n_iter": 6, "alpha": 2.0, "d": 400, "seeds": 6, "checked": ("q", "m")}


def paper(**options):
    return lambda: ga.paper_model(**options)


def glm(loss, *labels, **options):
    return lambda: ga.glm_model(loss, *labels, **options)


def mixture(*arguments, **options):
    return lambda: ga.mixture_model(*arguments, **options)


FLAT = mixture([[0.4, 0.1], [0.1, 0.4]], [[0.5, -0.5], [0.5, -0.5]])
TANH = partial(
    ga.sequence_model, lambda u, noise: np.tanh(u[0, 0]) + 0.3 * noise[0], lambda z: np.tanh(z[0, 0]),
    n_tokens=1, rank=1, n_noise=1, lam=0.05,
)  # fmt: skip
APART = [[[0.5, -0.7], [0.3, -0.2]], [[-0.5, 0.7], [-0.3, 0.2]]]  # means along random signs instead of the positions
HARD = paper(omega=0.2, sigma=0.8)
QUICK = {
    "messages": Case(paper(), "semantic", ga.MessagePassing(), 12, **GAMP | {"checked": (*GAMP["checked"], LOSS)}),
    "messages, positional": Case(paper(), "positional", ga.MessagePassing(0.3), 12, V_hat=True, **GAMP),
    "descent": Case(paper(), "semantic", ga.GradientDescent(1.5)),
    "minibatches": Case(paper(), "semantic", ga.GradientDescent(1.0, batch=0.3)),
    "mixture": Case(mixture(CLASSES, MEANS), "semantic", ga.MessagePassing(0.4), 10, **MIX),
    "survey": Case(HARD, WEAK, ga.Survey(300.0), alpha=1.0, **SURVEY),
    "sequence": Case(TANH, "semantic", ga.MessagePassing(), 6, alpha=3.0, seeds=6, checked=("q",)),
    "sequence classes": Case(uneven, "semantic", ga.MessagePassing(), **SEQUENCE),
    "descent, sequence classes": Case(uneven, "semantic", ga.GradientDescent(0.3), **SEQUENCE),
    "intercept": Case(shifted_model, "random", ga.MessagePassing(), **INTERCEPT),
    "descent, intercept": Case(shifted_model, "random", ga.GradientDescent(0.1), **INTERCEPT),
    "Nesterov, intercept": Case(shifted_model, "random", ga.GradientDescent(0.1, 0.9, nesterov=True), **INTERCEPT),
}
SLOW = {
    "undamped messages": Case(paper(), "semantic", ga.MessagePassing(1.0), 4, **GAMP),
    "descent, positional": Case(paper(), "positional", ga.GradientDescent(1.5)),
    "minibatches, positional": Case(paper(), "positional", ga.GradientDescent(1.0, batch=0.3)),
    "momentum": Case(paper(), "semantic", ga.GradientDescent(0.6, 0.7)),
    "Nesterov": Case(paper(), "semantic", ga.GradientDescent([1.0, 0.6], 0.7, nesterov=True)),
    "descent, score noise": Case(paper(score_noise=0.3), "semantic", ga.GradientDescent(1.0)),
    "descent, two columns": Case(lambda: ga.attention_model(3, 2, 1), "semantic", ga.GradientDescent(1.0)),
    "descent, mixture": Case(FLAT, "semantic", ga.GradientDescent(1.0)),
    "descent, logistic": Case(glm(ga.LogisticLoss(), lam=0.1), "random", ga.GradientDescent(1.0)),
    "mixture, means apart": Case(mixture(CLASSES, APART), "semantic", ga.MessagePassing(0.4), 10, **MIX),
    "mixture, variances": Case(mixture(CLASSES, MEANS, sigma=SIGMA), "semantic", ga.MessagePassing(0.4), 10, **MIX),
    "mixture, positional": Case(mixture(CLASSES, MEANS), "positional", ga.MessagePassing(0.3), 8, V_hat=True, **MIX),
    "mixture, teacher along the means": Case(
        mixture(CLASSES, MEANS, sigma=SIGMA, teacher_mean=[0.4]), "semantic", ga.MessagePassing(0.4), 10, V_hat=True,
        **MIX,
    ),
    "survey, teacher": Case(HARD, "semantic", ga.Survey(300.0), alpha=1.0, **SURVEY),
    "survey, phase retrieval": Case(glm(ga.PhaseRetrievalLoss()), WEAK, ga.Survey(3.0), alpha=3.0, **SURVEY),
}  # fmt: skip
CASES = QUICK | SLOW


def run_survey(data, Q, method, n_iter):
    """Return the states of survey propagation from weights Q, before and after each iteration."""
    params = data.terms("asymptotic").params
    samples = [(data.loss, params[rows], sources, float(data.dim)) for rows, sources in data.groups]
    V, U, _ = first_variances(data.penalty, data.spectra, samples, data.rank)
    states = [SurveyState(Q, V, U, np.zeros((data.n_samples, data.n_tokens, data.rank)))]
    for _ in range(n_iter):
        states.append(survey_step(data, "asymptotic", states[-1], method.damping, method.parisi))
    return states


def run_and_predict(case, seed, n_paths, memory):
    """Return arrays of a run, of the prediction for its instance and of the errors of the prediction, by name."""
    data, start, method = ga.sample(case.make(), case.d, case.alpha, 700 + seed), case.start, case.method
    if isinstance(method, ga.Survey):
        Q = initial_weights(data, "random" if start == WEAK else start, seed)
        Q[: len(data.Q_star)] += 0.03 * data.Q_star * (start == WEAK)  # cosine 0.3 with the teacher; no intercept
        states = run_survey(data, Q, method, case.n_iter)
        start = overlaps(data, Q, states[0].V)
    path = ga.trajectory(
        data.instance_model(), data.alpha, start, method, case.n_iter, n_paths=n_paths, n_replicas=2, seed=seed
    )
    risk, limits = "asymptotic" if data.model.attention else "exact", {"tol": 0, "max_iter": case.n_iter}
    if isinstance(method, ga.MessagePassing):
        options = ga.IterationOptions(path.V_hat if case.V_hat else None, memory=memory)
        run = ga.run_gamp(data, start, risk, damping=method.damping, iteration=options, **limits).history
    elif isinstance(method, ga.GradientDescent):
        name = "nesterov" if method.nesterov else "momentum" if method.momentum else "sgd" if method.batch else "gd"
        options = {key: getattr(method, key) for key in ("lr", "momentum", "batch") if getattr(method, key)}
        run = ga.minimize_risk(data, start, risk, name, seed=seed, **limits, **options).history
    else:
        rows = [overlaps(data, state.Q, state.V).arrays() | {"U": state.U, "train_loss": np.nan} for state in states]
        run = SimpleNamespace(**{name: np.array([row[name] for row in rows]) for name in rows[0]})
    return [
        {name: getattr(of, name, None) for name in ("q", "m", "theta", "V")} | {"U": U, "train_loss": loss}
        for of, U, loss in (
            (run, getattr(run, "U", None), run.train_loss),
            (path, path.U, path.train_loss),
            (path.error, path.U_error, path.train_loss_error),
        )
    ]


def select(case, arrays):
    """Return the checked numbers (T + 1, ·) by name: one for each kind of overlap, or all entries."""
    if case.by_source:
        return {name: arrays[name].reshape(case.n_iter + 1, -1) for name in case.checked}
    numbers = ga.Overlaps(*(arrays[name] for name in ("q", "m", "theta", "V"))).scalars()
    numbers |= {"train_loss": arrays["train_loss"], "U": arrays["U"][:, 0, 0, 0] if "U" in case.checked else None}
    return {name: numbers[name][:, None] for name in case.checked}


def compute_deviations(case, n_paths=512, memory=averaged_memory):
    """Return the largest mean deviation of runs from predictions for each kind of number, in standard errors."""
    runs = [run_and_predict(case, seed, n_paths, memory) for seed in range(case.seeds)]
    runs, predictions, errors = ([select(case, run[k]) for run in runs] for k in range(3))
    largest = {}
    for name in case.checked:
        of_run, expected, error = (np.array([each[name] for each in part]) for part in (runs, predictions, errors))
        if np.isnan(expected).all():
            continue  # V of descents
        gaps, size = of_run - expected, np.abs(expected.mean(axis=0))
        both = np.sqrt((gaps.var(axis=0, ddof=1) + np.mean(error**2, axis=0)) / case.seeds)
        if case.by_source:
            both += size.max() / np.sqrt(case.d) / 16
        largest[name] = float((np.abs(gaps.mean(axis=0)) / np.where(both > 1e-9, both, np.inf)).max())
    return largest


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_runs_follow_theory(name):
    case = CASES[name]
    limit = 4.5 if isinstance(case.method, ga.GradientDescent) else 4.0
    assert max(compute_deviations(case, 1024 if "messages" in name else 512).values()) <= limit


def test_without_the_memory_of_forces_descents_deviate(monkeypatch):
    average = StoredPaths.average

    def forgetful(self, alpha, overlaps):
        memory, self._h = self._h, 0 * self._h
        forces = average(self, alpha, overlaps)
        self._h = memory
        return forces

    monkeypatch.setattr(StoredPaths, "average", forgetful)
    assert max(compute_deviations(CASES["descent"]).values()) > 4.5


def test_with_a_naive_onsager_term_messages_deviate():
    assert max(compute_deviations(CASES["messages"]._replace(seeds=4), memory=naive_memory).values()) > 4.5
