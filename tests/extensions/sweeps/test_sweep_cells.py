"""Cells of sweeps and their keys, and arguments that are a named error before any work."""

import math
from dataclasses import replace

import pytest

import gamp_attention as ga
from gamp_attention.extensions.sweeps import jobs
from gamp_attention.extensions.sweeps.jobs import USED, Settings, chains, digest, grid
from gamp_attention.extensions.sweeps.sweep import sweep
from gamp_attention.theory.models.model import with_parameter


def test_keys_depend_on_all_that_determines_the_numbers(model):
    cell = grid(model, alpha=1.0, method="GAMP", branch="semantic")[0]

    def key(cell=cell, model=model, **settings):
        return chains(model, [cell], Settings(**settings))[0][0].key

    others = {
        "method": "GD", "branch": "positional", "alpha": math.nextafter(1.0, 2), "omega": 0.2,
        "lam": 0.02, "sigma": 0.6, "d": 999, "seed": 1,
    }  # fmt: skip
    keys = [key(), *(key(replace(cell, **{name: value})) for name, value in others.items())]
    changed = {"risk": "asymptotic", "n_test": 10, "gamp_steps": 9, "tol": 1e-6, "descent": "lbfgs", "gd_steps": 3}
    for name, value in (changed | {"rtol": 1e-2}).items():
        for method in ("SE", "GAMP", "GD"):
            of_method = replace(cell, method=method)
            assert (key(of_method, **{name: value}) != key(of_method)) == (name in USED[method])
    keys += [key(**{name: changed[name]}) for name in USED["GAMP"]]
    models = [
        ga.paper_model(A=((0.3, 0.7), (0.8, 0.2))),
        ga.attention_model(2, rank=2),
        ga.attention_model(2, sigma=(0.5, 0.6)),
        replace(model, student=ga.DotProductAttention(2.0)),
    ]
    keys += [key(model=other) for other in models]
    assert len(set(keys)) == len(keys)
    for name, value in (("omega", 0.1), ("lam", 0.5), ("sigma", 0.9)):  # the cell holds them
        assert key(model=with_parameter(model, name, value)) == key()
        assert digest(with_parameter(model, name, value)) != digest(model)
    predecessor, follower = chains(model, grid(model, alpha=[1.0, 1.5], branch="positional"), Settings())[0]
    alone = chains(model, [follower.cell], Settings())[0][0]
    assert follower.key != alone.key
    assert predecessor.cell.alpha == 1.0


CLASSES = """
from dataclasses import dataclass
from typing import NamedTuple
import gamp_attention as ga
SCALE = 1.0
def shift(u):
    return u + 1.0
@ga.register_loss
class Loss(NamedTuple):
    convex = True
    def value(self, p, z):
        return SCALE * (p[0] - z[0, 0]) ** 2
@ga.register_penalty
class Penalty(NamedTuple):
    lam: float = 1.0
    strength = property(lambda self: self.lam)
    def value(self, x):
        return 0.5 * self.lam * x * x
    def slopes(self, x):
        return self.lam * x, self.lam * x
    def prox(self, b, a):
        return b / (a + self.lam), 1 / (a + self.lam)
@dataclass(frozen=True)
class Labels(ga.LinearLabels):
    gain: float = 1.0
    sign = property(lambda self: 1.0)
    def __call__(self, u, noise):
        return self.gain * self.sign * shift(u[:, 0])
model = ga.glm_model(Loss(), Labels(), penalty=Penalty())
"""


def define_model(source):
    """Return the model that a script defines."""
    exec(source, scope := {"__name__": "__main__"})
    return scope["model"]


def test_a_model_with_edited_code_is_another_model(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "solve_near", lambda *_, **__: 1 / 0)  # a cell with an error is stored too
    sweep(define_model(CLASSES), tmp_path, alpha=1.0, branch="random")
    assert sweep(define_model(CLASSES + "# a comment"), tmp_path, alpha=1.0, branch="random").reused == 1
    edits = ["SCALE = 1>SCALE = 2", "(p[0] - z>(p[0] - 2 * z", "0.5 * self.lam>self.lam / 2", "u + 1.0>u + 2.0"]
    for edit in [*edits, "self.gain *>2 * self.gain *", "self: 1.0>self: 2.0"]:
        with pytest.raises(ValueError, match="folder: needs another folder"):
            sweep(define_model(CLASSES.replace(*edit.split(">"))), tmp_path, alpha=1.0, branch="random")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"alpha": None}, "alpha"),
        ({"alpha": [1.0, 1.0]}, "alpha: needs values that all differ"),
        ({"alpha": [1.0, math.nan]}, "alpha"),
        ({"omega": 1.1}, "omega"),
        ({"sigma": [0.5, -1]}, "sigma"),
        ({"d": 10.5}, "d: "),
        ({"branch": "other"}, "branch"),
        ({"method": "AMP"}, "method"),
        ({"method": "GAMP", "alpha": 0.01, "d": 10}, "alpha: needs at least one sample"),
        ({"cells": [{"alpha": 1.0}, {"Alpha": 1.0}]}, r"cells\[1\]"),
        ({"cells": [{"alpha": -1.0}]}, r"cells\[0\]: alpha"),
        ({"cells": []}, "cells"),
        ({"alphas": [1.0]}, "alphas: unknown argument; .*; did you mean 'alpha'?"),
        ({"rtoll": 1e-2}, "rtoll: unknown argument; .*; did you mean 'rtol'?"),
        ({"n_test": 1}, "n_test"),
        ({"descent": "other"}, "descent"),
        ({"warm": 1}, "warm"),
        ({"executor": 2}, "executor"),
    ],
)
def test_bad_arguments_are_named_before_any_work(model, tmp_path, monkeypatch, options, match):
    monkeypatch.setattr(jobs, "solve_near", lambda *_, **__: pytest.fail("work was started"))
    with pytest.raises((TypeError, ValueError), match=match):
        sweep(model, tmp_path / "new", **{"alpha": 1.0} | options)
    assert not (tmp_path / "new").exists()


def test_jumps_have_a_negative_share_if_they_change_the_sign_of_the_response(tmp_path):
    """At α = 0.8, Stein's form of V̂ is negative on the semantic branch."""
    model = ga.paper_model(0.3)
    row = sweep(model, tmp_path, alpha=[0.8], branch="semantic").rows[0]
    assert -2 <= row["jump_share"] < -1
    assert 0 < row["jump_share_error"] < 0.1
    assert "jump mass -" in row["message"]
