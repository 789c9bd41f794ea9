"""Types of heads: one planted head of each kind, and the numbers they rest on against loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorwatch.errors import SpecError
from anchorwatch.metrics import headtypes as metrics
from anchorwatch.metrics import movement, similarity
from anchorwatch.metrics.sink_rules import rulli
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

STEPS, PROMPT = 12, 12
LENGTH = PROMPT + STEPS
PLANTED = {
    "static": [3] * STEPS,
    "moving": [2, 2, 7, 7, 4, 4, 9, 9, 1, 1, 6, 6],
    "flicker": [2, 9, 4, 7, 1, 8, 3, 9, 2, 7, 5, 6],
    "block-drift": [12] * 4 + [16] * 4 + [20] * 4,
    "none": [None] * (STEPS - 1) + [4],
    "mixed": [4, 4, 4, 4, 2, 4, 4, 4, 5, 4, 4, 4],
}


def of(place, **options):
    trace = planted(moving_maps(place, length=LENGTH), prompt=PROMPT, **options)
    return with_blocks(trace, 4)


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_head_has_its_type(kind):
    table = metrics.head_types(of(PLANTED[kind]))
    assert table.type.tolist() == [kind]


def test_a_sink_at_the_frontier_from_right_to_left_and_one_that_follows_the_commits():
    backwards = [-1] * PROMPT + [STEPS - 1 - p for p in range(STEPS)]
    trace = planted(
        moving_maps([LENGTH - 1 - s for s in range(STEPS)], length=LENGTH),
        prompt=PROMPT,
        committed_at=backwards,
    )
    found = metrics.head_types(trace).iloc[0]
    assert found.type == "frontier"
    assert found.tau == -1 and found.frontier_hit == 1
    assert found.frontier_null == pytest.approx(1 / STEPS)
    late = [1] * 6 + [LENGTH - 1 - step for step in range(6, STEPS)]  # to the right, all in all
    trace = planted(moving_maps(late, length=LENGTH), prompt=PROMPT, committed_at=backwards)
    assert metrics.head_types(trace).type.tolist() == ["moving"]
    forwards = of([PROMPT - 1 + step for step in range(STEPS)])
    found = metrics.head_types(forwards).iloc[0]
    assert found.type == "moving" and found.tau == 1 and found.flicker == 1


def test_a_split_head_is_split_before_it_is_static():
    maps = uniform(STEPS, 1, 1, LENGTH)
    for step in range(STEPS):
        done = PROMPT + step
        maps[step, 0, 0, :done] = moving_maps([5], length=LENGTH)[0, 0, 0, :done]
        maps[step, 0, 0, done:] = moving_maps([2], length=LENGTH)[0, 0, 0, done:]
    trace = planted(maps, prompt=PROMPT)
    found = metrics.head_types(trace).iloc[0]
    assert found.type == "split" and found.split == 1
    without = planted(maps, prompt=PROMPT, groups=("all",))
    found = metrics.head_types(without).iloc[0]
    assert math.isnan(found.split) and found.type != "split"


def test_one_step_says_nothing_of_movement():
    trace = planted(moving_maps([3], length=LENGTH), prompt=LENGTH - 1)
    assert metrics.head_types(trace).type.tolist() == ["mixed"]


def test_a_layer_that_was_not_measured_has_no_type_and_is_missing():
    maps = np.repeat(moving_maps([3] * STEPS, length=LENGTH), 2, axis=1)
    maps[:, 1] = np.nan
    trace = planted(maps, prompt=PROMPT)
    assert metrics.head_types(trace).type.tolist() == ["static", "absent"]
    shares = metrics.head_type_shares(trace)
    assert row_of(shares, "share_of_heads", type="static", layer=0).value == 1
    none = row_of(shares, "share_of_heads", type="static", layer=1)
    assert math.isnan(none.value) and none.missing == 1


def test_shares_of_types_have_the_shuffled_steps_as_their_null():
    maps = np.concatenate(
        [moving_maps(PLANTED[kind], length=LENGTH) for kind in ("static", "moving", "block-drift")],
        axis=2,
    )
    trace = with_blocks(planted(maps, prompt=PROMPT), 4)
    table = metrics.head_type_shares(trace, by=())
    found = {kind: row_of(table, "share_of_heads", type=kind) for kind in metrics.TYPES}
    for kind in ("static", "moving", "block-drift"):
        assert found[kind].value == pytest.approx(1 / 3)
    assert sum(one.value for one in found.values()) == pytest.approx(1)
    assert sum(one.null for one in found.values()) == pytest.approx(1)
    assert found["static"].null == pytest.approx(1 / 3)  # no order of the steps changes it
    assert found["block-drift"].null < 1 / 3
    beside = metrics.head_type_shares(trace, by=(), frozen=of([3] * STEPS))
    assert row_of(beside, "share_of_heads", type="static").frozen == 1


@settings(max_examples=20)
@given(traces_and_maps())
def test_the_numbers_are_those_of_the_other_metrics_and_of_loops(made):
    trace, maps = made
    table = metrics.head_types(trace, RULE)
    by = ("layer", "head")
    jumps, spread = (f(trace, RULE, by=by) for f in (movement.jumps, movement.spread))
    way, edge = (f(trace, RULE, by=by) for f in (movement.direction, movement.frontier_hits))
    split = similarity.split_index(trace, RULE, by=by)
    for layer, head, history in head_histories(trace, maps):
        at = {"layer": layer, "head": head}
        found = table[(table.layer == layer) & (table["head"] == head)].iloc[0]
        positions = slow.path(history)
        there = sum(one is not None for one in history)
        held = [p for p in positions if p is not None]
        assert found.steps == there
        assert (found.type == "absent") == (there == 0)
        assert_same(found.without_sink, 1 - len(held) / there if there else math.nan)
        assert found.positions == len(set(held))
        assert_same(found.jump_rate, row_of(jumps, "jump_rate", **at).value)
        assert_same(found.modal_share, row_of(spread, "modal_share", **at).value)
        assert_same(found.tau, row_of(way, "tau", **at).value)
        assert_same(found.frontier_hit, row_of(edge, "frontier_hit", **at).value)
        assert_same(found.frontier_null, row_of(edge, "frontier_hit", **at).null)
        assert_same(found.split, row_of(split, "split", **at).value)
        stays = slow.path_stays(positions)
        assert found.held == len({place for place, _, length in stays if length >= 2})
        known = [length for _, first, length in stays if length > 1 or first < len(maps) - 1]
        assert_same(found.flicker, known.count(1) / len(known) if known else math.nan)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=15)
def test_what_a_position_says_of_the_block_lies_between_chance_and_all(seed):
    maps = random_maps(np.random.default_rng(seed), (8, 1, 4, 20))
    table = metrics.head_types(with_blocks(planted(maps, prompt=12), 2), rulli(0.5))
    assert (table.block_information.dropna() <= 1 + 1e-9).all()


def test_a_position_for_each_block_says_all_of_it_and_one_for_each_step_nothing():
    assert metrics.head_types(of(PLANTED["block-drift"])).block_information[0] == pytest.approx(1)
    everywhere = metrics.head_types(of(range(STEPS))).block_information[0]
    assert math.isnan(everywhere)  # every shuffle would say as much
    unrelated = metrics.head_types(of([3, 8] * 6)).block_information[0]
    assert unrelated < 0.1


def test_permuting_heads_permutes_types_and_limits_move_them():
    kinds = ["static", "moving", "flicker", "none"]
    maps = np.concatenate([moving_maps(PLANTED[kind], length=LENGTH) for kind in kinds], axis=2)
    order = [2, 0, 3, 1]
    table = metrics.head_types(planted(maps[:, :, order], prompt=PROMPT))
    assert table.type.tolist() == [kinds[old] for old in order]
    loose = metrics.TypeLimits(static=0.1)
    assert (
        metrics.head_types(planted(maps, prompt=PROMPT), limits=loose).type.tolist()[1] == "static"
    )
    assert table.attrs["about"]["limits"]["held"] == 2


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda t: metrics.TypeLimits(static=1.5), "static=1.5 is not a number from 0 to 1"),
        (
            lambda t: metrics.TypeLimits(flicker="much"),
            "flicker='much' is not a number from 0 to 1",
        ),
        (lambda t: metrics.TypeLimits(held=0), "held=0 is not a whole number of at least 1"),
        (lambda t: metrics.head_types([]), "at least one trace"),
        (lambda t: metrics.head_type_shares(t, by=["step"]), "no step: it can be split by"),
        (lambda t: metrics.head_type_shares(t, by="layer"), r"say by=\['layer'\]"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_what_can(ask, says):
    with pytest.raises(SpecError, match=says):
        ask(planted(uniform(2, 1, 1, 6), prompt=4))
