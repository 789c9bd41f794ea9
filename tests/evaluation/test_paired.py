"""Arms on the same items: a table against plain counting, from question sets and from lm-eval."""

import numpy as np
import pandas as pd
import pytest

import anchorwatch as aw
import harness_tasks
from anchorwatch.errors import SpecError
from anchorwatch.evaluation.paired import as_grid, compare_arms, result_rows


def rows(values, **more):
    """{arm: value of each item}"""
    lines = [
        {"model": "m", "task": "t", "metric": "acc", "arm": arm, "item": str(item), "value": value}
        for arm, listed in values.items()
        for item, value in enumerate(listed)
    ]
    return pd.DataFrame(lines).assign(**more)


def test_accuracy_and_paired_difference_are_what_counting_says():
    table = compare_arms(rows({"none": [1, 1, 1, 0, 1, 0], "1 sink": [1, 0, 0, 0, 1, 1]}), "none")
    base, hidden = table.to_dict("records")
    assert base["value"] == pytest.approx(4 / 6) and np.isnan(base["difference"])
    assert hidden["value"] == pytest.approx(0.5)
    assert hidden["difference"] == pytest.approx(-1 / 6)
    assert hidden["p"] == pytest.approx(1.0)  # two against one of three that differ
    assert hidden["difference_low"] < hidden["difference"] < hidden["difference_high"]
    test = aw.stats.mcnemar(1, 2, both=2, neither=1)
    assert (hidden["difference_low"], hidden["difference_high"]) == (test.low, test.high)


def test_an_item_that_one_arm_lacks_is_in_neither():
    table = compare_arms(rows({"none": [1, 0, 1], "edit": [1, np.nan, 0]}), "none")
    hidden = table[table["arm"] == "edit"].iloc[0]
    assert (hidden["n"], hidden["missing"]) == (2, 1) and hidden["difference"] == -0.5


def test_scores_that_are_no_right_or_wrong_are_bootstrapped():
    values = {"none": [0.2, 0.4, 0.6, 0.8, 0.5], "edit": [0.1, 0.3, 0.5, 0.7, 0.4]}
    table = compare_arms(rows(values), "none")
    hidden = table[table["arm"] == "edit"].iloc[0]
    assert hidden["difference"] == pytest.approx(-0.1) and np.isnan(hidden["p"])
    assert np.isnan(table["p_holm"]).all()


def test_the_grid_has_a_row_for_each_arm_and_a_column_for_each_task():
    both = pd.concat(
        [rows({"none": [1] * 8, "5 sinks": [0] * 8}), rows({"none": [1], "5 sinks": [1]}, task="u")]
    )
    grid = as_grid(compare_arms(both, "none"))
    assert list(grid.columns) == ["model", "arm", "t, acc", "u, acc"]
    assert grid.iloc[0].tolist() == ["m", "none", "100.0", "100.0"]
    assert grid.iloc[1].tolist() == ["m", "5 sinks", "0.0 (-100.0*)", "100.0 (+0.0)"]


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(SpecError, match="no arm is called 'clean': the rows have none"):
        compare_arms(rows({"none": [1]}), "clean")
    with pytest.raises(SpecError, match="the rows have no column item"):
        compare_arms(rows({"none": [1]}).drop(columns="item"), "none")


def test_rows_of_an_evaluation_are_its_scores():
    results = aw.evaluation.evaluate(
        ["tiny/llada"],
        "synthetic/one-hop",
        contexts="gold",
        limit=3,
        decoding=aw.decoding.LowConfidence(4),
        edits={"none": [], "hidden": [aw.edits.hide_sinks(1)]},
    )
    found = result_rows(results, ["containment"])
    assert len(found) == 6 and set(found["arm"]) == {"none", "hidden"}
    merged = found.merge(results.rows, left_on=["item", "arm"], right_on=["item", "edit"])
    assert (merged["value"] == merged["containment"]).all()


def test_rows_of_the_harness_are_its_samples(tmp_path, monkeypatch):
    from anchorwatch.evaluation.lm_eval import Harness, harness_rows

    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    folder = harness_tasks.write(tmp_path)
    parts = []
    for arm, edits in (("none", ()), ("1 sinks", (aw.edits.hide_sinks(1),))):
        lm = Harness("tiny/llada", edits=edits, decoding="low-confidence:steps=2")
        found = harness_rows(lm, ["aw_write"], folder=str(folder), limit=3)
        parts.append(found.assign(model="tiny/llada", arm=arm))
    whole = pd.concat(parts, ignore_index=True)
    assert set(whole["task"]) == {"aw_write"} and set(whole["item"]) == {"0", "1", "2"}
    table = compare_arms(whole, "none")
    assert set(table["metric"]) == {"exact_match"} and (table["n"] == 3).all()
