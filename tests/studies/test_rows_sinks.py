"""Rows that claims about sinks rest on, against what was planted and against slower ways."""

import numpy as np
import pytest

import tolerances
from anchorwatch.models.loading import load
from anchorwatch.studies import rows_sinks
from anchorwatch.studies.rows import ROWS
from planted import column


def test_a_column_stands_out_of_shuffled_rows_and_shuffled_rows_do_not():
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.full(20, 0.2), size=(400, 20))
    assert rows_sinks.stands_out(column(20, 3, 0.9)[None], rng)["above"] == 1
    by_chance = rows_sinks.stands_out(rows, rng)
    expected = 1 / (rows_sinks.SHUFFLES + 1)
    error = (expected * (1 - expected) / len(rows)) ** 0.5
    assert abs(by_chance["above"] - expected) < tolerances.BINOMIAL_ERRORS * error
    assert by_chance["greatest"] == pytest.approx(by_chance["shuffled"], rel=0.1)


def test_a_correlation_is_pearsons_and_absent_without_variation():
    one, other = np.random.default_rng(1).normal(size=(2, 30))
    found = rows_sinks.correlation(one, other)
    assert found == pytest.approx(np.corrcoef(one, other)[0, 1], rel=tolerances.STATISTIC)
    assert np.isnan(rows_sinks.correlation(one, np.ones(30)))


def test_every_table_is_known_and_is_made_of_a_model():
    model = load("tiny/llada")
    assert rows_sinks.ROWS.items() <= ROWS.items()
    heads = rows_sinks.maps(model, 0, {})
    assert len(heads) == model.num_layers * model.num_heads
    assert all(0 <= row["above"] <= 1 and row["greatest"] >= 1 for row in heads)
    arms = {row["arm"]: row for row in rows_sinks.postponed(model, 0, {})}
    assert arms["sinks"]["looks"] > arms["random"]["looks"]
    few, many = rows_sinks.added_masks(model, 0, {})
    assert (few["masks"], many["masks"]) == (rows_sinks.FEW, rows_sinks.MANY)
    assert few["mass"] < many["mass"]
    assert few["even"] < many["even"]
