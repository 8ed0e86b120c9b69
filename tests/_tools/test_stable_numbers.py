"""Random streams, hashes and half-widths do not change between versions, because stored results depend on them."""

import numpy as np
import pytest

from gamp_attention._tools.numerics import Stream, generator, hash_bytes
from gamp_attention._tools.statistics import half_width


def test_random_streams_do_not_change():
    numbers = {"STARTS": 1, "TEST_SAMPLES": 2, "PERTURBATIONS": 3, "MINIBATCHES": 4, "HELD_OUT": 5, "FOLDS": 6}
    assert {stream.name: stream.value for stream in Stream} == numbers
    assert generator(7).random() == np.random.default_rng([7]).random()
    assert generator(7, Stream.TEST_SAMPLES).random() == np.random.default_rng([7, 2]).random()
    given = np.random.default_rng(0)
    assert generator(given, Stream.STARTS) is given
    with pytest.raises(ValueError, match="seed"):
        generator(-1)


def test_hashes_do_not_change():
    assert hash_bytes(b"message ", b"passing") == hash_bytes(b"message passing") == "be5816766a30aa1afb843c9a40e8cee4"
    assert hash_bytes(b"{}", size=12) == "bf78e4a953b40eee238ca2e9"


def test_half_widths_cover_98_percent_of_normal_means():
    means = np.random.default_rng(0).standard_normal((8, 20000))
    assert np.mean(np.abs(means.mean(axis=0)) <= half_width(means)) == pytest.approx(0.98, abs=0.005)
