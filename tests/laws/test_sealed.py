"""Sealed records: what is read is what was sealed, and any change of the bytes is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorwatch.trace.atomic_io import seal, unseal

NAMES = st.one_of(
    st.text(max_size=6), st.sampled_from(["digest!", "a", "z", '\n "digest": "'])
).filter(lambda name: name != "digest")
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(NAMES, st.just("digest")), inner, max_size=3),
    ),
    max_leaves=8,
)
RECORDS = st.dictionaries(NAMES, VALUES, max_size=4)


def seal_again(raw):
    """The obvious check: the record, sealed again, has the same bytes."""
    record = json.loads(raw)
    record.pop("digest", None)
    return seal(record) == raw


@given(RECORDS)
def test_what_was_sealed_is_read(record):
    raw = seal(record)
    assert unseal(raw, "a record") == json.loads(json.dumps(record)) and seal_again(raw)


@given(RECORDS, st.data())
def test_a_changed_byte_is_refused(record, data):
    raw = bytearray(seal(record))
    where = data.draw(st.integers(0, len(raw) - 1))
    raw[where] = data.draw(st.integers(0, 255).filter(lambda byte: byte != raw[where]))
    with pytest.raises(ValueError):
        unseal(bytes(raw), "a record")


@given(RECORDS)
def test_without_its_digest_it_is_refused(record):
    with pytest.raises(ValueError, match="does not agree with its own digest"):
        unseal((json.dumps(record, sort_keys=True, indent=1) + "\n").encode(), "a record")
