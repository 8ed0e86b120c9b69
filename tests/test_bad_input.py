"""Bad input raises an error before any work; the error names the argument, its requirement and the value received."""

from typing import NamedTuple

import numpy as np
import pytest
from scipy.sparse import csr_array

import gamp_attention as ga
from gamp_attention._tools import check
from tests.conftest import make_overlaps

rng = np.random.default_rng(0)
X, Y, P = rng.normal(size=(5, 2, 7)), rng.normal(size=(5, 2, 7)), rng.normal(size=(2, 7))
MASKED = np.ma.masked_array(X, X > 0)
PROXIMAL = np.ones((4, 8)), np.ones((4, 2, 1)), np.ones((2, 1, 1))
# θ² = ρ q to the last bit: the student's fields are a function of the teacher's
SINGULAR = make_overlaps(0.01, 0.0, 0.05)


class Bowl(NamedTuple):
    def value(self, p, z):
        return np.sum(z * z)


def insert_nan(array):
    array = array.copy()
    array.flat[3] = np.nan
    return array


def label_rows(labels, loss):
    return ga.LabelledDataset(X[:, 0], labels, loss)


def make_state(n=5, dim=7):
    return ga.GampState(np.ones((dim, 1)), np.ones((2, 1, 1)), np.zeros((n, 2, 1)))


@pytest.fixture(scope="module")
def arrays_only():
    return ga.Dataset(X, Y, P)


