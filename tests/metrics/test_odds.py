"""Odds over prompts: pooled, never a mean of ratios that halves have made."""

import math

import numpy as np
import pytest

from anchorwatch.metrics.table import TOO_FEW, odds_of, odds_table, total
from synthetic_traces import planted, uniform


def parts(tables):
    """One trace for each 2 x 2 table of counts, every one its own prompt."""
    made = []
    for number, counts in enumerate(tables):
        trace = planted(
            uniform(1, 1, 1, 6), prompt=5, tokens=range(10 * number + 1, 10 * number + 7)
        )
        found = [total(f"c{i}", ("step",), np.array([count])) for i, count in enumerate(counts)]
        made.append((trace, found))
    return made


def test_what_is_missing_is_added_up_over_seeds():
    made = parts([(3, 5, 7, 90)]) + parts([(3, 5, 7, 90)])  # one prompt twice
    lost = iter([3.0, 1.0])

    def cross(cells):
        counts, nulls, _ = crossed(cells)
        return counts, nulls, np.asarray(next(lost))

    assert odds_table(made, (), cross).missing.tolist() == [4, 4]


def crossed(cells):
    counts = np.stack([cells[f"c{i}"].value for i in range(4)])
    return counts, np.ones_like(counts), np.zeros(counts.shape[1:])


def rows(tables):
    return {row.quantity: row for row in odds_table(parts(tables), (), crossed).itertuples()}


def test_counts_of_prompts_are_added_up_before_they_are_divided():
    tables = [
        (3, 5, 7, 90),
        (1, 9, 2, 80),
        (4, 2, 3, 70),
        (2, 2, 8, 60),
        (5, 1, 4, 50),
        (1, 1, 1, 9),
    ]
    found = rows(tables)["odds_ratio"]
    a, b, c, d = np.sum(tables, axis=0)
    assert found.value == pytest.approx(a * d / (b * c))
    assert found.null == 1 and found.n == 6 and found.interval == ""
    assert found.low < found.value < found.high
    logs = rows(tables)["log_odds_ratio"]
    assert logs.value == pytest.approx(math.log(found.value))
    assert logs.high == pytest.approx(math.log(found.high))


def test_nothing_seen_where_nothing_was_expected_is_no_effect():
    found = rows([(0, 3, 5, 800)] * 6)["odds_ratio"]  # each alone would be 16, tightly
    assert math.isnan(found.value) and math.isnan(found.low)
    assert found.interval == TOO_FEW and found.n == 6
    seen = rows([(0, 30, 50, 80)] * 6)["odds_ratio"]  # many expected, none seen
    assert seen.value == pytest.approx(0.5 * 480.5 / (180.5 * 300.5))


def test_prompts_that_say_nothing_about_odds_are_left_out_of_n():
    found = rows([(3, 5, 7, 90), (0, 0, 9, 90), (2, 0, 0, 0)])["odds_ratio"]
    assert found.n == 1 and found.value == pytest.approx(3 * 90 / 35)
    assert found.interval == "1 prompt, 5 needed"
    assert odds_of(np.array([1.0, 0, 1, 1])) == pytest.approx(1.5 * 1.5 / (0.5 * 1.5))
