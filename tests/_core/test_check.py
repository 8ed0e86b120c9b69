"""Errors about misspelled options."""

import pytest

import gamp_attention as ga
from gamp_attention._core import check


def test_errors_suggest_the_nearest_option(data):
    with pytest.raises(ValueError, match="got 'Semantik'; did you mean 'semantic'"):
        ga.run_gamp(data, init="Semantik")
    with pytest.raises(ValueError, match=r"one of 'a', 'bb', got 'xyz'$"):
        check.choice("word", "xyz", ("a", "bb"))
    with pytest.raises(TypeError, match=r"got 3$"):
        check.choice("word", 3, ("a", "bb"))