CASES = {
    "spectra negative": (lambda d, m: ga.Dataset(X, Y, P, spectra=[[1.0], [-1.0]]), "spectra.*semi-definite"),
    "no sample": (lambda d, m: ga.sample(m, 10, 0.01), "alpha.*at least one sample"),
    "model of wrong type": (lambda d, m: ga.sample("paper", 10, 1), "model.*Model"),
    "dataset in place of a model": (lambda d, m: ga.sample(d, 10, 1), r"model: .*, got Dataset\(…\)$"),
    "rows of the wrong order": (
        lambda d, m: d.select_rows(np.array([1, 0])),
        r"rows: .*ascending order, got array\(\[",
    ),
    "rows out of range": (lambda d, m: d.select_rows(np.array([0, 9999])), "rows: .*got 0 to 9999$"),
    "picture of no comparison": (lambda d, m: ga.plot_comparison(m), "comparison: needs a result of compare, got"),
    "picture of no boundaries": (lambda d, m: ga.plot_phase_diagram(m), "boundaries: needs a result of phase_b"),
    "tokens two-dimensional": (lambda d, m: ga.Dataset(X[0], Y, P), "tokens.*shape"),
    "tokens NaN": (lambda d, m: ga.Dataset(insert_nan(X), Y, P), "tokens.*1 NaN"),
    "tokens of objects": (lambda d, m: ga.Dataset(X.astype(str).astype(object), Y, P), "tokens.*real array"),
    "outputs of wrong shape": (lambda d, m: ga.Dataset(X, Y[:3], P), r"outputs.*\(5, 2, 7\).*\(3, 2, 7\)"),
    "outputs that overflow": (lambda d, m: ga.Dataset(1e200 * X, 1e200 * Y, P), "overflow"),
    "positions of wrong length": (lambda d, m: ga.Dataset(X, Y, P[:, :4]), r"positions.*\(2, 7\).*\(2, 4\)"),
    "init misspelled": (lambda d, m: ga.run_gamp(d, "Semantik"), "init: .*got 'Semantik'; did you mean 'semantic'"),
    "word like no other": (lambda d, m: check.choice("word", "xyz", ("a", "bb")), r"one of 'a', 'bb', got 'xyz'$"),
    "no word": (lambda d, m: check.choice("word", 3, ("a", "bb")), r"word: .*got 3$"),
    "number of columns": (
        lambda d, m: check.array("x", np.zeros((3, 1)), ("n", 2)),
        r"\(n, 2\), got shape \(3, 1\)$",
    ),
    "no samples": (
        lambda d, m: ga.Dataset(X[:0], Y[:0]),
        r"tokens: needs shape \(n, L, d\) with n, L, d >= 1, got shape \(0, 2, 7\)$",
    ),
    "init of wrong shape": (lambda d, m: ga.run_gamp(d, np.ones((3, 1))), r"init.*\(7, 1\).*\(3, 1\)"),
    "semantic without teacher": (lambda d, m: ga.run_gamp(d, "semantic"), "init.*teacher"),
    "positional without positions": (
        lambda d, m: ga.run_gamp(ga.Dataset(X, Y, 0 * P), "positional"),
        "init.*positions",
    ),
    "risk unknown": (lambda d, m: ga.run_gamp(d, "random", "exakt"), "risk.*exakt"),
    "asymptotic without teacher": (lambda d, m: ga.run_gamp(d, "random", "asymptotic"), "risk.*teacher"),
    "damping above 1": (lambda d, m: ga.run_gamp(d, "random", damping=1.5), "damping.*<= 1"),
    "damping word": (lambda d, m: ga.run_gamp(d, "random", damping="fast"), "<= 1, or 'adaptive', got 'fast'$"),
    "V not positive": (
        lambda d, m: ga.run_gamp(d, "random", iteration=ga.IterationOptions(V=np.zeros((2, 1, 1)))),
        "V.*positive definite",
    ),
    "V_hat unknown": (lambda d, m: ga.run_gamp(d, "random", iteration=ga.IterationOptions(V_hat="none")), "V_hat"),
    "data of wrong type": (lambda d, m: ga.run_gamp(X), "data.*Dataset"),
    "method unknown": (lambda d, m: ga.minimize_risk(d, "random", method="newton"), "method.*newton"),
    "no step": (lambda d, m: ga.minimize_risk(d, "random", lr=[]), "lr: needs a number > 0, or a sequence"),
    "momentum of plain descent": (lambda d, m: ga.minimize_risk(d, "random", momentum=0.5), "momentum: needs method"),
    "batch of Adam": (lambda d, m: ga.minimize_risk(d, "random", method="adam", batch=0.5), "batch: needs method"),
    "tokens too large": (lambda d, m: ga.Dataset(1e150 * X, 1e150 * Y, P), "tokens.*below 1e\\+150.*divide"),
    "rows too large": (lambda d, m: ga.LabelledDataset(1e90 * X, Y[:, 0, 0], ga.SquaredLoss()), "tokens.*divide by"),
    "loss that is not registered": (
        lambda d, m: ga.glm_model(Bowl(), ga.LinearLabels()),
        "loss: needs an instance of a loss that is registered.*@gamp_attention.register_loss",
    ),
    "class of a loss": (lambda d, m: ga.glm_model(ga.LogisticLoss), "loss: .*call the class, LogisticLoss"),
    "loss of data not registered": (
        lambda d, m: label_rows(np.ones(5), Bowl()),
        "loss: needs.*decorate the class Bowl",
    ),
    "sparse rows": (lambda d, m: ga.gradient(d, csr_array(np.eye(7))), r"Q: needs a dense array.*Q.toarray\(\)"),
    "gradient of wrong shape": (lambda d, m: ga.gradient(d, np.ones(7)), r"Q.*\(7, 1\)"),
    "se init unknown": (lambda d, m: ga.solve_state_evolution(m, 1, "x"), "init"),
    "se accuracy beyond doubles": (lambda d, m: ga.solve_state_evolution(m, 1, rtol=1e-14), "rtol"),
    "se rule unknown": (lambda d, m: ga.solve_state_evolution(m, 1, rule="gauss"), "rule"),
    "se response unknown": (lambda d, m: ga.solve_state_evolution(m, 1, response="both"), "response"),
    "se start beyond its teacher": (lambda d, m: ga.solve_state_evolution(m, 1, SINGULAR), "init.*positive definite"),
    "split rule in many dimensions": (
        lambda d, m: ga.solve_state_evolution(ga.attention_model(4), 1, rule="panels"),
        "rule.*sobol",
    ),
    "continuation parameter": (lambda d, m: ga.continue_branch(m, 1, "semantic", "beta"), "parameter"),
    "branches without starts": (lambda d, m: ga.branches(m, 1, ()), "starts"),
    "trajectory too few paths": (lambda d, m: ga.trajectory(m, 1, n_paths=64, n_iter=50), "n_paths"),
    "d huge": (lambda d, m: ga.sample(m, 10**400, 1), "d: .*bits"),
    "d beyond memory": (lambda d, m: ga.sample(m, 10**7, 10.0), "d, alpha.*fit into memory.*GiB"),
    "seed of another kind": (lambda d, m: ga.sample(m, 10, 1, seed=np.random.RandomState(0)), "seed.*RandomState"),
    "dtype of integers": (lambda d, m: ga.sample(m, 10, 1, dtype=np.int64), "dtype.*float32"),
    "dtype an array": (lambda d, m: ga.sample(m, 10, 1, dtype=np.ones(2)), "dtype.*float32"),
    "tokens none": (lambda d, m: ga.Dataset(None, Y, P), "tokens.*NoneType"),
    "tokens ragged": (lambda d, m: ga.Dataset([[1, 2], [3]], Y, P), "tokens.*rows of equal lengths"),
    "tokens of words": (lambda d, m: ga.Dataset(X.astype(str), Y, P), "tokens.*<U"),
    "tokens masked": (lambda d, m: ga.Dataset(MASKED, Y), "tokens: needs an array without masked entries"),
    "outputs masked": (lambda d, m: ga.Dataset(X, MASKED), "outputs: needs an array without masked entries"),
    "rows masked": (lambda d, m: ga.LabelledDataset(MASKED[:, 0], Y[:, 0, 0], ga.SquaredLoss()), "tokens: .*masked"),
    "labels masked": (lambda d, m: label_rows(MASKED[:, 0, 0], ga.SquaredLoss()), "labels: .*masked"),
    "masked tokens of an estimator": (lambda d, m: ga.GampAttention().fit(MASKED, Y), "X: .*masked"),
    "flag of a class masked": (
        lambda d, m: ga.attention_model(student=ga.DotProductAttention(tied=MASKED[0, 0])),
        "student.tied: needs True or False, got masked_array",
    ),
    "flag masked": (
        lambda d, m: ga.denoise(d.loss, *PROXIMAL, start=PROXIMAL[1], hold=MASKED[0, 0]),
        "hold: needs True or False, got masked_array",
    ),
    "labels of other classes": (lambda d, m: label_rows(np.zeros(5), ga.LogisticLoss()), "labels: needs -1 and 1"),
    "labels of fewer rows": (lambda d, m: label_rows(np.zeros(4), ga.LogisticLoss()), "labels: needs shape"),
    "labels of two columns": (lambda d, m: label_rows(np.ones((5, 2)), ga.SquaredLoss()), "labels: needs shape"),
    "loss a word": (
        lambda d, m: label_rows(np.ones(5), "logistic"),
        "loss: needs .* for example .*LogisticLoss",
    ),
    "one label": (lambda d, m: label_rows(np.full(5, 5.0), ga.MultinomialLoss()), "rank: needs at least 2 classes"),
    "tokens structured": (lambda d, m: ga.Dataset(np.zeros((5, 2, 7), [("x", float)]), Y, P), "tokens"),
    "positions that overflow": (lambda d, m: ga.Dataset(X, Y, 1e200 * P), "positions.*overflow"),
    "spectra zero": (lambda d, m: ga.Dataset(X, Y, P, spectra=[[0.0], [0.0]]), "spectra.*trace"),
    "dataset student": (lambda d, m: ga.Dataset(X, Y, P, student=ga.DotProductAttention(-1.0)), "student.temperature"),
    "rank beyond the dimension": (lambda d, m: ga.Dataset(X, Y, P, rank=8), "rank.*at most 7.*got 8"),
    "init complex": (lambda d, m: ga.run_gamp(d, np.ones((7, 1)) * 1j), "init.*complex128"),
    "init overlaps": (lambda d, m: ga.run_gamp(d, SINGULAR), "init.*Overlaps"),
    "damping without steps": (lambda d, m: ga.run_gamp(d, "random", damping=[]), "damping"),
    "damping with a word": (lambda d, m: ga.run_gamp(d, "random", damping=[0.5, "a"]), r"damping\[1\].*'a'"),
    "accelerate a word": (
        lambda d, m: ga.run_gamp(d, "random", iteration=ga.IterationOptions(accelerate="yes")),
        "accelerate.*True or False",
    ),
    "callback no function": (
        lambda d, m: ga.run_gamp(d, "random", iteration=ga.IterationOptions(callback=3)),
        "callback.*function",
    ),
    "V not symmetric": (
        lambda d, m: ga.run_gamp(
            ga.Dataset(X, Y, P, rank=2), "random", iteration=ga.IterationOptions(V=[[[1, 0.5], [0, 1]]] * 2)
        ),
        "V.*symmetric",
    ),
    "device unknown": (lambda d, m: ga.minimize_risk(d, "random", device="abacus"), "device.*'abacus'"),
    "device a number": (lambda d, m: ga.minimize_risk(d, "random", device=3), "device.*3"),
    "test error of arrays": (lambda d, m: ga.sampled_test_error(d, P), "data: .*samples drawn from a model"),
    "state of other weights": (lambda d, m: ga.initial_state(d, np.ones(3)), r"Q: .*\(7, 1\)"),
    "state of other variances": (lambda d, m: ga.initial_state(d, np.ones((7, 1)), np.ones(3)), "V: "),
    "step of no state": (lambda d, m: ga.gamp_step(d, "exact", None, 0.5), "state.*GampState"),
    "step of another state": (
        lambda d, m: ga.gamp_step(d, "exact", make_state(n=4), 0.5),
        r"state.D.*\(5, 2, 1\).*\(4, 2, 1\)",
    ),
    "step with another response": (lambda d, m: ga.gamp_step(d, "exact", make_state(), 0.5, V_hat=np.ones(3)), "V_hat"),
    "denoiser of no loss": (lambda d, m: ga.denoise(None, *PROXIMAL), "loss"),
    "denoiser of other parameters": (
        lambda d, m: ga.denoise(d.loss, np.ones((4, 7)), *PROXIMAL[1:]),
        r"params.*\(4, 8\)",
    ),
    "denoiser from ragged rows": (lambda d, m: ga.denoise(d.loss, *PROXIMAL, [1, [2]]), "start.*equal lengths"),
    "se init an array": (lambda d, m: ga.solve_state_evolution(m, 1, np.ones((3, 1))), "init.*Overlaps"),
    "se init of other shapes": (lambda d, m: ga.solve_state_evolution(m, 1, ga.Overlaps(1, 2, 3, 4)), r"init\.q"),
    "se without positions": (
        lambda d, m: ga.solve_state_evolution(ga.attention_model(tau=(0, 0)), 1, "positional"),
        "init.*positions",
    ),
    "se seed a generator": (lambda d, m: ga.solve_state_evolution(m, 1, seed=np.random.default_rng(0)), "seed"),
    "se stability a word": (lambda d, m: ga.solve_state_evolution(m, 1, stability="no"), "stability.*'no'"),
    "trajectory of odd paths": (lambda d, m: ga.trajectory(m, 1, n_paths=4097), "n_paths.*even"),
    "branches of a number": (lambda d, m: ga.branches(m, 1, 3), "starts.*3"),
    "boundaries in a word": (lambda d, m: ga.phase_boundaries(m, alphas="all"), "alphas"),
    "sweep without folder": (lambda d, m: ga.sweep(m, "", alpha=1), "folder"),
    "sweep where no folder can be": (lambda d, m: ga.sweep(m, "/proc/cells", alpha=1), "folder.*/proc/cells"),
    "sweep of a huge d": (lambda d, m: ga.sweep(m, "cells", alpha=1, d=10**400, method="GAMP"), "d: .*bits"),
    "arrays in place of a dataset": (lambda d, m: ga.run_gamp(X, Y), r"data: .*Dataset\(tokens, outputs\)"),
    "a penalty and another λ": (lambda d, m: ga.Dataset(X, Y, lam=0.5, penalty=ga.Ridge(0.1)), "lam: needs to be omit"),
    "columns of another rank": (lambda d, m: ga.Dataset(X, Y, penalty=ga.ColumnRidge((0.1, 0.2))), "lam, penalty: "),
    "one token": (lambda d, m: ga.Dataset(X[:, :1], Y[:, :1], P[:1]), "tokens: needs at least 2 .*LabelledDataset"),
    "model of one token": (lambda d, m: ga.attention_model(1), "n_tokens: needs at least 2"),
    "one class": (lambda d, m: ga.glm_model(ga.MultinomialLoss()), "rank: needs at least 2 classes"),
    "constant student": (
        lambda d, m: ga.sequence_model(lambda u, noise: u[0, 0], lambda z: 0 * z[0, 0], n_tokens=1, rank=1),
        "student: needs to depend on z",
    ),
    "tokens beyond memory": (lambda d, m: ga.Dataset(*[np.ones((4000, 4000, 1))] * 2), "tokens: .*memory.*GiB"),
    "branch unknown": (lambda d, m: ga.branches(m, 1.5, ["semantik"]), r"starts\[0\]: .*did you mean 'semantic'"),
    "law for an unknown target": (
        lambda d, m: ga.law_of(ga.Dataset(*[rng.normal(size=(20, 2, 7))] * 2), target="map"),
        "target: needs a callable",
    ),
    "loss of no tokens": (lambda d, m: ga.denoise(ga.AttentionLoss(d.student, -1, 1), *PROXIMAL), "loss.n_tokens: "),
    "pool of too many": (lambda d, m: ga.local_pool(10**9), "workers.*1024"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_raises_a_named_error(case, arrays_only, model, named_error):
    call, pattern = CASES[case]
    named_error(lambda: call(arrays_only, model), pattern)
