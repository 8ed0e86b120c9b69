"""Invalid models, distributions, penalties, teachers and labels raise an error that names the argument."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from tests.conftest import CLASSES, MEANS


def law(**changes):
    return replace(ga.coordinate_law(), **changes)


def mixture(**changes):
    return ga.mixture_model(**{"classes": CLASSES, "means": MEANS, **changes})


CASES = {
    "omega above 1": (lambda: ga.paper_model(omega=1.2), "omega.*<= 1.*1.2"),
    "omega not a number": (lambda: ga.paper_model(omega="x"), "omega.*'x'"),
    "labels no teacher": (lambda: ga.glm_model(ga.SquaredLoss(), np.array(0.5)), "labels.*label model.*got array"),
    "lambda zero": (lambda: ga.paper_model(lam=0), "lam.*> 0.*0"),
    "A not square": (lambda: ga.paper_model(A=[[1, 2, 3], [4, 5, 6]]), r"A.*\(2, 2\).*\(2, 3\)"),
    "A with NaN": (lambda: ga.paper_model(A=[[np.nan, 0], [0, 1]]), "A.*finite"),
    "no tokens": (lambda: ga.attention_model(0), "n_tokens.*>= 1"),
    "covariance not PSD": (lambda: law(gamma=np.array([[1.0, -0.3]])), "gamma.*at least 0.*got -0.3"),
    "teacher covariance not PSD": (lambda: law(teacher_cov=-np.ones((1, 1, 1))), "teacher_cov"),
    "shares do not add up": (lambda: law(weight=np.array([0.5])), "weight.*add to 1"),
    "sigma a word": (lambda: ga.attention_model(sigma="wide"), "sigma.*real array"),
    "sigma of another length": (lambda: ga.attention_model(3, sigma=[0.1, 0.2]), r"sigma.*\(3,\).*\(2,\)"),
    "more tokens than memory holds": (lambda: ga.attention_model(10**9), "n_tokens.*fit into memory"),
    "rank that keys cannot share": (
        lambda: ga.attention_model(2, 1, student=ga.DotProductAttention(tied=False)),
        "rank.*multiple of 2",
    ),
    "no heads": (lambda: ga.attention_model(student=ga.MultiHeadAttention(heads=0)), "heads"),
    "temperature of heads": (lambda: ga.attention_model(student=ga.MultiHeadAttention(temperature=0.0)), "temperature"),
    "rank of heads": (lambda: ga.attention_model(student=ga.MultiHeadAttention(tied=False), rank=1), "multiple of 4"),
    "student a word": (lambda: ga.attention_model(student="softmax"), "student.*'softmax'"),
    "temperature zero": (lambda: ga.attention_model(student=ga.DotProductAttention(0.0)), "student.temperature.*> 0"),
    "teacher beside omega": (lambda: ga.attention_model(omega=0.1, teacher=ga.paper_model().teacher), "omega, A"),
    "omega of a teacher": (lambda: ga.SoftmaxTeacher(2.0, np.eye(2)), "omega.*<= 1"),
    "coordinates of other size": (lambda: ga.attention_model(3, coordinates=ga.coordinate_law()), "coordinates.*L = 3"),
    "coordinates beside sigma": (lambda: ga.attention_model(sigma=0.3, coordinates=ga.coordinate_law()), "sigma, tau"),
    "model without coordinates": (lambda: ga.Model(ga.paper_model().teacher, None, 0.1, 1), "coordinates.*None"),
    "spectra negative": (lambda: ga.coordinate_law(-1.0), "semi-definite.*-1"),
    "classes of values without shares": (
        lambda: ga.coordinate_law(ga.CoordinateClasses([1.0, 2.0], [1.0])),
        "spectra.weight",
    ),
    "teacher covariance": (lambda: ga.coordinate_law(teacher=[[-1.0]]), "teacher.*semi-definite"),
    "exponent that overflows": (lambda: ga.power_law_spectrum(1e6), "exponent.*range of doubles"),
    "coordinates of a sample": (lambda: ga.law_from_samples([1, 2], [1, 2], [1]), r"gamma.*\(d, L\)"),
    "penalty negative": (lambda: ga.paper_model(penalty=ga.ElasticNet(-1, 0.1)), "lam.*-1"),
    "penalty of nothing": (lambda: ga.paper_model(penalty=ga.ElasticNet(0, 0)), "penalty.*above 0"),
    "loss a word": (lambda: ga.glm_model("logistic"), "loss.*'logistic'"),
    "labels of another loss": (lambda: ga.glm_model(ga.LogisticLoss(), ga.LinearLabels()), "labels.*-1 and 1"),
    "rank of a logistic model": (lambda: ga.glm_model(ga.LogisticLoss(), rank=2), "rank.*LogisticLoss"),
    "temperature of labels": (lambda: ga.LogisticLabels(-1.0), "temperature.*>= 0"),
    "probabilities of classes": (lambda: mixture(classes=[[0.4, 0.1], [0.1, 0.3]]), "classes.*add to 1"),
    "sigma of classes": (lambda: mixture(sigma=[[0.5, 0.5, 0.5]]), r"sigma.*\(2, 2\).*\(1, 3\)"),
    "tau of a mixture": (lambda: mixture(tau=[1.0, 0.0, -1.0]), r"tau.*\(2\,\).*\(3,\)"),
    "teacher mean": (lambda: mixture(teacher_mean=[1.0, 2.0]), r"teacher_mean.*\(1,\).*\(2,\)"),
    "source of two tokens": (lambda: ga.ClassLaw(np.array([[0, 0]]), np.ones(1)), "patterns.*one column"),
    "source left out": (lambda: ga.ClassLaw(np.array([[0, 2]]), np.ones(1)), "patterns.*0 to S - 1"),
    "pattern of no probability": (
        lambda: ga.ClassLaw(np.array([[0, 1], [2, 1]]), np.array([1.0, 0.0])),
        "probability.*positive",
    ),
    "law of other size": (
        lambda: replace(mixture(), coordinates=ga.paper_model().coordinates),
        "coordinates.*4 sources",
    ),
    "means that move positions": (lambda: replace(mixture(), class_means=np.zeros((1, 4))), "class_means.*positions"),
    "V of tokens": (
        lambda: ga.run_gamp(ga.sample(mixture(), 20, 1.5), iteration=ga.IterationOptions(V=np.ones((2, 1, 1)))),
        r"V: .*\(4, 1, 1\).*\(2, 1, 1\)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_invalid_models_raise_named_errors(case, named_error):
    call, pattern = CASES[case]
    named_error(call, pattern)
