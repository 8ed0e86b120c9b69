"""Invalid models, distributions, penalties, teachers and labels raise an error that names the argument."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from tests.conftest import CLASSES, MEANS

X = np.random.default_rng(0).normal(size=(5, 2, 7))


def law(**changes):
    good = {
        "weight": np.ones(1),
        "gamma": np.ones((1, 2)),
        "tau": np.ones((1, 2)),
        "teacher_mean": np.zeros((1, 1)),
        "teacher_cov": np.ones((1, 1, 1)),
    }
    return ga.CoordinateLaw(**{**good, **changes})


def mixture(**changes):
    return ga.mixture_model(**{"classes": CLASSES, "means": MEANS, **changes})


CASES = {
    "omega above 1": (lambda: ga.paper_model(omega=1.2), "omega.*<= 1.*1.2"),
    "omega below 0": (lambda: ga.paper_model(omega=-0.1), "omega"),
    "omega not a number": (lambda: ga.paper_model(omega="x"), "omega.*'x'"),
    "labels no teacher": (
        lambda: ga.glm_model(ga.SquaredLoss(), np.array(0.5)),
        "labels.*label model.*got array",
    ),
    "lambda zero": (lambda: ga.paper_model(lam=0), "lam.*> 0.*0"),
    "lambda negative": (lambda: ga.paper_model(lam=-1), "lam.*> 0"),
    "lambda NaN": (lambda: ga.paper_model(lam=np.nan), "lam.*finite"),
    "sigma zero": (lambda: ga.paper_model(sigma=0), "sigma.*> 0"),
    "A not square": (lambda: ga.paper_model(A=[[1, 2, 3], [4, 5, 6]]), r"A.*\(2, 2\).*\(2, 3\)"),
    "A of other size": (lambda: ga.attention_model(3, A=np.eye(2)), r"A.*\(3, 3\)"),
    "A with NaN": (lambda: ga.paper_model(A=[[np.nan, 0], [0, 1]]), "A.*finite"),
    "no tokens": (lambda: ga.attention_model(0), "n_tokens.*>= 1"),
    "rank not whole": (lambda: ga.attention_model(2, 1.5), "rank.*integer"),
    "covariance not PSD": (
        lambda: law(gamma=np.array([[1.0, -0.3]])),
        "gamma.*at least 0.*got -0.3",
    ),
    "teacher covariance not PSD": (lambda: law(teacher_cov=-np.ones((1, 1, 1))), "teacher_cov"),
    "shares do not add up": (lambda: law(weight=np.array([0.5])), "weight.*add to 1"),
    "omega complex": (lambda: ga.paper_model(omega=0.1 + 0j), r"omega.*<= 1, got \(0.1"),
    "omega of several values": (lambda: ga.paper_model(omega=np.array([0.1, 0.2])), "omega.*array"),
    "omega true": (lambda: ga.paper_model(omega=True), "omega.*True"),
    "omega a huge integer": (lambda: ga.paper_model(omega=10**5000), "omega.*bits"),
    "sigma a word": (lambda: ga.attention_model(sigma="wide"), "sigma.*real array"),
    "sigma of another length": (lambda: ga.attention_model(3, sigma=[0.1, 0.2]), r"sigma.*\(3,\).*\(2,\)"),
    "sigma whose square overflows": (lambda: ga.paper_model(sigma=1e200), "sigma.*range of doubles"),
    "sigma whose square vanishes": (lambda: ga.paper_model(sigma=1e-200), "sigma.*range of doubles"),
    "A ragged": (lambda: ga.paper_model(A=[[1, 2], [3]]), "A: needs rows of equal lengths"),
    "A complex": (lambda: ga.paper_model(A=np.eye(2) * 1j), "A: .*complex128"),
    "A of words": (lambda: ga.paper_model(A=[["1", "0"], ["0", "1"]]), "A: .*real array"),
    "A of dates": (lambda: ga.paper_model(A=np.zeros((2, 2), "M8[D]")), "A: .*datetime64"),
    "A with masked entries": (lambda: ga.paper_model(A=np.ma.masked_array(np.eye(2), np.eye(2) > 0)), "A: .*masked"),
    "more tokens than memory holds": (lambda: ga.attention_model(10**9), "n_tokens.*fit into memory"),
    "teacher rank zero": (lambda: ga.attention_model(2, 1, 0), "teacher_rank"),
    "tau of another length": (lambda: ga.attention_model(2, tau=[1, 2, 3]), "tau"),
    "rank that keys cannot share": (
        lambda: ga.attention_model(2, 1, student=ga.DotProductAttention(tied=False)),
        "rank.*multiple of 2",
    ),
    "student a word": (lambda: ga.attention_model(student="softmax"), "student.*'softmax'"),
    "student a class": (lambda: ga.attention_model(student=ga.DotProductAttention), "student"),
    "temperature zero": (lambda: ga.attention_model(student=ga.DotProductAttention(0.0)), "student.temperature.*> 0"),
    "temperature a word": (lambda: ga.attention_model(student=ga.DotProductAttention("hot")), "student.temperature"),
    "tied a word": (
        lambda: ga.attention_model(student=ga.DotProductAttention(tied="no")),
        "student.tied.*True or False",
    ),
    "causal none": (lambda: ga.attention_model(student=ga.DotProductAttention(causal=None)), "student.causal"),
    "teacher a number": (lambda: ga.attention_model(teacher=3), "teacher.*callable"),
    "teacher without evenness": (lambda: ga.attention_model(teacher=lambda u: u), "teacher.*even"),
    "teacher beside omega": (lambda: ga.attention_model(omega=0.1, teacher=ga.paper_model().teacher), "omega, A"),
    "omega of a teacher": (lambda: ga.SoftmaxTeacher(2.0, np.eye(2)), "omega.*<= 1"),
    "A of a teacher": (lambda: ga.SoftmaxTeacher(0.2, np.ones((2, 3))), "A: .*square"),
    "coordinates a number": (lambda: ga.attention_model(coordinates=3), "coordinates.*CoordinateLaw"),
    "coordinates of other size": (lambda: ga.attention_model(3, coordinates=ga.coordinate_law()), "coordinates.*L = 3"),
    "coordinates beside sigma": (lambda: ga.attention_model(sigma=0.3, coordinates=ga.coordinate_law()), "sigma, tau"),
    "model without coordinates": (lambda: ga.Model(ga.paper_model().teacher, None, 0.1, 1), "coordinates.*None"),
    "model of rank zero": (lambda: replace(ga.paper_model(), rank=0), "rank.*>= 1"),
    "law of words": (lambda: law(gamma="wide"), "gamma.*real array"),
    "spectra negative": (lambda: ga.coordinate_law(-1.0), "semi-definite.*-1"),
    "spectra NaN": (lambda: ga.coordinate_law([np.nan, 1.0]), "spectra.*1 NaN"),
    "classes of values without shares": (
        lambda: ga.coordinate_law(ga.CoordinateClasses([1.0, 2.0], [1.0])),
        "spectra.weight",
    ),
    "teacher covariance": (lambda: ga.coordinate_law(teacher=[[-1.0]]), "teacher.*semi-definite"),
    "exponent negative": (lambda: ga.power_law_spectrum(-1), "exponent"),
    "ragged shares": (lambda: ga.power_law_spectrum(1.0, weight=[1, [2]]), "weight: needs rows of equal lengths"),
    "exponent that overflows": (lambda: ga.power_law_spectrum(1e6), "exponent.*range of doubles"),
    "signs of many tokens": (lambda: ga.sign_positions(40), "n_tokens.*at most 10"),
    "fraction zero": (lambda: ga.subset_positions([1, -1], 0), "fraction.*> 0"),
    "fraction above 1": (lambda: ga.sparse_teacher(1.5), "fraction.*<= 1"),
    "coordinates of a sample": (lambda: ga.law_from_samples([1, 2], [1, 2], [1]), r"gamma.*\(d, L\)"),
    "positions of a sample": (lambda: ga.law_from_samples(np.ones((5, 2)), np.ones((4, 2)), np.ones((5, 1))), "tau"),
    "penalty negative": (lambda: ga.paper_model(penalty=ga.ElasticNet(-1, 0.1)), "lam.*-1"),
    "penalty of nothing": (lambda: ga.paper_model(penalty=ga.ElasticNet(0, 0)), "penalty.*above 0"),
    "penalty NaN": (lambda: ga.paper_model(penalty=ga.ElasticNet(0.1, np.nan)), "l1.*nan"),
    "penalty a word": (lambda: ga.paper_model(penalty="l1"), "penalty.*'l1'"),
    "penalty a tuple": (lambda: ga.paper_model(penalty=(1, 2)), r"penalty.*\(1, 2\)"),
    "own penalty no class": (lambda: ga.register_penalty(3), "register_penalty.*NamedTuple"),
    "own map no class": (lambda: ga.register_attention(None), "register_attention.*None"),
    "own loss no class": (lambda: ga.register_loss(int), "register_loss.*int"),
    "classes negative": (lambda: ga.mixture_model([[1.5, -0.5]], [[1, 1]]), "classes.*add to 1"),
    "classes none": (lambda: ga.mixture_model(None, [[1, 1]]), "classes.*NoneType"),
    "classes ragged": (lambda: ga.mixture_model([[0.5], [0.2, 0.3]], [[1, 1]]), "classes.*equal lengths"),
    "means of other shape": (lambda: ga.mixture_model([[0.5, 0.5]], [[1, 1, 1]]), r"means.*\(2, 2\)"),
    "sigma of a mixture": (lambda: ga.mixture_model([[0.5, 0.5]], np.ones((2, 2)), sigma=-1), "sigma.*positive"),
    "loss in a mixture": (
        lambda: ga.mixture_model([[0.5, 0.5]], np.ones((2, 2)), student=ga.LogisticLoss()),
        "student",
    ),
    "loss a word": (lambda: ga.glm_model("logistic"), "loss.*'logistic'"),
    "labels of another loss": (lambda: ga.glm_model(ga.LogisticLoss(), ga.LinearLabels()), "labels.*-1 and 1"),
    "rank of a logistic model": (lambda: ga.glm_model(ga.LogisticLoss(), rank=2), "rank.*LogisticLoss"),
    "temperature of labels": (lambda: ga.LogisticLabels(-1.0), "temperature.*>= 0"),
    "noise a word": (lambda: ga.LinearLabels("loud"), "noise.*'loud'"),
    "labels of another number": (lambda: ga.LabelledDataset(X, np.ones(3), ga.LogisticLoss()), r"labels.*\(5, P\)"),
    "labels of other values": (lambda: ga.LabelledDataset(X, np.full(5, 2.0), ga.LogisticLoss()), "labels.*2.0"),
    "labels none": (lambda: ga.LabelledDataset(X, None, ga.LogisticLoss()), "labels.*NoneType"),
    "labels beyond the rank": (
        lambda: ga.LabelledDataset(X, np.full(5, 7.0), ga.MultinomialLoss(), rank=3),
        "labels.*7.0",
    ),
    "labelled tokens ragged": (
        lambda: ga.LabelledDataset([[1, 2], [3]], np.ones(2), ga.SquaredLoss()),
        "tokens.*equal lengths",
    ),
    "probabilities of classes": (lambda: mixture(classes=[[0.4, 0.1], [0.1, 0.3]]), "classes.*add to 1"),
    "classes not finite": (lambda: mixture(classes=[[np.nan, 1], [0, 0]]), "classes.*finite"),
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
