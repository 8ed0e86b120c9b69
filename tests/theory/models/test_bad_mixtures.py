"""Invalid mixtures raise an error that names the argument, before any computation."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from tests.conftest import CLASSES, MEANS


def good(**changes):
    given = {"classes": CLASSES, "means": MEANS}
    given.update(changes)
    return ga.mixture_model(**given)


def law_of(patterns, probability):
    return ga.ClassLaw(np.array(patterns), np.array(probability))


BAD = {
    "probabilities do not add up": (lambda: good(classes=[[0.4, 0.1], [0.1, 0.3]]), "classes.*add to 1"),
    "negative probability": (lambda: good(classes=[[1.2, -0.2], [0, 0]]), "classes.*add to 1"),
    "classes of words": (lambda: good(classes="ab"), "classes.*real array"),
    "classes not finite": (lambda: good(classes=[[np.nan, 1], [0, 0]]), "classes.*finite"),
    "means of other shape": (lambda: good(means=[[0.1, 0.2, 0.3]]), r"means.*\(2, 2\).*\(1, 3\)"),
    "means of words": (lambda: good(means="x"), "means.*real array"),
    "sigma zero": (lambda: good(sigma=0.0), "sigma.*positive"),
    "sigma of other shape": (lambda: good(sigma=[[0.5, 0.5, 0.5]]), r"sigma.*\(2, 2\).*\(1, 3\)"),
    "tau of other shape": (lambda: good(tau=[1.0, 0.0, -1.0]), r"tau.*\(2\,\).*\(3,\)"),
    "teacher mean": (lambda: good(teacher_mean=[1.0, 2.0]), r"teacher_mean.*\(1,\).*\(2,\)"),
    "omega": (lambda: good(omega=2), "omega.*<= 1"),
    "a loss": (lambda: good(student=ga.LogisticLoss()), "student.*attention map"),
    "source of two tokens": (lambda: law_of([[0, 0]], [1.0]), "patterns.*one column"),
    "source left out": (lambda: law_of([[0, 2]], [1.0]), "patterns.*0 to S - 1"),
    "pattern of no probability": (lambda: law_of([[0, 1], [2, 1]], [1.0, 0.0]), "probability.*positive"),
    "law of other size": (
        lambda: replace(good(), coordinates=ga.paper_model().coordinates),
        "coordinates.*4 sources",
    ),
    "means that move positions": (lambda: replace(good(), class_means=np.zeros((1, 4))), "class_means.*positions"),
    "V of tokens": (
        lambda: ga.run_gamp(ga.sample(good(), 20, 1.5), iteration=ga.IterationOptions(V=np.ones((2, 1, 1)))),
        r"V: .*\(4, 1, 1\).*\(2, 1, 1\)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_mixtures_raise_named_errors(case, named_error):
    call, pattern = BAD[case]
    named_error(call, pattern)
