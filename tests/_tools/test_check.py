"""Errors about misspelled options and shapes."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention._tools import check


def test_errors_suggest_the_nearest_option(data):
    with pytest.raises(ValueError, match="got 'Semantik'; did you mean 'semantic'"):
        ga.run_gamp(data, init="Semantik")
    with pytest.raises(ValueError, match=r"one of 'a', 'bb', got 'xyz'$"):
        check.choice("word", "xyz", ("a", "bb"))
    with pytest.raises(TypeError, match=r"got 3$"):
        check.choice("word", 3, ("a", "bb"))


def test_errors_about_empty_arrays_state_the_smallest_size():
    with pytest.raises(ValueError, match=r"tokens: needs shape \(n, L, d\) with n, L, d >= 1, got shape \(0, 2, 3\)$"):
        ga.Dataset(np.zeros((0, 2, 3)), np.zeros((0, 2, 3)))
    with pytest.raises(ValueError, match=r"x: needs shape \(n, 2\), got shape \(3, 1\)$"):
        check.array("x", np.zeros((3, 1)), ("n", 2))
