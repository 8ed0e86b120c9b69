"""Callbacks and memory rules receive read-only arrays, and a callback does not change the run."""

from dataclasses import is_dataclass

import numpy as np
import pytest

import gamp_attention as ga

OPTIONS = {"damping": 0.5, "tol": 0, "max_iter": 4}


def find_arrays(value):
    """Return all arrays within dataclasses and tuples."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from find_arrays(each)
    elif is_dataclass(value):
        for each in vars(value).values():
            yield from find_arrays(each)


@pytest.mark.parametrize("accelerate", [False, True])
def test_callbacks_receive_read_only_arrays_and_do_not_change_the_run(data, accelerate):
    refused = []

    def callback(t, state, report):
        assert report.gradient_norm > 0
        arrays = [*find_arrays(state), *find_arrays(report)]
        assert len(arrays) >= 12
        for each in arrays:
            with pytest.raises(ValueError, match="read-only"):
                each[...] = 0
            refused.append(t)

    plain = ga.run_gamp(data, **OPTIONS, iteration=ga.IterationOptions(accelerate=accelerate))
    watched = ga.run_gamp(data, **OPTIONS, iteration=ga.IterationOptions(accelerate=accelerate, callback=callback))
    assert set(refused) == {0, 1, 2, 3, 4}
    assert np.array_equal(plain.Q, watched.Q)
    assert np.array_equal(plain.state.D, watched.state.D)
    assert plain.state.D.flags.writeable


def test_a_memory_rule_cannot_change_its_arguments(data):
    def careless(D, Vg, Wg, beta):
        D *= 1 - beta
        return D + beta * Wg

    with pytest.raises(ValueError, match="read-only"):
        ga.run_gamp(data, **OPTIONS, iteration=ga.IterationOptions(memory=careless))
    kept = ga.run_gamp(data, **OPTIONS, iteration=ga.IterationOptions(memory=lambda D, Vg, Wg, beta: D))
    assert not kept.state.D.any()
    assert kept.state.D.flags.writeable


def test_callbacks_receive_gradient_norms_for_penalties_with_kinks():
    data = ga.sample(ga.paper_model(penalty=ga.ElasticNet(0.01, 0.005)), 60, 1.5, seed=0)
    norms = []
    run = ga.run_gamp(
        data,
        **OPTIONS,
        iteration=ga.IterationOptions(callback=lambda t, state, report: norms.append(report.gradient_norm)),
    )
    assert norms == run.history.gradient_norm.tolist()
