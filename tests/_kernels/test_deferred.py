"""Kernels that are compiled at their first call: nothing before, and once; the same results, exceptions and threads.

That they are loaded from disk in other processes is tested in `test_kernels`, whose tower contains one.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numba.core.types import Tuple, float64, int64

from gamp_attention._kernels.compiled import kernel
from gamp_attention._kernels.deferred import deferred_kernel

N_THREADS = 8


@deferred_kernel(Tuple((float64, int64)))
def weigh(a, first, b, flag, second, c, i, j, d):
    """Arguments of all kinds, of which most do not fit into registers."""
    if a > 100.0:
        raise ValueError("above 100")
    total = a + 2 * b + 3 * c + 4 * d if flag else 0.0
    for k in range(first.shape[0]):
        total += first[k] * second[k, k]
        second[k, 0] = total
    return total, i - 10 * j


@kernel
def weigh_if_positive(a, first, second):
    if a > 0.0:
        total, count = weigh(a, first, 0.5, True, second, 0.25, 7, 2, 1e-3)
        return total + count
    return a


@deferred_kernel(float64)
def count_up(x):
    total = 0.0
    for k in range(1000):
        total += x / (1 + k)
    return total


@kernel
def count_in_block(first, last, values):
    for k in range(first, last):
        values[k] = count_up(values[k])


@deferred_kernel(int64)
def halve(x):
    return 0.5 * x


@kernel
def halve_twice(x):
    return halve(halve(x))


def test_deferred_kernels_are_compiled_at_their_first_call():
    first, second = np.arange(3.0), np.arange(9.0).reshape(3, 3)
    assert weigh_if_positive(-1.0, first, second) == -1.0
    assert not weigh.kernel.overloads
    result = weigh_if_positive(1.5, first, second)
    assert len(weigh.kernel.overloads) == 1
    expected_matrix = np.arange(9.0).reshape(3, 3)
    expected = weigh.kernel.py_func(1.5, first, 0.5, True, expected_matrix, 0.25, 7, 2, 1e-3)
    assert result == sum(expected)
    assert (second == expected_matrix).all()


def test_its_exceptions_reach_python():
    for _ in range(2):
        with pytest.raises(ValueError, match="above 100"):
            weigh_if_positive(200.0, np.ones(1), np.ones((1, 1)))


def test_threads_that_call_it_first_at_the_same_time_wait_for_its_code():
    values = np.linspace(0.0, 1.0, 10 * N_THREADS)
    expected = [count_up.kernel.py_func(x) for x in values]
    count_in_block(0, 0, values)  # compiles the caller
    assert not count_up.kernel.overloads
    with ThreadPoolExecutor(N_THREADS) as pool:
        ends = range(0, len(values), 10)
        list(pool.map(lambda first: count_in_block(first, first + 10, values), ends))
    assert len(count_up.kernel.overloads) == 1
    assert values.tolist() == expected


def test_a_result_of_another_type_is_an_error_and_not_a_crash(monkeypatch):
    messages = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: messages.append(str(report.exc_value)))
    with pytest.raises(RuntimeError, match="was not compiled"):
        halve_twice(3.0)
    assert messages == ["halve: needs to return int64, got float64"]
