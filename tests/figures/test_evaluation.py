"""Figures of an evaluation: what is drawn is what the tables say."""

import json

import numpy as np
import pandas as pd
import pytest

from anchorwatch.errors import SpecError
from anchorwatch.figures import evaluation as figures
from anchorwatch.figures import whence

ABOUT = {"about": {"table": "curve", "score": "containment"}, "traces": [{"digest": "d"}]}


def table(rows, **columns):
    made = pd.DataFrame(rows)
    for name, value in columns.items():
        made[name] = value
    made["null"], made["low"], made["high"], made["n"] = (
        0.1,
        made["value"] - 0.1,
        made["value"] + 0.1,
        40,
    )
    made.attrs = ABOUT
    return made


def rows(column, values, **more):
    return [
        {"model": model, "edit": "none", "quantity": "containment", column: value, "context": f"{column}{value}",
         "value": 0.2 + 0.1 * at + 0.3 * (model == "mdm")} | more
        for model in ("mdm", "arm")
        for at, value in enumerate(values)
    ]  # fmt: skip


def names_of(figure):
    return [text.get_text() for text in figure.drawn.legends[0].get_texts()]


def test_a_line_for_each_model_over_the_place():
    figure = figures.position_curve(table(rows("place", [1, 3, 5], total=5, kind="random")))
    (ax,) = figure.axes
    drawn = {line.get_label(): line for line in ax.get_lines()}
    np.testing.assert_allclose(drawn["mdm"].get_xdata(), [1, 3, 5])
    np.testing.assert_allclose(drawn["mdm"].get_ydata(), [0.5, 0.6, 0.7])
    np.testing.assert_allclose(drawn["null"].get_ydata(), [0.1] * 3)
    assert ax.get_xlabel() == "place of the gold passage" and ax.get_ylim() == (0, 1)
    assert names_of(figure) == ["arm", "mdm", "null"]
    assert figure.whence["traces"] == [{"digest": "d"}]


def test_noise_is_drawn_by_doublings():
    made = [*rows("distractors", [0, 1, 3], kind="random"), *rows("distractors", [3], kind="hard")]
    figure = figures.noise_curve(table(made))
    random, hard = figure.axes
    drawn = {line.get_label(): line for line in random.get_lines()}
    np.testing.assert_allclose(drawn["arm"].get_xdata(), [0, 1, 2])
    assert [text.get_text() for text in random.get_xticklabels()] == ["0", "1", "3"]
    assert hard.get_title(loc="left") == "hard distractors"
    assert len(hard.get_lines()[0].get_xdata()) == 2, "none and three"
    with pytest.raises(SpecError, match=r"ask for contexts such as gold\+1"):
        figures.noise_curve(table(rows("distractors", [0], kind="random")))


def test_a_guesser_is_a_line_where_it_is_known():
    made = table(rows("place", [1, 3, 5], total=5, kind="random"))
    (ax,) = figures.position_curve(made.assign(guesser=np.nan)).axes
    assert len(ax.get_lines()) == 3
    figure = figures.position_curve(made.assign(guesser=[0.4, 0.3, 0.2] * 2))
    line = figure.axes[0].get_lines()[-1]
    np.testing.assert_allclose(line.get_xydata(), [[1, 0.4], [3, 0.3], [5, 0.2]])
    assert names_of(figure) == ["arm", "mdm", "null", "guesser"]
    shown = table(rows("shown", ["adjacent+2", "far+2"])).assign(guesser=[0.4, 0.2] * 2)
    figure = figures.layout_bars(shown)
    heights = [line[0, 1] for line in figure.axes[0].collections[-1].get_segments()]
    assert heights == [0.4, 0.2] and names_of(figure)[-1] == "guesser"


def test_masks_and_shares():
    assert (
        figures.mask_curve(table(rows("masks", [0, 16, 48]))).axes[0].get_xlabel()
        == "masks after the answer"
    )
    figure = figures.irrelevant_curve(table(rows("share", [0.2, 0.8])))
    np.testing.assert_allclose(figure.axes[0].get_lines()[0].get_xdata(), [0.2, 0.8])


@pytest.mark.parametrize("draw", [figures.layout_bars, figures.wording_bars])
def test_bars_of_contexts(draw):
    figure = draw(table(rows("shown", ["adjacent+2", "far+2"])))
    heights = sorted(round(patch.get_height(), 6) for patch in figure.axes[0].patches)
    assert heights == [0.2, 0.3, 0.5, 0.6]


def test_accuracy_and_gains_keep_the_order_of_contexts():
    made = table(rows("shown", list("zyxwvu")))
    figure = figures.accuracy_bars(made)
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == [
        f"shown{one}" for one in "zyxwvu"
    ]
    gains = table(rows("shown", ["gold"])).assign(quantity="gain")
    assert figures.gain_bars(gains).axes[0].get_ylabel() == "gain over the closed book"
    with pytest.raises(SpecError, match="no quantity 'luck': it has containment"):
        figures.accuracy_bars(made, quantity="luck")
    with pytest.raises(SpecError, match="24 contexts are too many bars: show 20 or fewer"):
        figures.accuracy_bars(table(rows("shown", list("abcdefghijklmnopqrstuvwx"))))


def test_edits_are_told_apart():
    made = table(
        rows("masks", [0, 16]) + [one | {"edit": "sinks"} for one in rows("masks", [0, 16])]
    )
    assert names_of(figures.mask_curve(made))[:4] == [
        "arm, none", "arm, sinks", "mdm, none", "mdm, sinks",
    ]  # fmt: skip
    with pytest.raises(SpecError, match="a curve is of one score: the table has containment, f1"):
        figures.mask_curve(pd.concat([made, made.assign(quantity="f1")]))


def test_effects_with_intervals_and_nulls(tmp_path):
    made = table(
        [{"model": "mdm", "edit": "none", "test": "gain", "effect": "gain of gold", "value": 0.4},
         {"model": "mdm", "edit": "none", "test": "position", "effect": "U-index of 5", "value": 0.1}]
    )  # fmt: skip
    made.loc[1, ["low", "high"]] = np.nan
    figure = figures.effect_intervals(made)
    (ax,) = figure.axes
    assert [text.get_text() for text in ax.get_yticklabels()] == ["gain of gold", "U-index of 5"]
    np.testing.assert_allclose(ax.get_lines()[0].get_xdata(), [0.3, 0.5])
    assert names_of(figure) == ["mdm", "null", "no interval: 40 items"]
    figure.save(tmp_path / "e.svg")
    assert json.loads(json.dumps(whence(tmp_path / "e.svg")))["figure"] == "effect_intervals"
    pair = made.rename(columns={"model": "mdm"}).assign(arm="arm")
    assert names_of(figures.effect_intervals(pair, test="gain"))[0] == "mdm minus arm"
    with pytest.raises(SpecError, match="no effect belongs to 'noise': gain, position"):
        figures.effect_intervals(made, test="noise")
