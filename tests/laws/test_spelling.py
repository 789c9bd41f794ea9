"""Edits, decodings and probes in words: one grammar, whatever stands between the fields."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

import anchorwatch as aw
from anchorwatch import decoding as decodings
from anchorwatch.errors import SpecError
from anchorwatch.generation.parse import (
    DECODINGS,
    as_decoding,
    as_edits,
    parse_decoding,
    parse_edit,
    parse_probes,
)
from anchorwatch.metrics.sink_rules import Rule, rulli, topk

E = aw.edits
SOME = st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True)
WHERE = {"layers": SOME, "steps": SOME, "progress": st.sampled_from([(0.0, 0.5), (0.25, 1.0)])}
RULE = st.sampled_from([rulli(3), rulli(2, scale="percent"), topk(2)])


def made(kind, more, **always):
    """Edits of one kind with some of the fields that it may have."""
    return st.builds(lambda fields: kind(**fields), st.fixed_dictionaries(always, optional=more))


EDITS = st.one_of(
    made(E.hide_keys, WHERE | {"heads": SOME}, positions=SOME),
    made(
        E.hide_sinks,
        WHERE | {"rule": RULE, "form": st.just("weight"), "last_row": st.booleans()},
        k=st.integers(1, 5),
    ),
    made(E.hide_random, {"matched_to": st.just("class"), "seed": st.integers(0, 9)}, k=st.just(2)),
    made(E.knock_out, {}, heads=st.sampled_from([((0, 1),), ((0, 1), (2, 3))])),
    made(E.sink_token, {"position": st.just("end"), "embedding": st.just("mask")}, n=st.just(2)),
    made(E.sink_token, {"rotary": st.booleans(), "value": st.just("zero")}),
    made(E.sink_logit, {"layers": SOME}, logit=st.sampled_from([0.5, -2.0, -float("inf")])),
    made(E.gate, {"form": st.just("headwise"), "init": st.just("plain"), "seed": st.just(4)}),
    made(E.swap_token, {"steps": SOME}, position=st.integers(0, 9), token=st.integers(0, 9)),
    st.just(E.no_op()),
)


def value(held):
    if isinstance(held, Rule):
        return str(held)
    if isinstance(held, tuple):
        return "+".join(".".join(map(str, o)) if isinstance(o, tuple) else str(o) for o in held)
    return str(held)


def spelled(name, held, between, *, by_place):
    """The word for a value: the slow way back."""
    parts = []
    for field in sorted(dataclasses.fields(held), key=lambda one: bool(one.kw_only)):
        now = getattr(held, field.name)
        if now == field.default:
            by_place = False  # what comes after a gap must be named
            continue
        bare = by_place and not field.kw_only
        parts.append(value(now) if bare else f"{field.name}={value(now)}")
    return ":".join([name, between.join(parts)]) if parts else name


@given(EDITS, st.sampled_from([",", ":", ", "]), st.booleans())
def test_an_edit_is_read_back_from_its_word(held, between, by_place):
    name = type(held).__name__.replace("_", "-")
    assert parse_edit(spelled(name, held, between, by_place=by_place)) == held


@given(st.lists(EDITS, max_size=3))
def test_several_edits_stand_between_slashes(held):
    words = [spelled(type(one).__name__, one, ":", by_place=True) for one in held]
    assert as_edits("/".join(words)) == as_edits(words) == as_edits(held) == tuple(held)
    assert as_edits([one.as_dict() for one in held]) == tuple(held)


HOW = st.sampled_from(
    [
        decodings.LowConfidence(8, steps=4, block=2, guidance=0.5),
        decodings.RandomOrder(temperature=1.0),
        decodings.DreamOrder(8, 4, top_p=0.9, algorithm="entropy", eps=0.01),
        decodings.Threshold(length=6, threshold=0.5),
        decodings.LeftToRight(4, cache=False, top_k=3),
    ]
)


@given(HOW, st.sampled_from([",", ":"]), st.booleans())
def test_a_decoding_is_read_back_from_its_word(held, between, short):
    words = {kind: word for word, kind in DECODINGS.items()}
    name = words[type(held).__name__] if short else type(held).__name__
    word = spelled(name, held, between, by_place=False)
    assert as_decoding(word) == as_decoding(held) == as_decoding(held.as_dict()) == held
    assert parse_decoding(word, length=99).length == (99 if held.length is None else held.length)


P = aw.probes
LOOKS = {"layers": SOME, "steps": SOME}
PROBES = st.one_of(
    made(
        P.received,
        LOOKS
        | {
            "groups": st.sampled_from([("all",), ("all", "prompt", "gold")]),
            "dtype": st.just("float32"),
        },
    ),
    made(P.entropy, LOOKS | {"rows": st.just(True)}),
    made(P.top_keys, LOOKS | {"k": st.integers(1, 9), "every_row": st.just(True)}),
    made(P.region_rollout, LOOKS | {"hidden": SOME}),
    made(P.qk_geometry, LOOKS | {"keys": st.just(True), "rotary": st.just("before")}),
    made(P.norms, LOOKS | dict.fromkeys(("keys", "contribution", "residual"), st.just(True))),
    made(P.massive, LOOKS | {"k": st.integers(1, 9)}),
    made(P.pattern, LOOKS | {"heads": SOME}),
    made(P.qk_maps, LOOKS | {"heads": SOME}),
)


@given(st.lists(PROBES, min_size=1, max_size=4, unique=True))
def test_probes_are_read_back_from_their_words(held):
    assert parse_probes(",".join(one.as_word() for one in held)) == tuple(held)
    slow = [spelled(type(one).__name__, one, ":", by_place=True) for one in held]
    assert parse_probes(", ".join(slow)) == tuple(held)


def test_probes_have_a_default_and_none():
    assert parse_probes("none") == ()
    assert parse_probes("default") == P.DEFAULT
    assert parse_probes("default,norms:keys=true") == (*P.DEFAULT, P.norms(keys=True))
    assert parse_probes("entropy,entropy") == (P.entropy(),)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("norm", "no probe is called 'norm': expected default, none or some of received, entropy"),
        ("norms:kys=true", "norms has no kys: it takes layers, steps, every, keys, contribution"),
        ("norms:keys=1", "norms, keys: '1' is neither true nor false"),
        ("pattern:layers=a", "pattern, layers: 'a' cannot be read: say 0\\+3 or 0-3"),
        ("pattern:layers=1+1", "names one twice: name each once"),
        ("massive:0", "k=0 is not a whole number of at least 1"),
        (
            "entropy:4",
            "entropy does not know what '4' is: say field=4, of layers, steps, every, rows",
        ),
        ("layers=3", "no probe is called 'layers=3'"),
    ],
)
def test_a_probe_spelled_wrongly_says_what_would_have_worked(word, says):
    with pytest.raises(SpecError, match=says):
        parse_probes(word)


def test_a_path_may_hold_slashes(tmp_path):
    how = aw.decoding.LowConfidence(4, steps=2)
    trace = aw.run(aw.load("tiny/llada"), "the anchor", how)
    trace.write(tmp_path / "clean.trace")
    word = f"hide-sinks:1:detect=oracle:unedited={tmp_path / 'clean.trace'}"
    found = as_edits(f"{word}/no-op")
    assert found == (E.hide_sinks(1, detect="oracle", unedited=trace), E.no_op())


@pytest.mark.parametrize(
    ("word", "fields", "says"),
    [
        ("low-confidence:stps=3", {}, "low-confidence has no stps: it takes length"),
        ("low-confidence:steps=3", {"steps": 4}, "steps is given twice, in low-confidence:steps=3"),
        ("low-confidence:steps=3:steps=4", {}, "steps is given twice: say which one"),
        ("low-confidence:steps=x", {}, "steps: 'x' cannot be read: say a whole number"),
        ("left-to-right", {"steps": 3}, "leave it out, or use low-confidence, random"),
        ("sideways", {}, "no decoding is called 'sideways': expected one of low-confidence"),
    ],
)
def test_a_decoding_that_cannot_be_read_says_what_would_have_worked(word, fields, says):
    with pytest.raises(SpecError, match=says):
        parse_decoding(word, fields)
