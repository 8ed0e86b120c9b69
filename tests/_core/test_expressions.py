"""Derivatives of single operations."""

import numpy as np
import pytest

from gamp_attention._core.expressions import FUNCTIONS, Graph

LOGICAL = {"not"}  # functions of conditions


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - LOGICAL))
def test_slopes_equal_differences(name):
    graph, step = Graph(1), 1e-6
    value = graph.apply(name, graph.inputs[0])
    program = graph.program([value, graph.derivative(value, 0)])
    at = np.array([0.3, 0.6])
    slope = program.evaluate([at])[1]
    ahead, behind = (program.evaluate([at + side * step])[0] for side in (1, -1))
    np.testing.assert_allclose(slope * np.ones(2), (ahead - behind) / (2 * step), rtol=1e-7, atol=1e-9)


def test_operation_without_derivative_is_named():
    graph = Graph(1)
    value = graph._store(("gamma", graph.inputs[0]))
    with pytest.raises(ValueError, match=r"name: .*'gamma'"):
        graph.derivative(value, 0)


def test_unknown_operation_on_constants_is_named():
    graph = Graph(1)
    with pytest.raises(ValueError, match=r"name: .*'gamma'"):
        graph.apply("gamma", graph.constant(1.0))
    with pytest.raises(ValueError, match=r"name: .*'gamma'"):
        graph.apply("gamma", graph.inputs[0])
