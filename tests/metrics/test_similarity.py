"""Likeness over lags, groups and layers: loops over dense maps, all pairs of steps, shuffles."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tolerances
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics import similarity
from references import movement as slow
from synthetic_traces import (
    RULE,
    assert_same,
    column,
    head_histories,
    moving_maps,
    planted,
    random_maps,
    row_of,
    traces_and_maps,
    uniform,
)

LAGS = (1, 2, 3)


@given(traces_and_maps(), st.sampled_from(["all", "masked"]))
def test_likeness_by_lag_is_what_loops_say_and_its_null_the_mean_of_all_pairs(made, group):
    trace, maps = made
    sets = similarity.set_jaccard(trace, RULE, lags=LAGS, group=group, by=("layer", "head"))
    alike = similarity.received_similarity(trace, lags=LAGS, group=group, by=("layer", "head"))
    for layer, head, history in head_histories(trace, maps, group):
        sinks = [None if one is None else one[1] for one in history]
        shares = [None if one is None else one[0] for one in history]
        for lag in LAGS:
            at = {"lag": lag, "layer": layer, "head": head}
            for found, values, measure in (
                (row_of(sets, "jaccard", **at), sinks, slow.jaccard),
                (row_of(alike, "received_cosine", **at), shares, slow.cosine),
                (row_of(alike, "received_jensen_shannon", **at), shares, slow.divergence),
            ):
                assert_same(found.value, slow.by_lag(values, measure, lag))
                if not math.isnan(found.value):
                    assert_same(found.null, slow.over_pairs(values, measure))


def test_a_step_or_progress_may_split_what_has_lags():
    maps = random_maps(np.random.default_rng(1), (4, 1, 1, 9))
    table = similarity.received_similarity(planted(maps, prompt=5), lags=[2], by=("step",))
    cosines = table[table.quantity == "received_cosine"].sort_values("step")
    assert cosines.value.isna().tolist() == [True, True, False, False]
    assert (cosines.missing == 0).all()  # there is no step so far before


def test_many_steps_have_the_divergence_of_a_seeded_choice_of_pairs():
    maps = random_maps(np.random.default_rng(2), (20, 1, 1, 24))
    trace = planted(maps, prompt=4)
    found = row_of(
        similarity.received_similarity(trace, lags=[1]), "received_jensen_shannon", lag=1
    )
    shares = [maps[step, 0, 0].mean(axis=0) for step in range(20)]
    every = slow.over_pairs(shares, slow.divergence)
    assert found.null == pytest.approx(every, rel=tolerances.SHUFFLED)
    one, other = similarity.choose_pairs(np.arange(20))
    assert len({*zip(one.tolist(), other.tolist(), strict=True)}) == similarity.MOST_PAIRS
    assert (one < other).all()


def with_maps(maps, picks, **options):
    """A trace that holds the full maps of (step, layer, head) picks."""
    where = {
        f"pick_{name}": (("pick",), np.array([pick[i] for pick in picks], dtype=np.int32))
        for i, name in enumerate(("step", "layer", "head"))
    }
    held = np.stack([maps[pick] for pick in picks]).astype(np.float32)
    return planted(maps, more={"pattern": (("pick", "query", "key"), held), **where}, **options)


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_map_similarity_is_row_by_row(seed, some):
    maps = random_maps(np.random.default_rng(seed), (4, 2, 2, 7))
    steps = [0, 1, 3] if some else [0, 1, 2, 3]
    picks = [(step, 1, head) for step in steps for head in (0, 1)]
    trace = with_maps(maps, picks, prompt=3)
    table = similarity.map_similarity(trace, lags=LAGS, by=("layer", "head"))
    for head in (0, 1):
        held = [maps[step, 1, head].tolist() if step in steps else None for step in range(4)]
        for name, measure in (("map_cosine", slow.cosine), ("map_jensen_shannon", slow.divergence)):

            def rows(one, other, measure=measure):
                return slow.mean([measure(a, b) for a, b in zip(one, other, strict=True)])

            for lag in LAGS:
                found = row_of(table, name, lag=lag, layer=1, head=head)
                assert_same(found.value, slow.by_lag(held, rows, lag))
                assert_same(found.null, slow.over_pairs(held, rows))
                absent = row_of(table, name, lag=lag, layer=0, head=head)
                assert math.isnan(absent.value) and absent.missing == 1


def test_columns_may_be_alike_where_maps_are_not():
    one = np.eye(8)
    other = np.roll(np.eye(8), 1, axis=1)
    maps = np.stack([one, other, one, other])[:, None, None]
    trace = with_maps(maps, [(step, 0, 0) for step in range(4)], prompt=4)
    received = similarity.received_similarity(trace, lags=[1])
    assert row_of(received, "received_cosine", lag=1).value == pytest.approx(1)
    true = similarity.map_similarity(trace, lags=[1, 2])
    assert row_of(true, "map_cosine", lag=1).value == 0
    assert row_of(true, "map_jensen_shannon", lag=1).value == pytest.approx(1)
    assert row_of(true, "map_cosine", lag=2).value == pytest.approx(1)


@settings(max_examples=20)
@given(traces_and_maps())
def test_splits_are_what_loops_count_and_their_null_every_shuffle(made):
    trace, maps = made
    table = similarity.split_index(trace, RULE, by=("layer", "head"))
    masked, written = (
        {(at, h): x for at, h, x in head_histories(trace, maps, g)} for g in ("masked", "written")
    )
    for (layer, head), history in masked.items():
        other = written[layer, head]
        steps = range(len(maps))
        there = [s for s in steps if history[s] is not None and other[s] is not None]
        one, two = slow.path(history), slow.path(other)
        both = [s for s in there if one[s] is not None and two[s] is not None]
        found = row_of(table, "split", layer=layer, head=head)
        given_both = row_of(table, "split_given_both", layer=layer, head=head)
        assert_same(found.value, slow.split(one, two, there))
        assert found.missing == len(maps) - len(there)
        assert_same(given_both.value, slow.split(one, two, both))
        for value, among in ((found.null, there), (given_both.null, both)):
            dealt = []
            for order in itertools.permutations(among):
                moved = list(two)
                for step, from_step in zip(among, order, strict=True):
                    moved[step] = two[from_step]
                dealt.append(slow.split(one, moved, among))
            assert_same(value, slow.mean(dealt))
        apart = row_of(table, "split_jensen_shannon", layer=layer, head=head)
        assert_same(
            apart.value, slow.mean([slow.divergence(history[s][0], other[s][0]) for s in there])
        )


def split_maps(steps, length, prompt):
    """Masked queries look at key 2, all others at key 5."""
    maps = uniform(steps, 1, 1, length)
    for step in range(steps):
        done = prompt + step
        maps[step, 0, 0, :done] = column(length, 5, 0.95)[:done]
        maps[step, 0, 0, done:] = column(length, 2, 0.95)[done:]
    return maps


def test_a_lasting_split_is_found_and_its_null_is_as_large():
    trace = planted(split_maps(6, 20, 14), prompt=14)
    table = similarity.split_index(trace, by=())
    for name in ("split", "split_given_both"):
        assert row_of(table, name).value == 1 == row_of(table, name).null
        assert row_of(table, name).missing == 1  # nothing was written before the first step
    assert row_of(table, "split_jensen_shannon").value > 0.8
    same_ = planted(moving_maps([5] * 6, length=20), prompt=14)
    table = similarity.split_index(same_, by=())
    assert row_of(table, "split").value == 0
    assert row_of(table, "split_jensen_shannon").value == pytest.approx(0, abs=tolerances.METRIC)


def test_a_static_set_overlaps_wholly_and_a_moving_one_not_at_all():
    still = planted(moving_maps([5] * 8, length=24), prompt=16)
    table = similarity.set_jaccard(still, lags=[1, 4, 64])
    assert row_of(table, "jaccard", lag=4).value == 1 == row_of(table, "jaccard", lag=4).null
    assert math.isnan(row_of(table, "jaccard", lag=64).value)
    floating = planted(moving_maps(range(8), length=24), prompt=16)
    table = similarity.set_jaccard(floating, lags=[1])
    assert row_of(table, "jaccard", lag=1).value == 0 == row_of(table, "jaccard", lag=1).null
    none = similarity.set_jaccard(planted(uniform(4, 1, 1, 20), prompt=16), lags=[1])
    assert math.isnan(none.value[0]) and none.missing[0] == 3


@settings(max_examples=15)
@given(traces_and_maps())
def test_layers_agree_as_loops_over_steps_and_heads_say(made):
    trace, maps = made
    steps, layers, heads = maps.shape[:3]
    table = similarity.layer_consistency(trace, RULE)
    held = {(layer, head): history for layer, head, history in head_histories(trace, maps)}

    def sinks(layer, step):
        if held[layer, 0][step] is None:
            return None
        return {key for head in range(heads) for key in held[layer, head][step][1]}

    def overlap(a, b, s, t):
        one, two = sinks(a, s), sinks(b, t)
        return math.nan if one is None or two is None else slow.jaccard(one, two)

    for a, b in itertools.product(range(layers), repeat=2):
        found = row_of(table, "jaccard", layer=a, other_layer=b)
        assert_same(found.value, slow.mean([overlap(a, b, s, s) for s in range(steps)]))
        if not math.isnan(found.value):
            pairs = [overlap(a, b, s, t) for s in range(steps) for t in range(steps)]
            assert_same(found.null, slow.mean(pairs))
        agree, shuffled = [], []
        for h, k in itertools.product(range(heads), repeat=2):
            if (a, h) == (b, k):
                continue
            one, two = slow.path(held[a, h]), slow.path(held[b, k])
            for s, t in itertools.product(range(steps), repeat=2):
                if one[s] is not None and two[t] is not None:
                    shuffled.append(float(one[s] == two[t]))
                    if s == t:
                        agree.append(shuffled[-1])
        found = row_of(table, "same_greatest", layer=a, other_layer=b)
        assert_same(found.value, slow.mean(agree))
        if agree:
            assert_same(found.null, slow.mean(shuffled))


def test_two_layers_with_the_same_moving_sinks_agree_only_at_the_same_step():
    maps = np.repeat(moving_maps(range(8), length=24, heads=2), 2, axis=1)
    table = similarity.layer_consistency(planted(maps, prompt=16))
    for name in ("jaccard", "same_greatest"):
        found = row_of(table, name, layer=0, other_layer=1)
        assert found.value == 1 and found.null == pytest.approx(1 / 8)
    assert row_of(table, "same_greatest", layer=0, other_layer=1).chance == pytest.approx(1 / 24)
    shared = 1 / 24
    chance = row_of(table, "jaccard", layer=0, other_layer=1).chance
    assert chance == pytest.approx(shared / (2 - shared))
    late = similarity.layer_consistency(planted(maps, prompt=16), by=("progress",))
    assert (late.value.dropna() == 1).all()


def test_others_stand_beside_and_permuted_heads_change_no_layer():
    maps = random_maps(np.random.default_rng(3), (4, 2, 3, 12))
    trace, moved = planted(maps, prompt=8), planted(maps[:, :, [2, 0, 1]], prompt=8)
    table = similarity.layer_consistency(trace, RULE, frozen=moved)
    assert table.frozen.tolist() == pytest.approx(table.value.tolist(), nan_ok=True)
    assert table.untrained.isna().all()


@pytest.mark.parametrize(
    ("ask", "error", "says"),
    [
        (lambda t: similarity.set_jaccard(t, lags=3), SpecError, r"lags=3 is not a list of steps: say lags=\[1, 2, 4\]"),
        (lambda t: similarity.set_jaccard(t, by="layer"), SpecError, r"say by=\['layer'\]"),
        (lambda t: similarity.set_jaccard(t, lags=[]), SpecError, "not a list of steps"),
        (lambda t: similarity.received_similarity(t, lags=[0]), SpecError, "a lag is a whole number of at least 1"),
        (lambda t: similarity.received_similarity(t, lags=[1.5]), SpecError, "a whole number"),
        (lambda t: similarity.map_similarity(t), TraceError, r"no 'pattern'.*aw\.probes\.pattern"),
        (lambda t: similarity.split_index(t, groups=("masked", "prompt")), TraceError, r"not of 'prompt'.*aw\.replay"),
        (lambda t: similarity.layer_consistency(t, by=["head"]), SpecError, "no head: it can be split by trace, layer, other_layer"),
        (lambda t: similarity.layer_consistency([]), SpecError, "at least one trace"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_with_what_can(ask, error, says):
    with pytest.raises(error, match=says):
        ask(planted(uniform(2, 1, 1, 6), prompt=4))


def test_maps_of_one_step_are_refused_with_what_would_be_enough():
    trace = with_maps(uniform(3, 1, 1, 6), [(1, 0, 0)], prompt=3)
    with pytest.raises(TraceError, match=r"maps of one step only.*aw\.probes\.pattern\(steps="):
        similarity.map_similarity(trace)
