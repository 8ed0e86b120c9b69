"""The models of the table of general models: append a row to extend it."""

from typing import NamedTuple

import numpy as np

import gamp_attention as ga


class Row(NamedTuple):
    """A model and how it is solved; the start "both" has the teacher in the first column and positions in the second.

    A column that starts without m or θ would leave zero by chance, at no time that can be predicted.
    """

    name: str
    model: ga.Model
    alpha: float = 1.5
    init: str = "semantic"
    damping: float = 0.5
    rtol: float = 1e-2
    quick: bool = False  # part of the reduced run
    more: int = 1  # times as many instances


def rows():
    """Every model of the table."""
    student, build = ga.DotProductAttention, ga.attention_model
    power_law = ga.coordinate_law(ga.power_law_spectrum(1.0, 8))
    own_spectra = ga.coordinate_law([[0.1, 0.5], [0.4, 0.2], [0.25, 0.05]])
    sparse = ga.coordinate_law(teacher=ga.sparse_teacher(0.2, variance=5.0))
    signs = ga.coordinate_law(tau=ga.sign_positions(2))
    linear = build(student=student(softmax=False), tau=(1.0, 1.0))
    return [
        Row("paper", ga.paper_model(0.3), quick=True),
        Row("paper, positional", ga.paper_model(0.3), init="positional", damping=0.3),
        Row("power law a=1, K=8", build(coordinates=power_law), quick=True),
        Row("Σ_l of each token", build(coordinates=own_spectra)),
        Row("sparse teacher, 20%", build(coordinates=sparse)),
        Row("random signs p", build(coordinates=signs)),
        Row("mixture with correlated classes", mixture(0.2), alpha=3.0, damping=0.4, rtol=2e-2),
        Row("mixture with larger means", mixture(0.5), damping=0.4, rtol=2e-2),
        Row("teacher at temperature 0.5", build(teacher=teacher(temperature=0.5))),
        Row("causal", build(student=student(causal=True), teacher=teacher(causal=True)), alpha=3.0, quick=True),
        Row("causal student only", build(student=student(causal=True)), alpha=2.5),
        Row("L=3", build(3)),
        Row("r=2, t=1", build(2, 2, 1), init="both", damping=0.2, more=2),
        Row("r=2, t=2", build(2, 2, 2, omega=0.2), alpha=2.0, more=2),
        Row("untied keys, r=1+1", build(2, 2, 1, student=student(tied=False)), damping=0.3, more=2),
        Row("L=8", build(8)),
        Row("linear, alike positions", linear, alpha=3.0, init="positional", damping=0.2, more=3),
        Row("linear, opposite positions", build(student=student(softmax=False)), damping=0.15),
        Row("lasso", ga.paper_model(penalty=ga.ElasticNet(0.0, 0.005)), alpha=3.0, damping=0.3),
        Row("elastic net", ga.paper_model(penalty=ga.ElasticNet(0.008, 0.004)), alpha=2.0, quick=True),
    ]


def mixture(mean):
    """Two tokens of two classes each that mostly agree, with means and variances of their own."""
    means = [[mean, -mean], [0.6 * mean, -0.6 * mean]]
    return ga.mixture_model([[0.4, 0.1], [0.1, 0.4]], means, sigma=[[0.5, 0.4], [0.5, 0.4]])


def teacher(**attention):
    A = np.array([[0.6, 0.4], [0.4, 0.6]])
    return ga.SoftmaxTeacher(0.3, A, ga.DotProductAttention(**attention))
