"""Tables: prompts are the unit, what is absent is counted, and traces remember themselves."""

import json

import numpy as np
import pandas as pd
import pytest

import anchorwatch as aw
import tolerances
from anchorwatch.errors import AnchorwatchWarning, SpecError
from anchorwatch.metrics.sink_rules import rulli
from anchorwatch.metrics.sink_strength import sinks
from anchorwatch.metrics.table import (
    NUMBERS,
    Quantity,
    add_columns,
    collapse,
    mean,
    ratio,
    stack_layers,
    tabulate,
    total,
)
from synthetic_traces import column, planted, uniform


def traces(shares, *, source="planted", seed=0, tokens=None):
    """One trace for each share that a column at key 3 holds; every prompt its own tokens."""
    found = []
    for number, share in enumerate(shares):
        maps = np.broadcast_to(column(20, 3, share), (2, 1, 2, 20, 20)).copy()
        ids = tokens or range(100 * number + 1, 100 * number + 21)
        found.append(planted(maps, prompt=18, tokens=ids, source=source, seed=seed))
    return found


def test_every_table_ends_with_the_same_columns_and_says_what_made_it():
    made = traces([0.5, 0.6])
    table = sinks(made, by=("layer", "head"))
    assert tuple(table.columns) == ("model", "layer", "head", "quantity", *NUMBERS)
    assert table.attrs["about"]["rule"] == "rulli:3:sum"
    assert [one["digest"] for one in table.attrs["traces"]] == [t.digest() for t in made]
    json.dumps(table.attrs)


def test_fewer_than_five_prompts_have_no_interval_and_five_have_one():
    few = sinks(traces([0.4, 0.5, 0.6, 0.7]), by=())
    assert few.low.isna().all() and few.high.isna().all()
    assert (few.interval == "4 prompts, 5 needed").all()
    five = sinks(traces([0.4, 0.5, 0.6, 0.7, 0.8]), by=())
    row = five[five.quantity == "greatest"].iloc[0]
    assert row.value == pytest.approx(0.6, abs=tolerances.METRIC)
    assert 0.4 <= row.low < 0.6 < row.high <= 0.8
    assert row.interval == "" and row.n == 5


def test_seeds_of_one_prompt_are_one_observation():
    one = traces([0.5, 0.5, 0.5, 0.5, 0.5, 0.5], tokens=range(1, 21))
    table = sinks(one, by=())
    assert (table.n == 1).all() and table.low.isna().all()
    split = sinks([*traces([0.4], seed=1), *traces([0.8], seed=2)], by=("seed",))
    greatest = split[split.quantity == "greatest"].set_index("seed").value
    assert greatest.to_dict() == pytest.approx({1: 0.4, 2: 0.8}, abs=tolerances.METRIC)


def test_the_mean_is_over_prompts_not_over_steps():
    long = np.broadcast_to(column(20, 3, 0.9), (16, 1, 1, 20, 20)).copy()
    short = np.broadcast_to(column(20, 3, 0.5), (1, 1, 1, 20, 20)).copy()
    both = [planted(long, prompt=4), planted(short, prompt=19, tokens=range(50, 70))]
    table = sinks(both, by=())
    assert table[table.quantity == "greatest"].value.item() == pytest.approx(
        0.7, abs=tolerances.METRIC
    )


def test_two_checkpoints_of_one_name_are_kept_apart():
    made = traces([0.5, 0.7])
    made[1]._manifest["model"] = made[1].manifest["model"] | {"weights": "f00dfeed99"}
    assert set(sinks(made, by=()).model) == {"planted@planted", "planted@f00dfeed"}


def test_steps_that_were_not_measured_are_counted_not_dropped():
    maps = np.broadcast_to(column(20, 3, 0.5), (4, 1, 1, 20, 20)).copy()
    maps[1:3] = np.nan
    table = sinks(planted(maps, prompt=16), by=())
    assert (table.missing == 2).all() and (table.n == 1).all()
    assert table[table.quantity == "greatest"].value.item() == pytest.approx(0.5)
    each = sinks(planted(maps, prompt=16), by=("step",))
    absent = each[each.step == 1]
    assert absent.value.isna().all() and (absent.n == 0).all()


