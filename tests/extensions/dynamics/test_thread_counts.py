"""Solutions and trajectories of state evolution have the same bits for any number of threads."""

from dataclasses import fields

import numpy as np
import pytest

import gamp_attention as ga


def attention(branch, **options):
    return lambda: ga.solve_state_evolution(ga.paper_model(), 1.5, branch, **options)


def logistic():
    return ga.solve_state_evolution(ga.glm_model(ga.LogisticLoss(), lam=0.1), 3.0, rtol=1e-2)


def predicted(**options):
    return lambda: ga.trajectory(ga.paper_model(), 1.5, n_paths=4096, n_replicas=2, **options)


CALLS = {
    "averages, semantic": attention("semantic", rtol=1e-2),
    "averages of labels": logistic,
    "random points": attention("semantic", rtol=5e-2, rule="sobol", stability=False),
    "message passing": predicted(n_iter=6),
    "descent": predicted(method=ga.GradientDescent(lr=1.5), n_iter=5),
    "held messages": predicted(init="positional", method=ga.MessagePassing(hold_after=3), n_iter=6),
    "new samples": predicted(method=ga.SinglePass(), n_iter=6),
    "averages, positional": attention("positional", rtol=1e-3),
    "descent, positional": predicted(init="positional", method=ga.GradientDescent(lr=0.15), n_iter=6),
}


def collect_bits(result):
    """Return all numbers of a result, of its overlaps and of their errors as bytes, by name."""
    bits = {}
    for item in fields(result):
        value = getattr(result, item.name)
        if isinstance(value, ga.Overlaps):
            bits |= {f"{item.name}.{name}": entry for name, entry in collect_bits(value).items()}
        elif isinstance(value, (float, np.ndarray)):
            bits[item.name] = np.asarray(value).tobytes()
    return bits


@pytest.mark.slow(keep=7)
@pytest.mark.parametrize("name", CALLS)
def test_predictions_have_the_same_bits_for_any_number_of_threads(name, by_threads):
    """The number of threads of compiled kernels and of BLAS changes neither the numbers nor their errors."""
    one, two = by_threads(lambda: collect_bits(CALLS[name]()))
    assert len(one) > 15
    assert one == two
