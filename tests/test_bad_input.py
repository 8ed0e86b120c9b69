"""Bad input is a named error before any work: which argument, what it got, what it needs."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.models import CoordinateLaw

rng = np.random.default_rng(0)
X, Y, P = rng.normal(size=(5, 2, 7)), rng.normal(size=(5, 2, 7)), rng.normal(size=(2, 7))


# θ² = ρ q to the last bit: the student's fields are a function of the teacher's
SINGULAR = ga.Overlaps(np.full((2, 1, 1), 0.01), np.zeros((2, 1)), np.full((2, 1, 1), 0.05), np.full((2, 1, 1), 10.0))


def with_nan(array):
    array = array.copy()
    array.flat[3] = np.nan
    return array


def law(**changes):
    good = {
        "weight": np.ones(1),
        "gamma": np.ones((1, 2)),
        "tau": np.ones((1, 2)),
        "teacher_mean": np.zeros((1, 1)),
        "teacher_cov": np.ones((1, 1, 1)),
    }
    return CoordinateLaw(**{**good, **changes})


@pytest.fixture(scope="module")
def own():
    return ga.Dataset(X, Y, P)


CASES = {
    "omega above 1": (lambda d, m: ga.paper_model(omega=1.2), "omega.*<= 1.*1.2"),
    "omega below 0": (lambda d, m: ga.paper_model(omega=-0.1), "omega"),
    "omega not a number": (lambda d, m: ga.paper_model(omega="x"), "omega.*'x'"),
    "lambda zero": (lambda d, m: ga.paper_model(lam=0), "lam.*> 0.*0"),
    "lambda negative": (lambda d, m: ga.paper_model(lam=-1), "lam.*> 0"),
    "lambda NaN": (lambda d, m: ga.paper_model(lam=np.nan), "lam.*finite"),
    "sigma zero": (lambda d, m: ga.paper_model(sigma=0), "sigma.*> 0"),
    "A not square": (lambda d, m: ga.paper_model(A=[[1, 2, 3], [4, 5, 6]]), r"A.*\(2, 2\).*\(2, 3\)"),
    "A of other size": (lambda d, m: ga.attention_model(3, A=np.eye(2)), r"A.*\(3, 3\)"),
    "A with NaN": (lambda d, m: ga.paper_model(A=[[np.nan, 0], [0, 1]]), "A.*finite"),
    "no tokens": (lambda d, m: ga.attention_model(0), "n_tokens.*>= 1"),
    "rank not whole": (lambda d, m: ga.attention_model(2, 1.5), "rank.*integer"),
    "covariance not PSD": (
        lambda d, m: law(gamma=np.array([[1.0, -0.3]])),
        "covariance.*semi-definite.*-0.3|covariance",
    ),
    "teacher covariance not PSD": (lambda d, m: law(teacher_cov=-np.ones((1, 1, 1))), "teacher_cov"),
    "shares do not add up": (lambda d, m: law(weight=np.array([0.5])), "weight.*add to 1"),
    "spectra negative": (lambda d, m: ga.Dataset(X, Y, P, spectra=[[1.0], [-1.0]]), "spectra.*semi-definite"),
    "spectra of wrong length": (lambda d, m: ga.Dataset(X, Y, P, spectra=np.ones((2, 3))), "spectra"),
    "d zero": (lambda d, m: ga.sample(m, 0, 1.5), "d: .*>= 1"),
    "d not whole": (lambda d, m: ga.sample(m, 10.5, 1.5), "d: .*integer"),
    "alpha zero": (lambda d, m: ga.sample(m, 10, 0), "alpha"),
    "no sample": (lambda d, m: ga.sample(m, 10, 0.01), "alpha.*at least one sample"),
    "model of wrong type": (lambda d, m: ga.sample("paper", 10, 1), "model.*Model"),
    "seed negative": (lambda d, m: ga.sample(m, 10, 1, seed=-1), "seed"),
    "tokens two-dimensional": (lambda d, m: ga.Dataset(X[0], Y, P), "tokens.*shape"),
    "no samples": (lambda d, m: ga.Dataset(X[:0], Y[:0], P), "tokens"),
    "zero dimensions": (lambda d, m: ga.Dataset(X[:, :, :0], Y[:, :, :0], P[:, :0]), "tokens"),
    "tokens NaN": (lambda d, m: ga.Dataset(with_nan(X), Y, P), "tokens.*1 NaN"),
    "tokens of objects": (lambda d, m: ga.Dataset(X.astype(object), Y, P), "tokens.*real array"),
    "tokens complex": (lambda d, m: ga.Dataset(X + 1j, Y, P), "tokens.*real array"),
    "outputs of wrong shape": (lambda d, m: ga.Dataset(X, Y[:3], P), r"outputs.*\(5, 2, 7\).*\(3, 2, 7\)"),
    "outputs infinite": (lambda d, m: ga.Dataset(X, Y / 0, P), "outputs.*infinite"),
    "outputs that overflow": (lambda d, m: ga.Dataset(1e200 * X, 1e200 * Y, P), "overflow"),
    "positions of wrong length": (lambda d, m: ga.Dataset(X, Y, P[:, :4]), r"positions.*\(2, 7\).*\(2, 4\)"),
    "positions missing a token": (lambda d, m: ga.Dataset(X, Y, P[:1]), "positions"),
    "dataset lambda zero": (lambda d, m: ga.Dataset(X, Y, P, lam=0), "lam"),
    "dataset rank zero": (lambda d, m: ga.Dataset(X, Y, P, rank=0), "rank"),
    "init unknown": (lambda d, m: ga.run_gamp(d, "semantik"), "init.*'semantik'|init.*semantik"),
    "init of wrong shape": (lambda d, m: ga.run_gamp(d, np.ones((3, 1))), r"init.*\(7, 1\).*\(3, 1\)"),
    "init NaN": (lambda d, m: ga.run_gamp(d, np.full((7, 1), np.nan)), "init.*finite"),
    "semantic without teacher": (lambda d, m: ga.run_gamp(d, "semantic"), "init.*teacher"),
    "positional without positions": (
        lambda d, m: ga.run_gamp(ga.Dataset(X, Y, 0 * P), "positional"),
        "init.*positions",
    ),
    "risk unknown": (lambda d, m: ga.run_gamp(d, "random", "exakt"), "risk.*exakt"),
    "asymptotic without teacher": (lambda d, m: ga.run_gamp(d, "random", "asymptotic"), "risk.*teacher"),
    "damping zero": (lambda d, m: ga.run_gamp(d, "random", damping=0), "damping.*> 0"),
    "damping above 1": (lambda d, m: ga.run_gamp(d, "random", damping=1.5), "damping.*<= 1"),
    "damping word": (lambda d, m: ga.run_gamp(d, "random", damping="fast"), "damping.*adaptive"),
    "tol negative": (lambda d, m: ga.run_gamp(d, "random", tol=-1), "tol"),
    "max_iter zero": (lambda d, m: ga.run_gamp(d, "random", max_iter=0), "max_iter"),
    "V not positive": (lambda d, m: ga.run_gamp(d, "random", V=np.zeros((2, 1, 1))), "V.*positive definite"),
    "onsager unknown": (lambda d, m: ga.run_gamp(d, "random", onsager="none"), "onsager"),
    "onsager without model": (lambda d, m: ga.run_gamp(d, "random", onsager="state_evolution"), "model"),
    "data of wrong type": (lambda d, m: ga.run_gamp(X), "data.*Dataset"),
    "method unknown": (lambda d, m: ga.minimize_risk(d, "random", method="sgd"), "method.*sgd"),
    "step zero": (lambda d, m: ga.minimize_risk(d, "random", lr=0), "lr"),
    "gradient of wrong shape": (lambda d, m: ga.gradient(d, np.ones(7)), r"Q.*\(7, 1\)"),
    "gradient of unknown risk": (lambda d, m: ga.gradient(d, np.ones((7, 1)), "x"), "risk"),
    "se alpha negative": (lambda d, m: ga.solve_state_evolution(m, -1), "alpha"),
    "se init unknown": (lambda d, m: ga.solve_state_evolution(m, 1, "x"), "init"),
    "se accuracy beyond doubles": (lambda d, m: ga.solve_state_evolution(m, 1, rtol=1e-14), "rtol"),
    "se rule unknown": (lambda d, m: ga.solve_state_evolution(m, 1, rule="gauss"), "rule"),
    "se variance unknown": (lambda d, m: ga.solve_state_evolution(m, 1, variance="both"), "variance"),
    "se start beyond its teacher": (lambda d, m: ga.solve_state_evolution(m, 1, SINGULAR), "init.*positive definite"),
    "split rule in many dimensions": (
        lambda d, m: ga.solve_state_evolution(ga.attention_model(4), 1, rule="split"),
        "rule.*lines",
    ),
    "continuation parameter": (lambda d, m: ga.continue_branch(m, 1, "semantic", "beta"), "parameter"),
    "continuation goal": (lambda d, m: ga.continue_branch(m, 1, "semantic", "alpha", -1), "to"),
    "branches without starts": (lambda d, m: ga.branches(m, 1, ()), "starts"),
    "trajectory damping": (lambda d, m: ga.trajectory(m, 1, damping=2), "damping"),
    "trajectory too few paths": (lambda d, m: ga.trajectory(m, 1, n_paths=64, n_iter=50), "n_paths"),
    "compare unknown risk": (lambda d, m: ga.compare(m, risk="x"), "risk"),
    "baseline of wrong type": (lambda d, m: ga.linear_baseline(3), "model"),
}


@pytest.mark.parametrize("case", CASES)
def test_named_error(case, own, model):
    call, pattern = CASES[case]
    with np.errstate(all="ignore"), pytest.raises((ValueError, TypeError), match=f"(?s){pattern}"):
        call(own, model)
