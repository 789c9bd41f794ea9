"""Decodings as values: they come back from a manifest as they went in."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anchorwatch.generation.decoding import LowConfidence, even_counts, from_dict
from strategies import denoisings, left_to_right


@given(st.one_of(denoisings, left_to_right))
def test_a_manifest_gives_the_decoding_back(decoding):
    assert from_dict(json.loads(json.dumps(decoding.as_dict()))) == decoding
    assert hash(decoding) == hash(from_dict(decoding.as_dict()))


@given(st.integers(0, 500), st.integers(1, 200))
def test_even_counts_sum_to_the_positions_differ_by_one_and_never_rise(positions, steps):
    counts = even_counts(positions, steps)
    assert sum(counts) == positions
    assert len(counts) == steps
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


def test_numpy_numbers_are_numbers():
    decoding = LowConfidence(np.int64(8), np.int32(4), temperature=np.float32(0.5))
    assert json.loads(json.dumps(decoding.as_dict()))["length"] == 8
