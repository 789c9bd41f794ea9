"""Rows that claims about sinks rest on, against what was planted and against slower ways."""

import numpy as np
import pytest

import tolerances
from anchorwatch.models.load import load
from anchorwatch.studies.evidence import EXPERIMENTS
from anchorwatch.studies.papers.sinks import experiments as rows_sinks
from anchorwatch.trace.trace import MASKED, PROMPT, WRITTEN
from synthetic_traces import column


def test_a_column_stands_out_of_shuffled_rows_and_shuffled_rows_do_not():
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.full(20, 0.2), size=(400, 20))
    assert rows_sinks.compare_with_shuffled(column(20, 3, 0.9)[None], rng)["above"] == 1
    by_chance = rows_sinks.compare_with_shuffled(rows, rng)
    expected = 1 / (rows_sinks.SHUFFLES + 1)
    error = (expected * (1 - expected) / len(rows)) ** 0.5
    assert abs(by_chance["above"] - expected) < tolerances.BINOMIAL_ERRORS * error
    assert by_chance["greatest"] == pytest.approx(by_chance["shuffled"], rel=0.1)


def test_a_correlation_is_pearsons_and_absent_without_variation():
    one, other = np.random.default_rng(1).normal(size=(2, 30))
    found = rows_sinks.correlation(one, other)
    assert found == pytest.approx(np.corrcoef(one, other)[0, 1], rel=tolerances.STATISTIC)
    assert np.isnan(rows_sinks.correlation(one, np.ones(30)))


def test_a_partial_correlation_holds_the_third_fixed():
    rng = np.random.default_rng(2)
    given, noise = rng.normal(size=(2, 60))
    one, other = given + 0.3 * noise, -given + 0.3 * noise
    found = rows_sinks.partial_correlation(one, other, given)
    r = np.corrcoef([one, other, given])
    expected = (r[0, 1] - r[0, 2] * r[1, 2]) / np.sqrt((1 - r[0, 2] ** 2) * (1 - r[1, 2] ** 2))
    assert found == pytest.approx(expected, rel=tolerances.STATISTIC)
    assert rows_sinks.correlation(one, other) < 0 < found
    assert rows_sinks.partial_correlation(one, np.zeros(60), given) == 0  # nothing was changed
    assert np.isnan(rows_sinks.partial_correlation(2 * given, other, given))


def test_groups_with_the_same_greatest_key_have_none_of_their_own():
    rows = np.concatenate([column(10, 3, 0.9)[:4], column(10, 3, 0.5)[:4]])
    first = np.arange(8) < 4
    assert rows_sinks.own_key(rows, first) == (0.0, 0.0)
    rows[4:] = column(10, 6, 0.9)[:4]
    own, split = rows_sinks.own_key(rows, first)
    assert own == pytest.approx(10 * (0.9 - 0.1 / 9), rel=tolerances.STATISTIC)
    assert split == 1


def test_groups_drawn_by_lot_have_the_same_keys_of_their_own_as_queries_that_do_not_differ():
    rng = np.random.default_rng(3)
    maps = rng.dirichlet(np.full(20, 0.2), size=(300, 20))
    roles = np.tile([PROMPT] * 8 + [WRITTEN] * 5 + [MASKED] * 7, (300, 1))
    found = rows_sinks.own_keys(maps, roles, rng)
    assert found["own_drawn"] > 1
    assert found["own"] == pytest.approx(found["own_drawn"], rel=0.1)
    maps[:, 13:, 2] += 3.0
    maps /= maps.sum(axis=-1, keepdims=True)
    found = rows_sinks.own_keys(maps, roles, rng)
    assert found["own"] > found["own_drawn"] + 3


def test_every_table_is_known_and_is_made_of_a_model():
    model = load("tiny/llada")
    names = ("head_maps", "delayed", "added_masks")
    assert {EXPERIMENTS[name].__module__ for name in names} == {rows_sinks.__name__}
    heads = rows_sinks.head_maps(model, 0, {})
    assert len(heads) == model.num_layers * model.num_heads
    assert all(0 <= row["above"] <= 1 and row["greatest"] >= 1 for row in heads)
    assert all(row["own_drawn"] >= 0 and 0 <= row["cosine_null"] <= 1 for row in heads)
    sinks, other = rows_sinks.measure_delays(model, 0, {})
    assert (sinks["arm"], other["arm"]) == ("sinks", "random")
    assert sinks["looks"] == other["looks"] > 0
    assert all(-1 <= row[name] <= 1 for row in (sinks, other) for name in ("later", "surer"))
    few, many = rows_sinks.added_masks(model, 0, {})
    assert (few["masks"], many["masks"]) == (rows_sinks.FEW, rows_sinks.MANY)
    assert few["mass"] < many["mass"]
    assert few["even"] < many["even"]
