"""Movement: planted answers, and every number against loops over dense maps and over shuffles."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tolerances
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics import movement as metrics
from anchorwatch.metrics.table import NUMBERS
from references import movement as slow
from synthetic_traces import (
    RULE,
    assert_same,
    head_histories,
    moving_maps,
    planted,
    random_maps,
    row_of,
    traces_and_maps,
    uniform,
    with_blocks,
)


@given(traces_and_maps(), st.sampled_from(["all", "masked", "written"]))
def test_jumps_are_what_loops_count_and_their_null_is_the_mean_of_every_shuffle(made, group):
    trace, maps = made
    length = trace.canvas.shape[1]
    table = metrics.jumps(trace, RULE, group=group, by=("layer", "head"))
    for layer, head, history in head_histories(trace, maps, group):
        at = {"layer": layer, "head": head}
        for name, only in (("", True), ("_any", False)):
            positions = slow.path(history, sinks_only=only)
            rate, moved = (
                row_of(table, f"jump_rate{name}", **at),
                row_of(table, f"displacement{name}", **at),
            )
            assert_same(rate.value, slow.jump_rate(positions))
            assert_same(moved.value, slow.displacement(positions, length))
            assert rate.missing == len(maps) - 1 - len(slow.gaps(positions))
            dealt = list(slow.shuffles(positions))
            assert_same(rate.null, slow.mean([slow.jump_rate(one) for one in dealt]))
            assert_same(moved.null, slow.mean([slow.displacement(one, length) for one in dealt]))


@given(traces_and_maps(most_steps=6))
def test_spread_and_direction_are_what_loops_over_steps_say(made):
    trace, maps = made
    length = trace.canvas.shape[1]
    spread = metrics.spread(trace, RULE, by=("layer", "head"))
    way = metrics.direction(trace, RULE, by=("layer", "head"))
    for layer, head, history in head_histories(trace, maps):
        at = {"layer": layer, "head": head}
        for name, only in (("", True), ("_any", False)):
            positions = slow.path(history, sinks_only=only)
            assert_same(
                row_of(spread, f"position_variance{name}", **at).value,
                slow.variance(positions, length),
            )
            assert_same(
                row_of(spread, f"modal_share{name}", **at).value, slow.modal_share(positions)
            )
            assert_same(row_of(way, f"tau{name}", **at).value, slow.tau(positions))
            assert_same(row_of(way, f"slope{name}", **at).value, slow.slope(positions))
        centre = slow.centroid(history)
        variance = row_of(spread, "centroid_variance", **at)
        assert_same(variance.value, slow.variance(centre, length))
        assert_same(row_of(way, "centroid_slope", **at).value / length, slow.slope(centre) / length)


@given(traces_and_maps())
def test_frontier_hits_are_what_loops_count_and_their_null_is_the_mean_of_every_shuffle(made):
    trace, maps = made
    length, masked = trace.canvas.shape[1], slow.frontier(trace)
    table = metrics.frontier_hits(trace, RULE, by=("layer", "head"))
    for layer, head, history in head_histories(trace, maps):
        for name, only in (("", True), ("_any", False)):
            positions = slow.path(history, sinks_only=only)
            usable = [p if m else None for p, m in zip(positions, masked, strict=True)]
            hit = row_of(table, f"frontier_hit{name}", layer=layer, head=head)
            far = row_of(table, f"frontier_distance{name}", layer=layer, head=head)
            assert_same(hit.value, slow.frontier_hit(usable, masked))
            assert_same(far.value, slow.frontier_distance(usable, masked, length))
            dealt = list(slow.shuffles(usable))
            assert_same(hit.null, slow.mean([slow.frontier_hit(one, masked) for one in dealt]))
            assert_same(
                far.null, slow.mean([slow.frontier_distance(one, masked, length) for one in dealt])
            )
            here = [m for m, p in zip(masked, usable, strict=True) if p is not None]
            assert_same(hit.chance, slow.mean([1 / len(m) for m in here]))
            gaps = [sum(max(m) - j for j in m) / len(m) / length for m in here]
            assert_same(far.chance, slow.mean(gaps))


@settings(max_examples=15)
@given(traces_and_maps())
def test_sink_positions_are_one_row_for_each_step_layer_and_head(made):
    trace, maps = made
    steps, layers, heads, length, _ = maps.shape
    table = metrics.sink_positions(trace, RULE)
    assert len(table) == steps * layers * heads
    assert table.attrs["about"]["rule"] == str(RULE)
    for layer, head, history in head_histories(trace, maps):
        held = table[(table.layer == layer) & (table["head"] == head)].sort_values("step")
        assert held.progress.tolist() == trace.progress[:-1].tolist()
        for one, row_, greatest, sink in zip(
            history,
            held.itertuples(),
            slow.path(history, sinks_only=False),
            slow.path(history),
            strict=True,
        ):
            assert row_.position == (-1 if greatest is None else greatest)
            assert row_.sink == (sink is not None)
            if one is None:
                assert math.isnan(row_.share) and math.isnan(row_.relative) and row_.token == ""
                continue
            assert_same(row_.share, max(one[0]))
            assert row_.relative == greatest / length
            assert row_.token == trace.token(int(trace.canvas[row_.step, greatest]))


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1))
def test_block_jumps_split_the_jumps_at_steps_that_open_a_block(seed):
    maps = random_maps(np.random.default_rng(seed), (6, 1, 3, 9))
    trace = with_blocks(planted(maps, prompt=3), 2)
    table = metrics.block_jumps(trace, RULE, by=("head",))
    for _, head, history in head_histories(trace, maps):
        positions = slow.path(history)
        kinds = {True: [], False: []}
        for step in range(1, 6):
            if positions[step] is not None and positions[step - 1] is not None:
                kinds[step in (2, 4)].append(positions[step] != positions[step - 1])
        every = kinds[True] + kinds[False]
        for name, opens in (("jump_rate_at_boundaries", True), ("jump_rate_inside", False)):
            found = row_of(table, name, head=head)
            assert_same(found.value, slow.mean(map(float, kinds[opens])))
            assert_same(found.null, slow.mean(map(float, every)) if kinds[opens] else slow.NAN)
        inside = slow.mean(map(float, kinds[False]))
        excess = row_of(table, "excess", head=head)
        assert_same(excess.value, slow.mean(map(float, kinds[True])) - inside)
        if kinds[True] and kinds[False]:
            assert excess.null == pytest.approx(0)


def test_a_static_sink_never_jumps_and_has_no_direction():
    trace = planted(moving_maps([5] * 8, length=24), prompt=16)
    jumps, way, spread = (
        f(trace, by=()) for f in (metrics.jumps, metrics.direction, metrics.spread)
    )
    for name in ("jump_rate", "displacement", "jump_rate_any"):
        assert row_of(jumps, name).value == 0 == row_of(jumps, name).null
    assert math.isnan(row_of(way, "tau").value) and row_of(way, "tau").missing == 1
    assert row_of(way, "slope").value == 0
    assert (
        row_of(spread, "modal_share").value == 1 and row_of(spread, "position_variance").value == 0
    )
    assert row_of(spread, "position_variance").null == pytest.approx(
        (24**2 - 1) / 12 / 24**2 * 7 / 8
    )


@pytest.mark.parametrize("each", [1, 2])
def test_a_sink_that_follows_the_commits_has_their_pace(each):
    steps, prompt = 8, 10
    length = prompt + each * steps
    when = [-1] * prompt + [p // each for p in range(each * steps)]
    place = [prompt - 1 + each * step for step in range(steps)]  # the last one committed so far
    trace = planted(moving_maps(place, length=length), prompt=prompt, committed_at=when)
    way = metrics.direction(trace, by=())
    assert row_of(way, "slope").value == each and row_of(way, "tau").value == 1
    assert row_of(way, "slope").null == row_of(way, "tau").null == 0
    assert row_of(way, "centroid_tau").value == 1
    jumps = metrics.jumps(trace, by=())
    assert row_of(jumps, "jump_rate").value == 1 == row_of(jumps, "jump_rate").null
    assert row_of(jumps, "displacement").value == pytest.approx(each / length)
    assert row_of(jumps, "displacement").null == pytest.approx(3 * each / length)  # (steps + 1) / 3


def test_a_sink_at_the_right_to_left_frontier_hits_it_and_shuffled_steps_do_not():
    steps, prompt = 8, 8
    length = prompt + steps
    when = [-1] * prompt + [steps - 1 - p for p in range(steps)]
    trace = planted(
        moving_maps([length - 1 - s for s in range(steps)], length=length),
        prompt=prompt,
        committed_at=when,
    )
    hit = row_of(metrics.frontier_hits(trace, by=()), "frontier_hit")
    assert hit.value == 1 and hit.null == pytest.approx(1 / 8)
    assert hit.chance == pytest.approx(sum(1 / m for m in range(1, 9)) / 8)
    assert row_of(metrics.frontier_hits(trace, by=()), "frontier_distance").value == 0
    assert row_of(metrics.direction(trace, by=()), "tau").value == -1
    late = metrics.frontier_hits(trace, by=("step",))
    assert row_of(late, "frontier_hit", step=7).chance == 1


def test_a_drift_by_blocks_jumps_only_where_a_block_opens():
    place = [8] * 4 + [12] * 4 + [16] * 4
    trace = with_blocks(planted(moving_maps(place, length=20), prompt=8), 4)
    table = metrics.block_jumps(trace, by=())
    assert row_of(table, "jump_rate_at_boundaries").value == 1
    assert row_of(table, "jump_rate_inside").value == 0
    assert row_of(table, "jump_rate_inside").null == pytest.approx(2 / 11)
    assert row_of(table, "excess").value == 1 and row_of(table, "excess").null == pytest.approx(0)
    assert math.isnan(row_of(table, "times").value)
    assert metrics.current_block(trace).tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_no_sink_at_all_is_missing_and_not_zero():
    trace = planted(uniform(6, 2, 3, 20), prompt=14)
    for table in (metrics.jumps(trace), metrics.spread(trace), metrics.direction(trace)):
        held = table[~table.quantity.str.contains("_any|centroid")]
        assert held.value.isna().all() and (held.n == 0).all() and (held.missing > 0).all()
    jump = row_of(metrics.jumps(trace, by=()), "jump_rate")
    assert jump.missing == 2 * 3 * 5


def test_frozen_and_untrained_traces_stand_beside_and_absent_ones_are_absent():
    trace = planted(moving_maps([3, 5, 3, 5], length=16), prompt=12)
    still = planted(moving_maps([3, 3, 3, 3], length=16), prompt=12)
    table = metrics.jumps(trace, frozen=still)
    assert row_of(table, "jump_rate").value == 1 and row_of(table, "jump_rate").frozen == 0
    assert table.untrained.isna().all()
    assert list(table.columns) == ["model", "layer", "quantity", *NUMBERS, "frozen", "untrained"]
    assert table.attrs["about"]["frozen"] == [still.digest()]
    assert table.attrs["about"]["untrained"] is None
    both = metrics.frontier_hits([trace, still], by=(), untrained=[trace, still])
    assert "chance" in both.columns and row_of(both, "frontier_hit").untrained == 0


def test_chance_is_that_of_each_model():
    few = planted(moving_maps([3] * 4, length=16), prompt=12, source="few")
    many = planted(
        moving_maps([3] * 4, length=24),
        prompt=12,
        source="many",
        committed_at=[-1] * 12 + list(range(4)) + [3] * 8,
    )
    table = metrics.frontier_hits([few, many], by=("step",))
    assert row_of(table, "frontier_hit", model="few", step=0).chance == 1 / 4
    assert row_of(table, "frontier_hit", model="many", step=0).chance == 1 / 12


def test_permuting_heads_permutes_rows_and_a_second_seed_changes_nothing_but_the_mean():
    maps = random_maps(np.random.default_rng(4), (5, 1, 4, 12))
    order = [2, 0, 3, 1]
    plain = metrics.jumps(planted(maps, prompt=7), RULE, by=("head",))
    moved = metrics.jumps(planted(maps[:, :, order], prompt=7), RULE, by=("head",))
    for new, old in enumerate(order):
        for name in ("jump_rate", "displacement_any"):
            a, b = row_of(plain, name, head=old), row_of(moved, name, head=new)
            assert (a.value, a.null) == pytest.approx((b.value, b.null), nan_ok=True)
    twice = metrics.jumps(
        [planted(maps, prompt=7), planted(maps, prompt=7, seed=1)], RULE, by=("head",)
    )
    for name in ("jump_rate", "displacement_any"):
        assert row_of(twice, name, head=0).value == pytest.approx(
            row_of(plain, name, head=0).value, nan_ok=True
        )
        assert row_of(twice, name, head=0).n == row_of(plain, name, head=0).n


@given(st.integers(1, 9), st.integers(1, 40))
def test_the_expected_commonest_share_lies_between_one_and_an_even_spread(steps, keys):
    found = metrics.expected_mode(steps, keys)
    assert math.isnan(found[0]) and found[1] == 1
    for count in range(1, steps + 1):
        assert max(1 / count, 1 / keys) - 1e-12 <= found[count] <= 1
    if keys == 1:
        assert (found[1:] == 1).all()


def test_the_expected_commonest_of_two_draws_is_known():
    assert metrics.expected_mode(2, 4)[2] == pytest.approx(1 / 2 + 1 / 8, abs=tolerances.SHUFFLED)


def test_even_positions_have_the_variance_their_null_says():
    generator = np.random.default_rng(0)
    keys = np.array([[4.0, 9.0, np.nan, 6.0, 20.0]])
    drawn = [
        np.var([generator.integers(0, int(k)) for k in keys[0] if not np.isnan(k)])
        for _ in range(8000)
    ]
    assert metrics._even_variance(keys)[0] == pytest.approx(np.mean(drawn), rel=tolerances.SHUFFLED)


@pytest.mark.parametrize(
    ("ask", "error", "says"),
    [
        (lambda t: metrics.jumps([]), SpecError, "at least one trace"),
        (lambda t: metrics.jumps(t, by="layer"), SpecError, r"say by=\['layer'\]"),
        (lambda t: metrics.spread(t, by=["step"]), SpecError, "has no step: it can be split by trace, layer, head"),
        (lambda t: metrics.direction(t, group="prompt"), TraceError, r"not of 'prompt'.*aw\.replay"),
        (lambda t: metrics.sink_positions("a.trace"), SpecError, r"aw\.read"),
        (lambda t: metrics.block_jumps(t), TraceError, r"one block.*aw\.decoding\.LowConfidence\(length=128, block=32\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_with_what_can(ask, error, says):
    with pytest.raises(error, match=says):
        ask(planted(uniform(2, 1, 1, 6), prompt=4))


def test_one_trace_with_blocks_is_enough_and_the_other_is_missing():
    place = [8] * 2 + [10] * 2
    blocks = with_blocks(planted(moving_maps(place, length=12), prompt=8, source="blocks"), 2)
    plain = planted(moving_maps(place, length=12), prompt=8, source="plain")
    table = metrics.block_jumps([blocks, plain], by=())
    assert row_of(table, "excess", model="blocks").value == 1
    none = row_of(table, "excess", model="plain")
    assert math.isnan(none.value) and none.n == 0 and none.missing == 1
