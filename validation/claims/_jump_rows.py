"""The models on which minima are compared with replica symmetry: append a row to extend them."""

from typing import NamedTuple

import numpy as np

import gamp_attention as ga
from validation.claims._general_rows import mixture, teacher


class Row(NamedTuple):
    """A model on one of its branches: `quick` for the reduced run; `more` with L-BFGS and other d, too.

    `held_out` rows were chosen after the relation had been found on the others.
    """

    name: str
    model: ga.Model
    alpha: float = 1.5
    branch: str = "positional"
    quick: bool = False
    more: bool = False
    held_out: bool = False
    rtol: float = 1e-3


def rows():
    """Every row by name."""
    paper, build, law = ga.paper_model, ga.attention_model, ga.coordinate_law
    power = build(coordinates=law(ga.power_law_spectrum(1.0, 8)))
    mild = build(coordinates=law(ga.power_law_spectrum(0.5, 8)))
    large, other, mixed = [[5, -3], [2, 4]], [[0.3, 0.7], [0.8, 0.2]], [[2, -1], [-1, 2]]
    three = ga.mixture_model([[0.5, 0, 0], [0, 0.3, 0], [0, 0, 0.2]], [[0.3, 0, -0.5], [0.2, 0.1, -0.3]])
    spread = ga.mixture_model(np.diag([0.6, 0.3, 0.1]), [[0.2, 0.4, 0.8], [-0.2, -0.1, 0.3]], sigma=0.45)
    causal = ga.DotProductAttention(causal=True)
    found = [
        Row("paper", paper(0.3), quick=True, more=True),
        Row("α = 0.5", paper(0.3), 0.5),
        Row("α = 1", paper(0.3), 1.0),
        Row("α = 2", paper(0.3), 2.0),
        Row("ω = 0.15, α = 1", paper(0.15), 1.0, more=True),
        Row("ω = 0.15, α = 0.5", paper(0.15), 0.5),
        Row("ω = 0.5", paper(0.5)),
        Row("ω = 0.8", paper(0.8)),
        Row("σ = 0.35", paper(0.3, 0.35)),
        Row("σ = 0.6, α = 0.7", paper(0.3, 0.6), 0.7),
        Row("λ = 0.005, α = 1", paper(0.3, lam=0.005), 1.0),
        Row("λ = 0.015", paper(0.3, lam=0.015)),
        Row("A = [[5, −3], [2, 4]], ω = 0.5, α = 2", paper(0.5, A=large), 2.0, quick=True, more=True),
        Row("A = [[5, −3], [2, 4]], ω = 0.5, α = 1", paper(0.5, A=large), 1.0),
        Row("A = [[5, −3], [2, 4]], ω = 0.3, α = 1", paper(0.3, A=large), 1.0),
        Row("A = [[2, −1], [−1, 2]], α = 1", paper(0.3, A=mixed), 1.0),
        Row("A = [[2, −1], [−1, 2]], ω = 0.6, α = 2", paper(0.6, A=mixed), 2.0),
        Row("A = [[.3, .7], [.8, .2]], α = 0.7", paper(0.3, A=other), 0.7),
        Row("power law a = 1, α = 0.5", power, 0.5, more=True),
        Row("power law a = 1, α = 0.8", power, 0.8),
        Row("power law a = 0.5, α = 1", mild, 1.0),
        Row("two classes, means 0.2", mixture(0.2)),
        Row("two classes, means 0.5, α = 1", mixture(0.5), 1.0),
        Row("three classes", three, more=True),
        Row("three classes, α = 0.7", three, 0.7),
        Row("teacher at temperature 0.5, α = 0.7", build(teacher=teacher(temperature=0.5)), 0.7),
        Row("teacher at temperature 2, α = 1", build(teacher=teacher(temperature=2.0)), 1.0),
        Row("student at temperature 0.5, α = 0.7", build(student=ga.DotProductAttention(0.5)), 0.7),
        Row("student at temperature 2", build(student=ga.DotProductAttention(2.0))),
        Row("causal", build(student=causal, teacher=teacher(causal=True)), held_out=True),
        Row("σ_l = 0.4, 0.6", build(sigma=[0.4, 0.6]), held_out=True),
        Row("τ = (1, −0.5), α = 1", build(tau=[1, -0.5]), 1.0, held_out=True),
        Row("λ = 0.02, ω = 0.15", paper(0.15, lam=0.02), held_out=True),
        Row("A = [[1, 0], [0, 1]], ω = 0.2", paper(0.2, A=[[1, 0], [0, 1]]), held_out=True),
        Row("three classes, means 0.2 to 0.8, α = 0.5", spread, 0.5, held_out=True),
        Row("semantic", paper(0.3), branch="semantic", quick=True),
        Row("semantic, σ = 0.8", paper(0.3, 0.8), branch="semantic"),
        Row("semantic, power law a = 1", power, branch="semantic"),
        Row("semantic, teacher at temperature 2", build(teacher=teacher(temperature=2.0)), branch="semantic"),
    ]  # fmt: skip
    return {row.name: row for row in found}
