"""Figures of region flow and rollout: marks, limits, labels, and where they come from."""

import warnings

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import PathPatch

from anchorwatch import figures
from anchorwatch.errors import AnchorwatchWarning, SpecError
from anchorwatch.metrics import flow
from anchorwatch.metrics import rollouts as rollout
from anchorwatch.trace.trace import ABSENT
from references import flow as slow
from synthetic_traces import planted, random_maps

REGIONS = {"bos": range(1), "doc1": range(1, 6), "gold": range(6, 9), "answer": range(9, 12)}
PAIR = ("query_region", "key_region")


def made(number, *, causal):
    maps = random_maps(np.random.default_rng(number), (2, 3, 2, 12), causal=causal)
    options = {
        "prompt": 9,
        "regions": REGIONS,
        "visibility": "causal" if causal else "bidirectional",
        "source": "arm" if causal else "mdm",
        "tokens": range(100 * number + 1, 100 * number + 13),
    }
    bare = planted(maps, **options)
    of = bare["region"].values
    field = np.full((2, 3, 2, 4, 4), np.nan, dtype=np.float32)
    rolled = np.full((2, 3, 4, 4), np.nan, dtype=np.float32)
    for step in range(2):
        there = int((bare.role[step] != ABSENT).sum())
        inside = maps[step, :, :, :there, :there]
        for layer, state in enumerate(slow.rollouts(inside)):
            rolled[step, layer] = slow.flow(state, of, 4)
            for head in range(2):
                field[step, layer, head] = slow.flow(inside[layer, head], of, 4)
    more = {
        "region_flow": (("step", "layer", "head", *PAIR), field),
        "region_rollout": (("step", "layer", *PAIR), rolled),
    }
    return planted(maps, more=more, **options)


@pytest.fixture(scope="module")
def traces():
    """Six prompts of one model, and one of a causal one."""
    return [*(made(number, causal=False) for number in range(6)), made(9, causal=True)]


def quiet(metric, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AnchorwatchWarning)
        return metric(*args, **options)


def legend(figure):
    return [text.get_text() for text in figure.drawn.legends[0].get_texts()]


def test_a_matrix_shows_the_value_and_its_distance_from_the_null(traces):
    table = flow.region_flow(traces, by=PAIR)
    figure = figures.flow_matrix(table)
    left, right = figure.axes[2:4]
    rows = table[(table.model == "mdm") & (table.quantity == "flow")]
    cells = np.asarray(left.collections[0].get_array()).ravel()
    np.testing.assert_allclose(cells, rows.value)
    gaps = np.asarray(right.collections[0].get_array()).ravel()
    np.testing.assert_allclose(gaps, rows.value - rows.null)
    assert left.get_title(loc="left") == "mdm" and figure.axes[0].get_title(loc="left") == "arm"
    assert [text.get_text() for text in left.get_xticklabels()] == list(REGIONS)
    assert left.get_xlabel() == "looked at" and left.get_ylabel() == "queries of"
    assert left.collections[0].get_clim() == (0, table[table.quantity == "flow"].value.max())
    low, high = right.collections[0].get_clim()
    assert low == -high >= -1
    written = [text.get_text() for text in left.texts]
    assert written[0] == f"{rows.value.iloc[0]:.2f}".removeprefix("0") and len(written) == 16
    assert {bar.get_ylabel() for bar in figure.axes[4:]} == {"flow", "flow minus its null"}
    assert figure.whence["settings"] == {
        "metric": "region_flow",
        "regions": list(REGIONS),
        "quantity": "flow",
    }
    assert len(figure.whence["traces"]) == 7
    other = figures.flow_matrix(table, quantity="length_normalised")
    assert set(other.data.quantity) == {"length_normalised"}


def test_a_matrix_of_rounding_is_pale_and_an_absent_row_hatched():
    rows = [("a", "a", 0.5, 0.5 + 1e-9), ("a", "b", 0.5, 0.5), ("b", "a", np.nan, 0.5)]
    table = pd.DataFrame(rows, columns=[*PAIR, "value", "null"])
    figure = figures.flow_matrix(table.assign(model="m", quantity="flow"))
    assert figure.axes[1].collections[0].get_clim() == (-0.01, 0.01)
    assert legend(figure) == ["absent"]
    assert [text.get_text() for text in figure.axes[0].texts] == [".50", ".50"]


def test_bands_are_as_wide_as_the_flow(traces):
    table = flow.region_flow(traces, by=PAIR)
    figure = figures.flow_bands(table)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["arm", "mdm"]
    rows = table[(table.model == "mdm") & (table.quantity == "flow")]
    ribbons = [patch for patch in figure.axes[1].patches if isinstance(patch, PathPatch)]
    widths = [
        ribbon.get_path().vertices[4][1] - ribbon.get_path().vertices[3][1] for ribbon in ribbons
    ]
    np.testing.assert_allclose(widths, rows.value / rows.value.sum())
    texts = [text.get_text() for text in figure.axes[1].texts]
    assert texts[-2:] == ["queries of", "look at"] and texts[0] == "bos  25%"