def test_progress_is_a_clock_that_runs_of_any_length_share():
    quick = planted(uniform(2, 1, 1, 12), prompt=10)
    slow = planted(uniform(10, 1, 1, 20), prompt=10, tokens=range(50, 70))
    table = sinks([quick, slow], by=("progress",))
    n = table[table.quantity == "greatest"].set_index("progress").n
    assert n[0.05] == 2 and n[0.55] == 2 and n[0.15] == 1


def test_others_stand_beside_in_their_own_columns_absent_where_not_given():
    table, other = sinks(traces([0.5]), by=("layer",)), sinks(traces([0.9]), by=("layer",))
    both = add_columns(table, {"frozen": other, "untrained": None})
    greatest = both[both.quantity == "greatest"].iloc[0]
    assert greatest.frozen == pytest.approx(0.9, abs=tolerances.METRIC) and np.isnan(
        greatest.untrained
    )
    assert both.attrs == table.attrs


def test_sums_add_up_before_they_are_divided():
    top, bottom = np.array([[1.0, 3.0], [0.0, 8.0]]), np.array([[2.0, 4.0], [0.0, 8.0]])
    made = ratio("r", ("step", "head"), top, bottom, (bottom, bottom))
    assert collapse(made, []).value == pytest.approx(12 / 14)
    np.testing.assert_allclose(collapse(made, ["step"]).value, [4 / 6, 1.0])
    np.testing.assert_allclose(collapse(made, ["head"]).value, [0.5, 11 / 12])
    both = collapse(made, ["head", "step"])
    assert np.isnan(both.value[0, 1]) and both.missing.sum() == 1
    assert np.isnan(both.null[0, 1]) and np.nanmax(both.null) == 1
    counts = collapse(total("t", ("step", "head"), top), ["step"])
    np.testing.assert_allclose(counts.value, [4, 8])


def test_layers_are_stacked_and_a_finish_makes_new_quantities():
    one = [mean("a", ("step",), np.array([1.0, 3.0]), np.array([1.0, 1.0]))]
    made = stack_layers(
        [one, [mean("a", ("step",), np.array([5.0, np.nan]), np.array([2.0, 2.0]))]]
    )
    assert made[0].dims == ("layer", "step")
    trace = planted(uniform(2, 2, 1, 6), prompt=4)

    def doubled(cells):
        return {
            "twice": type(cells["a"])(2 * cells["a"].value, cells["a"].null, cells["a"].missing)
        }

    table = tabulate([(trace, made)], ["layer"], doubled)
    assert table.value.tolist() == [4.0, 10.0]
    assert table.null.tolist() == [1.0, 2.0]  # over the same cells as the value
    assert table.missing.tolist() == [0, 1]


def test_splitting_by_what_a_quantity_does_not_have_says_what_it_has():
    made: Quantity = mean("a", ("step", "head"), np.zeros((2, 3)))
    with pytest.raises(
        SpecError, match="a has no layer: it can be split by trace, step, head, pro"
    ):
        collapse(made, ["layer"])


def test_rules_travel_with_the_numbers():
    table = sinks(traces([0.5]), rulli(2, "percent"))
    assert table.attrs["about"] == {"metric": "sinks", "rule": "rulli:2:percent", "group": "all"}


def test_decodings_of_one_prompt_are_kept_apart_or_warned_about():
    model, ask = aw.load("tiny/llada"), "the anchor holds"
    made = [aw.run(model, ask, aw.decoding.LowConfidence(length=4, steps=n)) for n in (2, 4)]
    with pytest.warns(AnchorwatchWarning, match="decoded in several ways, which are averaged: by="):
        sinks(made, by=())
    table = sinks(made, by=("decoding",))
    assert set(table.decoding) == {
        "LowConfidence(length=4, steps=2)",
        "LowConfidence(length=4, steps=4)",
    }


def test_a_run_says_the_same_before_it_is_written_and_after(tmp_path):
    trace = aw.run(aw.load("tiny/arm"), "the anchor holds", aw.decoding.LeftToRight(length=6))
    again = aw.read(trace.write(tmp_path / "t.trace"))
    for name in ("sinks", "jumps", "lifetime", "direction", "qk_split"):
        metric = getattr(aw.metrics, name)
        pd.testing.assert_frame_equal(metric(trace), metric(again))
