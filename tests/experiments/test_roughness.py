"""Roughness by the mean field against Hessians, and where it leads: what is trusted, in any form."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.experiments.inference.leave_one_out import is_trusted
from gamp_attention.experiments.inference.roughness import responses_at, typical_remainders
from tests.experiments.test_leave_one_out import PROBLEMS


def remainders(data, gamp):
    """By the mean field, and by the Hessian of every sample, in units of 1/√d."""
    from gamp_attention.data.risk import risk_at

    at = risk_at(data, gamp.Q, "exact")
    known = responses_at(data, at, gamp.Q, gamp.overlaps.V)
    exact = ga.leave_one_out(data, gamp, form="hessian", examine=True).remainder
    return np.sqrt(data.dim) * typical_remainders(data, at, known), np.sqrt(data.dim) * exact


@pytest.mark.parametrize("name", ["attention", "rank 2", "elastic net", "logistic", "multinomial", "phase retrieval"])
def test_typical_remainders_are_those_of_the_hessian(name):
    model, alpha, init = PROBLEMS[name]
    data = ga.sample(model, d=150 if model.rank > 1 else 300, alpha=alpha, seed=1)
    by_mean_field, exact = remainders(data, ga.run_gamp(data, init))
    assert 0.5 < np.median(by_mean_field) / np.median(exact) < 1.3
    assert by_mean_field[-1] > by_mean_field[0]  # of the largest force and the smallest


def test_nothing_is_missed_where_the_risk_is_quadratic():
    model, alpha, init = PROBLEMS["lasso"]
    data = ga.sample(model, d=150, alpha=alpha, seed=1)
    by_mean_field, _ = remainders(data, ga.run_gamp(data, init))
    assert by_mean_field.max() < 1e-6


def test_classes_of_tokens_are_kept_apart():
    """Two classes of one law are as one."""
    pair = ga.mixture_model([[0.25, 0.25], [0.25, 0.25]], [[0.0, 0.0], [0.0, 0.0]], lam=0.1)
    one = ga.mixture_model([[1.0]], [[0.0], [0.0]], lam=0.1)
    found = []
    for model in (pair, one):
        data = ga.sample(model, d=200, alpha=3.0, seed=0)
        found.append(np.median(remainders(data, ga.run_gamp(data))[0]))
    assert 0.7 < found[0] / found[1] < 1.4


@pytest.mark.parametrize("form", ["cavity", "hessian"])
def test_rough_landscapes_are_known_from_smooth_ones(form):
    smooth, rough = {"score_noise": 0.1, "lam": 0.1}, {"score_noise": 0.3, "lam": 0.01}
    for noise, expected in ((smooth, True), (rough, False)):
        data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8, **noise), d=200, alpha=2.0, seed=0)
        gamp = ga.run_gamp(data, "spectral")
        loo = ga.leave_one_out(data, gamp, form=form)
        assert loo.trusted == is_trusted(data, gamp) == expected
        assert ("rough" in loo.message) == (not expected)


def test_the_default_costs_no_hessian_where_that_is_large():
    for d, form in ((200, "hessian"), (300, "cavity")):
        data = ga.sample(ga.paper_model(), d=d, alpha=1.5, seed=0)
        assert ga.leave_one_out(data, ga.run_gamp(data)).form == form


def test_without_variances_cavity_fields_are_unknown(monkeypatch):
    from gamp_attention.experiments.inference import leave_one_out as module

    data = ga.sample(ga.paper_model(), d=300, alpha=1.5, seed=0)
    gamp = ga.run_gamp(data)
    bare = replace(gamp, overlaps=replace(gamp.overlaps, V=np.full((2, 1, 1), np.nan)))
    assert ga.leave_one_out(data, bare).trusted  # they are computed from the Hessians
    monkeypatch.setattr(module, "susceptibility", lambda data, at, Q: np.full((2, 1, 1), np.nan))
    loo = ga.leave_one_out(data, bare)
    assert loo.form == "hessian"
    assert "no variances" in loo.message
    assert np.isnan(ga.leave_one_out(data, bare, form="cavity").test_error)