def test_gold_lift_has_a_line_for_each_model_with_band_and_a_null_of_one(traces):
    table = flow.gold_lift(traces)
    figure = figures.gold_lift(table)
    (ax,) = figure.axes
    assert legend(figure) == ["arm", "mdm", "null", "no interval: 1 item"]
    mdm = next(line for line in ax.get_lines() if line.get_label() == "mdm")
    np.testing.assert_allclose(mdm.get_ydata(), table[table.model == "mdm"].value)
    null = next(line for line in ax.get_lines() if line.get_label() == "null")
    np.testing.assert_allclose(null.get_ydata(), 1)
    assert ax.get_ylim()[0] == 0 and ax.get_ylabel() == "gold / distractor, per token"


def test_gold_lift_by_place_has_a_panel_a_model_and_the_places_in_order(traces):
    table = flow.gold_lift(traces, by=("progress", "gold_at"))
    parts = [table.assign(gold_at=place) for place in ("end", "start", "middle")]
    figure = figures.gold_lift(pd.concat(parts), x="progress")
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["arm", "mdm"]
    assert legend(figure)[:3] == ["start", "middle", "end"]
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_rollout_by_depth_draws_one_row_its_nulls_and_the_dobrushin_coefficient(traces):
    table = quiet(rollout.rollout, traces)
    figure = figures.rollout_depth(table)
    _, shares, _, spread = figure.axes
    rows = table[(table.model == "mdm") & (table.query_region == "answer")]
    lines = {line.get_label(): line for line in shares.get_lines() if line.get_label() != "null"}
    assert list(lines) == list(REGIONS)
    for region, line in lines.items():
        np.testing.assert_allclose(line.get_ydata(), rows[rows.key_region == region].value)
    nulls = [line for line in shares.get_lines() if line.get_label() == "null"]
    assert len(nulls) == 4 and nulls[0].get_color() == lines["bos"].get_color()
    np.testing.assert_allclose(
        spread.get_lines()[0].get_ydata(), rows.drop_duplicates("layer").dobrushin
    )
    assert spread.get_ylabel() == "Dobrushin coefficient" and spread.get_ylim() == (0, 1)
    assert shares.get_ylabel() == "answer's rollout" and shares.get_ylim() == (0, 1)
    assert legend(figure) == [
        *REGIONS,
        "null",
        "no interval: 1 prompt",
        "below 0.05: rows have collapsed",
    ]
    some = figures.rollout_depth(table, query="doc1", regions=["gold", "bos"])
    assert legend(some)[:2] == ["gold", "bos"]
    assert set(some.data.query_region) == {"doc1"}


def test_columns_stand_beside_their_nulls(traces):
    table = quiet(rollout.published_rollout, traces, by=PAIR)
    figure = figures.rollout_columns(table)
    (ax,) = figure.axes
    arm, mdm = (
        table[(table.model == m) & (table.query_region == "answer")] for m in ("arm", "mdm")
    )
    heights = [bar.get_height() for bar in ax.patches]
    np.testing.assert_allclose(heights, [*arm.value, *mdm.value])
    segments = [one for marks in ax.collections for one in marks.get_segments() if len(one)]
    ends = [start[1] for start, end in segments if start[1] == end[1]]
    np.testing.assert_allclose(sorted(ends), sorted([*arm.null, *mdm.null]))
    assert [text.get_text() for text in ax.get_xticklabels()] == list(REGIONS)
    said = [f"{one.model.iloc[0]}: {one.dobrushin.iloc[0]:.2f}" for one in (arm, mdm)]
    title = "\n".join(f"Dobrushin coefficient of {one}" for one in said)
    assert ax.get_title(loc="left") == title


def test_a_figure_of_permuted_rows_is_the_figure(traces, tmp_path):
    table = quiet(rollout.rollout, traces)
    shuffled = table.sort_values("value", kind="stable")
    one, other = (figures.rollout_depth(t) for t in (table, shuffled))
    for ax, same in zip(one.axes, other.axes, strict=True):
        for line, twin in zip(ax.get_lines(), same.get_lines(), strict=True):
            np.testing.assert_array_equal(line.get_ydata(), twin.get_ydata())
    saved = one.save(tmp_path / "depth.svg")
    assert figures.whence(saved)["settings"]["query"] == "answer"


def test_errors_say_what_would_have_worked(traces):
    table = flow.region_flow(traces)
    with pytest.raises(
        SpecError, match=r"several values for one pair .* by=\('query_region', 'key_region'\)"
    ):
        figures.flow_matrix(table)
    whole = flow.region_flow(traces, by=PAIR)
    with pytest.raises(SpecError, match="no quantity 'mass': it has flow, length_normalised"):
        figures.flow_matrix(whole, quantity="mass")
    with pytest.raises(SpecError, match="no column dobrushin"):
        figures.rollout_depth(table)
    rolled = quiet(rollout.rollout, traces)
    with pytest.raises(SpecError, match="no query region 'title': it has bos, doc1, gold, answer"):
        figures.rollout_depth(rolled, query="title")
    with pytest.raises(SpecError, match="no key region 'title': it has bos, doc1, gold, answer"):
        figures.rollout_depth(rolled, regions=["title"])
    many = pd.concat([rolled.assign(key_region=rolled.key_region + str(i)) for i in range(2)])
    with pytest.raises(
        SpecError, match=r"8 lines cannot be told apart: choose up to 7 key regions, regions="
    ):
        figures.rollout_depth(many)
