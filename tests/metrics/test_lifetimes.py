"""Lifetimes and onsets: planted answers, loops over dense maps, every shuffle of the steps."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tolerances
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics import lifetimes as metrics
from anchorwatch.metrics.stats import odds_ratio
from references import movement as slow
from synthetic_traces import (
    RULE,
    assert_same,
    column,
    head_histories,
    moving_maps,
    planted,
    row_of,
    traces_and_maps,
    uniform,
)


@given(traces_and_maps(), st.sampled_from(["all", "written"]))
def test_survival_is_kaplan_meier_over_loops_and_its_null_over_every_shuffle(made, group):
    trace, maps = made
    steps = len(maps)
    table = metrics.survival(trace, RULE, group=group, by=("layer", "head"))
    for layer, head, history in head_histories(trace, maps, group):
        ended, censored, _ = slow.stay_counts(history)
        curve = slow.survival(ended, censored, steps)
        null = slow.survival(*slow.shuffled_stays(history, steps), steps)
        for age in range(1, steps + 1):
            found = row_of(table, "survival", age=age, layer=layer, head=head)
            assert_same(found.value, curve[age - 1])
            assert found.missing == math.isnan(found.value)
            if not math.isnan(found.value):
                assert_same(found.null, null[age - 1])


@settings(max_examples=20)
@given(traces_and_maps())
def test_lifetimes_pool_the_stays_of_a_cell(made):
    trace, maps = made
    steps = len(maps)
    table = metrics.lifetime(trace, RULE, by=("layer",))
    for layer in range(maps.shape[1]):
        ended, censored, old = {}, {}, 0
        for at, _, history in head_histories(trace, maps):
            if at == layer:
                one, other, began = slow.stay_counts(history)
                old += began
                for held, more in ((ended, one), (censored, other)):
                    for length, number in more.items():
                        held[length] = held.get(length, 0) + number
        every = sum(ended.values()) + sum(censored.values())
        curve = slow.survival(ended, censored, steps)
        half = [age for age, share in enumerate(curve, 1) if share <= 0.5 + 1e-12]
        median = row_of(table, "median_lifetime", layer=layer)
        assert median.value == half[0] if half else math.isnan(median.value)
        seen = [share for share in curve if not math.isnan(share)]
        area = 1 + sum(seen[:-1]) if seen else math.nan
        assert_same(row_of(table, "mean_lifetime", layer=layer).value, area)
        known = every - censored.get(1, 0)
        flicker = ended.get(1, 0) / known if known else math.nan
        assert_same(row_of(table, "flicker", layer=layer).value, flicker)
        lost = sum(censored.values()) / every if every else math.nan
        assert_same(row_of(table, "censored", layer=layer).value, lost)
        first = row_of(table, "from_first_step", layer=layer)
        assert_same(first.value, old / every if every else math.nan)
        assert math.isnan(first.null)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.data())
def test_expected_stays_are_the_mean_over_every_order(stretches, data):
    steps = sum(stretches)
    assume(steps <= 6)  # all orders of more are too many
    times = data.draw(st.integers(0, steps))
    flags = [step < times for step in range(steps)]
    orders = set(itertools.permutations(flags))
    ended, censored = np.zeros(steps + 1), np.zeros(steps + 1)
    for order in orders:
        shown, at = [], 0
        for stretch in stretches:
            shown += [{0} if flag else set() for flag in order[at : at + stretch]] + [None]
            at += stretch
        for held, counts in zip((ended, censored), slow.stay_counts(None, shown), strict=False):
            for length, number in counts.items():
                held[length] += number / len(orders)
    found = metrics.expected_stays(tuple(stretches))
    np.testing.assert_allclose(found[0][times], ended[1:], atol=tolerances.METRIC)
    np.testing.assert_allclose(found[1][times], censored[1:], atol=tolerances.METRIC)


@given(traces_and_maps())
def test_onsets_are_what_loops_count_and_their_null_every_deal_of_the_commits(made):
    trace, maps = made
    steps = len(maps)
    table = metrics.onsets(trace, RULE, by=("layer", "head"))
    when = trace.committed_at.tolist()
    committed = [{p for p, at in enumerate(when) if at == step - 1} for step in range(steps)]
    for layer, head, history in head_histories(trace, maps):
        hit, onset, able, risk = slow.onset_counts(history, committed)
        share = row_of(table, "share_just_committed", layer=layer, head=head)
        odds = row_of(table, "odds_ratio", layer=layer, head=head)
        logs = row_of(table, "log_odds_ratio", layer=layer, head=head)
        assert_same(share.value, hit / onset if onset else math.nan)
        varied = 0 < onset < risk and 0 < able < risk
        if not varied or hit + onset * able / risk < 1:
            assert math.isnan(odds.value) and math.isnan(logs.value)
            continue
        assert_same(odds.value, slow.odds(hit, onset, able, risk))
        counts = [[hit, onset - hit], [able - hit, risk - onset - able + hit]]
        assert_same(logs.value, math.log(odds_ratio(counts).value))
        pairs, total, number = slow.transitions(history), np.zeros(4), 0
        for order in itertools.permutations(pairs):
            dealt = [set()] * steps
            for step, from_step in zip(pairs, order, strict=True):
                dealt[step] = committed[from_step]
            total, number = total + slow.onset_counts(history, dealt), number + 1
        expected = total / number
        assert_same(share.null, expected[0] / onset)
        assert_same(odds.null, slow.odds(*expected))
        chances = [
            len(committed[step]) / len(history[step][0])
            for step in pairs
            for key in history[step][1]
            if key not in history[step - 1][1]
        ]
        assert_same(share.chance, slow.mean(chances))


def test_a_static_sink_lasts_and_is_censored():
    trace = planted(moving_maps([5] * 8, length=24), prompt=16)
    table = metrics.survival(trace)
    assert (table.value == 1).all() and (table.null == 1).all() and len(table) == 8
    life = metrics.lifetime(trace, by=())
    assert math.isnan(row_of(life, "median_lifetime").value)
    assert row_of(life, "mean_lifetime").value == 8  # as long as it was seen
    assert row_of(life, "censored").value == 1 == row_of(life, "from_first_step").value
    assert row_of(life, "flicker").value == 0
    onset = row_of(metrics.onsets(trace, by=()), "share_just_committed")
    assert math.isnan(onset.value) and onset.n == 0


def test_flickers_last_one_step_and_shuffled_ones_hardly_longer():
    trace = planted(moving_maps([3, 9, 4, 11, 6, 13, 2, 7], length=24), prompt=16)
    life = metrics.lifetime(trace, by=())
    assert row_of(life, "flicker").value == 1 and row_of(life, "median_lifetime").value == 1
    assert row_of(life, "censored").value == 1 / 8
    assert metrics.survival(trace).value.tolist()[0] == pytest.approx(1 / 8 * 0 + 1 - 7 / 8)


def test_a_sink_that_stays_four_steps_outlives_its_shuffles():
    trace = planted(moving_maps([8] * 4 + [12] * 4 + [16] * 4, length=20), prompt=8)
    life = metrics.lifetime(trace, by=())
    assert row_of(life, "median_lifetime").value == 4 and row_of(life, "median_lifetime").null == 1
    curve = metrics.survival(trace)
    assert row_of(curve, "survival", age=3).value == 1
    assert row_of(curve, "survival", age=4).value == pytest.approx(1 / 3)
    assert row_of(curve, "survival", age=3).null < 0.1


def test_a_sink_on_what_was_just_committed_has_large_odds_and_another_has_none():
    steps, prompt = 8, 12
    place = [prompt - 1 + step for step in range(steps)]
    trace = planted(moving_maps(place, length=prompt + steps), prompt=prompt)
    table = metrics.onsets(trace, by=())
    share = row_of(table, "share_just_committed")
    assert share.value == 1 and share.null == pytest.approx(1 / 7)
    assert share.chance == pytest.approx(1 / 20)
    # 7 onsets, all on the 7 commits; 7 x 19 keys could have become sinks
    assert row_of(table, "odds_ratio").value == pytest.approx(7.5 * 126.5 / 0.25)
    elsewhere = planted(moving_maps([0, 1, 2, 3, 4, 5, 6, 7], length=prompt + steps), prompt=prompt)
    table = metrics.onsets(elsewhere, by=())
    assert row_of(table, "share_just_committed").value == 0
    odds = row_of(table, "odds_ratio")  # 7 onsets, none on a commit, and chance has 0.4 there
    assert math.isnan(odds.value) and odds.interval == "less than one expected, none seen"
    by_step = metrics.onsets(trace, by=("step",))
    assert math.isnan(row_of(by_step, "share_just_committed", step=0).value)
    assert row_of(by_step, "share_just_committed", step=3).value == 1


def test_steps_that_were_not_measured_cut_stays_on_both_sides():
    maps = moving_maps([5] * 7, length=24)
    maps[3] = np.nan
    trace = planted(maps, prompt=16)
    life = metrics.lifetime(trace, by=())
    assert row_of(life, "censored").value == 1 == row_of(life, "from_first_step").value
    assert row_of(life, "mean_lifetime").value == 3
    onset = row_of(metrics.onsets(trace, by=()), "share_just_committed")
    assert onset.missing == 1


def test_no_sink_at_all_has_no_lifetime():
    trace = planted(uniform(5, 1, 2, 20), prompt=15)
    assert metrics.survival(trace).value.isna().all()
    life = metrics.lifetime(trace, by=())
    assert life.value.isna().all() and (life.n == 0).all() and (life.missing == 1).all()


def test_permuting_heads_permutes_lifetimes_and_frozen_traces_stand_beside():
    maps = uniform(4, 1, 2, 20)
    maps[:, 0, 0], maps[1, 0, 1] = column(20, 4, 0.9), column(20, 7, 0.9)
    plain = metrics.lifetime(planted(maps, prompt=16), by=("head",))
    moved = metrics.lifetime(planted(maps[:, :, ::-1], prompt=16), by=("head",))
    assert row_of(plain, "flicker", head=1).value == 1 == row_of(moved, "flicker", head=0).value
    beside = metrics.survival(planted(maps, prompt=16), untrained=planted(maps, prompt=16))
    assert beside.untrained.tolist() == pytest.approx(beside.value.tolist(), nan_ok=True)
    assert beside.frozen.isna().all()


@pytest.mark.parametrize(
    ("ask", "error", "says"),
    [
        (lambda t: metrics.survival(t, by=["step"]), SpecError, "has no step: it can be split by"),
        (lambda t: metrics.lifetime(t, by=["step"]), SpecError, "has no step: it can be split by"),
        (lambda t: metrics.lifetime(t, by="layer"), SpecError, r"say by=\['layer'\]"),
        (lambda t: metrics.onsets(t, group="prompt"), TraceError, r"not of 'prompt'.*aw\.replay"),
        (lambda t: metrics.survival([]), SpecError, "at least one trace"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_what_can(ask, error, says):
    with pytest.raises(error, match=says):
        ask(planted(uniform(2, 1, 1, 6), prompt=4))
