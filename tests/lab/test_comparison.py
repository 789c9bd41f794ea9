"""The comparison of variants by hand: paired differences over seeds, Holm, the page, the figure."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy
import variants_page
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import anchorwatch as aw
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics.stats import paired_t
from anchorwatch.training import variants
from tolerances import STATISTIC

finite = st.floats(-50, 50).map(lambda x: round(x, 2))


def table_of(values, **more):
    """{arm: {quantity: values by seed}} as `make variants` writes it."""
    rows = []
    for arm, held in values.items():
        for seed in range(len(next(iter(held.values())))):
            about = {"arm": arm, "seed": seed, "spec": "0e1", "version": variants.VERSION}
            about |= {"updates": 10, "tokens": 1000}
            rows.append(about | {name: value[seed] for name, value in held.items()} | more)
    return pd.DataFrame(rows)


PLANTED = table_of(
    {
        "vanilla": {"bound.all": [3.0, 3.2, 3.1], "answers.gold": [0.5, 0.7, 0.9]},
        "sink": {"bound.all": [2.9, 3.11, 2.99], "answers.gold": [0.7, 0.6, 0.9]},
        "gate": {"bound.all": [3.0, 3.3, 3.0], "answers.gold": [0.6, 0.7, np.nan]},
    }
)


@given(hnp.arrays(float, st.tuples(st.integers(3, 8), st.just(2)), elements=finite), st.data())
def test_paired_t_is_scipys(a, data):
    b = data.draw(hnp.arrays(float, a.shape, elements=finite))
    found = paired_t(a, b)
    spread = (a - b).std(axis=0) > 1e-6
    with np.errstate(invalid="ignore", divide="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy's, of differences that are all the same
        other = scipy.stats.ttest_rel(a, b, axis=0)
        between = other.confidence_interval(0.95)
    np.testing.assert_allclose(found.value, (a - b).mean(axis=0), atol=STATISTIC)
    for got, expected in ((found.p, other.pvalue), (found.low, between.low)):
        np.testing.assert_allclose(got[spread], expected[spread], rtol=1e-6, atol=STATISTIC)
    middle = (found.low + found.high)[spread] / 2
    np.testing.assert_allclose(middle, found.value[spread], atol=STATISTIC)


def test_paired_t_by_hand():
    """Differences -0.1, -0.09, -0.11: mean -0.1, sd 0.01, se 0.01 / sqrt 3, t(2) quantile 4.3027."""
    found = paired_t([2.9, 3.11, 2.99], [3.0, 3.2, 3.1])
    reach = 4.302652729911275 * 0.01 / 3**0.5
    assert found.value == pytest.approx(-0.1)
    assert (found.low, found.high) == pytest.approx((-0.1 - reach, -0.1 + reach))
    t = 0.1 / (0.01 / 3**0.5)
    assert found.p == pytest.approx(1 - t / (2 + t**2) ** 0.5)  # Student's with two degrees
    assert (int(found.n), found.why) == (3, "")


def test_too_few_seeds_have_a_mean_and_no_interval():
    found = paired_t([1.0, 2.0, np.nan], [0.5, 1.0, 0.0])
    assert (float(found.value), int(found.n)) == (0.75, 2)
    assert np.isnan([found.low, found.high, found.p]).all()
    assert found.why == "2 pairs, 3 needed"
    shaped = paired_t(np.zeros((2, 3, 4)), np.ones((2, 3, 4)))
    assert shaped.why.shape == shaped.value.shape == (3, 4)
    with pytest.raises(SpecError, match="give them alike"):
        paired_t([1.0], [1.0, 2.0])


def test_differences_are_paired_by_seed_and_corrected_over_arms():
    found = variants.differences(PLANTED).set_index(["quantity", "arm"])
    sink, gate = found.loc["bound.all", "sink"], found.loc["bound.all", "gate"]
    assert sink["value"] == pytest.approx(-0.1)
    assert gate["value"] == pytest.approx(0.0, abs=STATISTIC)
    assert sink["base"] == pytest.approx(3.1)
    assert sink["p_holm"] == pytest.approx(min(1.0, 2 * sink["p"]))
    assert gate["p_holm"] == pytest.approx(max(gate["p"], sink["p_holm"]))
    gold = found.loc["answers.gold", "gate"]
    assert (gold["n"], gold["value"]) == (2, pytest.approx(0.05))
    assert gold["base"] == pytest.approx(0.6), "over the same seeds"
    assert np.isnan(gold["low"])


def test_the_order_of_rows_does_not_matter():
    mixed = PLANTED.sample(frac=1.0, random_state=3)
    one = variants.differences(PLANTED).set_index(["quantity", "arm"]).sort_index()
    two = variants.differences(mixed).set_index(["quantity", "arm"]).sort_index()
    pd.testing.assert_frame_equal(one, two)


def test_sentences_say_what_the_numbers_say():
    said = variants_page.write_sentences(variants.differences(PLANTED))
    assert "lower with sink by 0.1" in said[0]
    assert "(vanilla 3.1)" in said[0]
    assert "higher" not in said[0]
    assert "p < 0.05 for sink." in said[0]
    assert "no interval of 1 arms leaves 0 out" in said[1]
    turned = PLANTED.assign(**{"bound.all": -PLANTED["bound.all"]})
    assert (
        "higher with sink by 0.1" in variants_page.write_sentences(variants.differences(turned))[0]
    )


def test_the_page_has_a_cell_for_every_arm():
    text = variants_page.render_page(PLANTED, figure="figures/variants.svg")
    assert "3 arms x 3 training seeds (0, 1, 2)" in text
    assert "n = 2 to 3 paired seeds" in text
    arm, row, *_ = (line for line in text.splitlines() if line.startswith("| sink |"))
    assert arm == '| sink | `variant=["sink_token"]` |'
    assert row == "| sink | −0.1* [−0.125, −0.0752] |"
    assert "| gate | +0.05 (n = 2) |" in text
    assert "](figures/variants.svg)" in text
    assert "nan" not in text


def test_gains_of_whole_rows_are_in_the_page():
    """A gain of 2.4 nats in every row: a tenth of a nat per token of 24, and less of longer ones."""
    lengths = {"quarter": 24, "half": 48, "trained": 96, "longest": 256}
    base = np.array([3.4, 3.5, 3.6])
    held = {"vanilla": {}, "sink": {}}
    for name, count in lengths.items():
        held["vanilla"][f"length.{name}"] = base
        held["sink"][f"length.{name}"] = base - np.array([2.3, 2.4, 2.5]) / count
        for columns in held.values():
            columns[f"length.{name}.length"] = np.full(3, count)
    text = variants_page.render_page(table_of(held))
    section = text.partition("## Held-out text, nats per row")[2]
    (row,) = (line for line in section.splitlines() if line.startswith("| sink |"))
    assert row == "| sink |" + " −2.4* [−2.65, −2.15] |" * 4


def test_positions_are_told_apart_in_the_page():
    parts = {"bound.from.0.part": 0.04, "bound.from.4.part": 0.01, "bound.from.16.part": 0.0}
    held = {"vanilla": {"bound.all": [3.0, 3.2, 3.1]}, "sink": {"bound.all": [2.95, 3.15, 3.05]}}
    for name, gain in parts.items():
        for arm, columns in held.items():
            values = np.array([1.0, 1.1, 1.2]) - gain * (arm == "sink")
            columns[name] = columns[name.removesuffix(".part")] = values
    for arm, columns in held.items():
        columns["sink_over_even.t.0.5"] = np.full(3, 1.5 if arm == "sink" else np.nan)
    text = variants_page.render_positions(table_of(held, rows="whole"))
    (row,) = (line for line in text.splitlines() if line.startswith("| sink |"))
    assert "| 80% |" in row
    assert "### Whole rows" in text
    one = variants_page.render_positions(table_of(held, rows="whole").query("seed == 0"))
    assert "−0.05 (n = 1)" in one


def test_the_figure_shows_seeds_and_intervals(tmp_path):
    figure = aw.lab.variant_differences(PLANTED)
    assert len(figure.axes) == 2
    dots = figure.axes[0].lines[2]
    assert sorted(np.round(dots.get_xdata(), 9)) == sorted(
        np.round([-0.1, -0.09, -0.11, 0.0, 0.1, -0.1], 9)
    )
    bar = figure.axes[0].lines[0].get_xdata()
    assert bar == pytest.approx([-0.1248413, -0.0751587], abs=1e-6)
    figure.save(tmp_path / "v.svg")
    assert figure.whence["settings"]["seeds"] == [0, 1, 2]
    with pytest.raises(TraceError, match="name its columns"):
        aw.lab.variant_differences(PLANTED, ["nothing"])


def test_a_table_is_read_as_it_was_written(tmp_path):
    PLANTED.to_csv(tmp_path / "v.csv", index=False)
    pd.testing.assert_frame_equal(variants.variants(tmp_path / "v.csv"), PLANTED, check_dtype=False)
    with pytest.raises(TraceError, match="`make variants`"):
        variants.variants(tmp_path / "none.csv")
    PLANTED.assign(version=99).to_csv(tmp_path / "old.csv", index=False)
    with pytest.raises(TraceError, match=r"version 99 and this package reads \d+: make it again"):
        variants.variants(tmp_path / "old.csv")
    PLANTED.drop(columns="seed").to_csv(tmp_path / "bare.csv", index=False)
    with pytest.raises(TraceError, match="no column seed"):
        variants.variants(tmp_path / "bare.csv")
    with pytest.raises(TraceError, match="no arm 'plain': it has vanilla, sink, gate"):
        variants.differences(PLANTED, base="plain")


def test_a_table_by_position_is_read_as_it_was_written(tmp_path):
    table = PLANTED.assign(rows="whole")
    table.to_csv(tmp_path / "p.csv", index=False)
    found = variants.by_position(tmp_path / "p.csv")
    pd.testing.assert_frame_equal(found, table, check_dtype=False)
    PLANTED.to_csv(tmp_path / "bare.csv", index=False)
    with pytest.raises(TraceError, match=r"no column rows: .* `make variants-by-position`"):
        variants.by_position(tmp_path / "bare.csv")
    with pytest.raises(TraceError, match="make it with `make variants-by-position`"):
        variants.by_position(tmp_path / "none.csv")


def test_the_arms_that_were_promised():
    sinks = {"sink", "sink-2", "sink-4", "sink-end", "sink-zero"}
    others = {"vanilla", "register", "off-by-one", "sink-logit", "gate", "gate-headwise"}
    assert sinks | others <= set(variants.VARIANTS)
