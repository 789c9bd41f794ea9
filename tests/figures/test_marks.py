"""The marks that figures share: rows in, marks out."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm, to_hex, to_rgb

import tolerances
from anchorwatch.errors import SpecError
from anchorwatch.figures import marks, style
from anchorwatch.figures.figure import Figure

NAN = np.nan


@pytest.fixture
def drawing():
    with style.look():
        drawn, (ax,) = style.sheet(style.COLUMN, 2)
        yield drawn, ax


@pytest.fixture
def ax(drawing):
    return drawing[1]


@pytest.fixture
def table():
    return pd.DataFrame(
        {
            "layer": [0, 1, 2, 3] * 2,
            "model": ["LLaDA"] * 4 + ["Dream"] * 4,
            "value": [0.1, 0.2, 0.3, 0.4, 0.2, 0.3, NAN, 0.5],
            "null": [0.05] * 8,
            "low": [0.05, 0.1, NAN, 0.3, 0.1, 0.2, NAN, 0.4],
            "high": [0.15, 0.3, NAN, 0.5, 0.3, 0.4, NAN, 0.6],
            "n": [9, 9, 1, 9, 9, 9, 0, 9],
        }
    )


def names(entries):
    return [entry.get_label() for entry in entries]


def test_heat_has_its_limits_and_its_unit(drawing):
    drawn, ax = drawing
    mesh = marks.heat(ax, np.arange(6.0).reshape(2, 3), limits=(1, 4), unit="share")
    assert isinstance(mesh, QuadMesh)
    assert mesh.get_clim() == (1, 4) and mesh.get_cmap().name == style.MAGNITUDE
    assert ax.get_xlim() == (-0.5, 2.5) and ax.get_ylim() == (1.5, -0.5)
    bar = drawn.axes[1]
    assert bar.get_ylabel() == "share"
    assert mesh.colorbar.extend == "both", "0 is under the limits and 5 is over them"


def test_heat_without_a_unit_has_no_bar(drawing):
    drawn, ax = drawing
    marks.heat(ax, np.eye(2), limits=(0, 1), unit=None)
    assert drawn.axes == [ax]


def test_absent_cells_are_hatched(ax):
    mesh = marks.heat(ax, np.array([[0.0, NAN]]), limits=(0, 1), unit="share")
    assert np.ma.getmaskarray(mesh.get_array()).ravel().tolist() == [False, True]
    assert ax.patch.get_hatch() == style.ABSENT_HATCH
    assert to_hex(ax.patch.get_facecolor()) == style.ABSENT_FACE


def test_large_maps_are_pixels_and_small_ones_vector(ax):
    assert not marks.heat(ax, np.eye(8), limits=(0, 1), unit=None).get_rasterized()
    assert marks.heat(ax, np.eye(200), limits=(0, 1), unit=None).get_rasterized()


def test_a_log_scale_has_plain_numbers(drawing):
    drawn, ax = drawing
    mesh = marks.heat(ax, np.array([[0.01, 1.0]]), limits=(0.01, 1), unit="share", log=True)
    assert isinstance(mesh.norm, LogNorm)
    drawn.draw_without_rendering()
    assert {"0.01", "0.1", "1"} <= {text.get_text() for text in drawn.axes[1].get_yticklabels()}


@pytest.mark.parametrize(
    ("matrix", "options", "message"),
    [
        (np.eye(2), {"limits": (1, 1)}, "expected two numbers, the smaller first"),
        (np.eye(2), {"limits": (0, NAN)}, "expected two numbers, the smaller first"),
        (np.eye(2), {"limits": (0, 1), "log": True}, "a log scale begins above it"),
        (np.eye(2), {"limits": (0, 1), "kind": "difference"}, r"a difference is even, \(-x, x\)"),
        (np.eye(2), {"limits": (0, 1), "kind": "odd"}, "expected 'magnitude' or 'difference'"),
        (np.ones(3), {"limits": (0, 1)}, r"needs a matrix \[row, column\], not shape \(3,\)"),
        (np.ones((0, 3)), {"limits": (0, 1)}, r"not shape \(0, 3\)"),
    ],
)
def test_heat_says_what_it_needs(ax, matrix, options, message):
    with pytest.raises(SpecError, match=message):
        marks.heat(ax, matrix, unit="share", **options)


def test_limits_are_of_what_is_there():
    assert marks.limits_of(np.array([0.2, NAN, 0.5])) == (0, 0.5)
    assert marks.limits_of(np.array([NAN])) == marks.limits_of(np.zeros(2)) == (0, 1)
    assert marks.even_limits_of(np.array([-3.0, 2.0])) == (-3, 3)


def test_hatches_are_seen_on_any_colour(ax):
    mesh = marks.heat(ax, np.array([[0.0, 1.0, 0.5]]), limits=(0, 1), unit=None)
    assert marks.hatch_cells(ax, np.array([[True, True, False]]), mesh) == 2
    inks = [to_hex(c.get_edgecolor()[0]) for c in ax.collections if c is not mesh]
    assert sorted(inks) == ["#000000", "#ffffff"]
    assert marks.hatch_cells(ax, np.zeros((1, 3), bool), mesh) == 0


def test_a_grid_puts_rows_in_their_place(ax):
    rows = [(0, 1, 0.1), (1, 0, 0.2), (1, 1, 0.3)]
    held = pd.DataFrame(rows, columns=["layer", "head", "value"])
    mesh = marks.grid(ax, held.sample(frac=1, random_state=0), limits=(0, 1), unit="score")
    drawn = np.ma.filled(mesh.get_array().reshape(2, 2), NAN)
    np.testing.assert_array_equal(drawn, [[NAN, 0.1], [0.2, 0.3]])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("head", "layer")


def test_tables_that_do_not_fit_are_refused(ax, table):
    with pytest.raises(SpecError, match="several values for one layer and head: take a mean by"):
        marks.grid(ax, table.assign(head=0), limits=(0, 1), unit="score")
    with pytest.raises(SpecError, match="no column head: its columns are layer, model, value"):
        marks.grid(ax, table, limits=(0, 1), unit="score")
    with pytest.raises(SpecError, match="the table has no rows"):
        marks.lines(ax, table.iloc[:0], x="layer", unit="share")
    for mark in (marks.lines, marks.bars):
        with pytest.raises(SpecError, match="several values for one layer: take a mean by layer"):
            mark(ax, table, x="layer", unit="share")
        with pytest.raises(SpecError, match="no column depth: its columns are"):
            mark(ax, table, x="depth", unit="share")


def test_lines_have_values_band_null_and_a_word_on_missing_intervals(ax, table):
    entries = marks.lines(ax, table, x="layer", unit="share", colour_by="model")
    dream, llada, null = ax.get_lines()
    assert names(entries) == ["Dream", "LLaDA", "null", "no interval: 1 prompt"]
    np.testing.assert_array_equal(llada.get_ydata(), [0.1, 0.2, 0.3, 0.4])
    np.testing.assert_array_equal(dream.get_ydata(), [0.2, 0.3, NAN, 0.5])
    assert null.get_linestyle() == "--" and null.get_color() == style.NULL
    np.testing.assert_array_equal(null.get_ydata(), [0.05] * 4)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("layer", "share")
    assert llada.get_color() != dream.get_color() and llada.get_marker() != dream.get_marker()


def test_a_band_is_not_drawn_where_there_is_no_interval(ax):
    x, low = np.arange(5.0), np.array([0, 0, NAN, 0, NAN])
    marks.band(ax, x, low, low + 1, colour="#000000")
    area, alone = ax.collections
    covered = np.concatenate([path.vertices[:, 0] for path in area.get_paths()])
    assert covered.max() == 1, "the band ends where its neighbours have no interval"
    assert [segment[0, 0] for segment in alone.get_segments()] == [3], "one alone is a bar"


def test_the_order_of_rows_does_not_matter(table):
    def drawn(rows, mark):
        with style.look():
            sheet, (ax,) = style.sheet(style.COLUMN, 2)
            marks.key(sheet, mark(ax, rows, x="layer", unit="share", colour_by="model"))
            return Figure(sheet, rows, name="a", settings={}, traces=[])._repr_svg_()

    for mark in (marks.lines, marks.bars):
        assert drawn(table, mark) == drawn(table.sample(frac=1, random_state=1), mark)


def test_nulls_that_differ_are_drawn_each(ax, table):
    table["null"] = [0.05] * 4 + [0.1] * 4
    entries = marks.lines(ax, table, x="layer", unit="share", colour_by="model")
    assert names(entries).count("null") == 1
    dashed = [line for line in ax.get_lines() if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in dashed] == [0.1, 0.05]


def test_a_plain_table_has_one_line_and_no_legend(drawing, table):
    drawn, ax = drawing
    plain = table[table["model"] == "LLaDA"][["layer", "value"]]
    assert marks.lines(ax, plain, x="layer", unit="share") == []
    assert len(ax.get_lines()) == 1
    assert marks.key(drawn, []) is None


def test_missing_intervals_are_counted(table):
    assert names(marks.no_interval(table.assign(low=NAN))) == ["no interval: 1–9 prompts"]
    assert names(marks.no_interval(table.drop(columns="n"))) == ["no interval"]
    assert marks.no_interval(table.dropna()) == []
    assert marks.no_interval(table[["value"]]) == []
    assert names(marks.no_interval(table, of="questions")) == ["no interval: 1 question"]


def test_bars_have_intervals_and_nulls(ax, table):
    entries = marks.bars(ax, table, x="layer", unit="share", colour_by="model")
    assert names(entries) == ["Dream", "LLaDA", "null", "no interval: 1 prompt"]
    heights = [[bar.get_height() for bar in group] for group in ax.containers]
    np.testing.assert_array_equal(heights, [[0.2, 0.3, NAN, 0.5], [0.1, 0.2, 0.3, 0.4]])
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0", "1", "2", "3"]


def test_many_lines_are_named_in_part(ax):
    rows = [{"step": s, "layer": n, "value": n * s} for n in range(32) for s in range(3)]
    entries = marks.lines(ax, pd.DataFrame(rows), x="step", unit="share", colour_by="layer")
    assert len(ax.get_lines()) == 32
    assert names(entries)[0] == "layer 0" and names(entries)[-1] == "layer 31" and len(entries) == 6


def test_kinds_that_colour_cannot_tell_apart_are_refused():
    assert len(set(style.colours(range(32)).values())) == 32
    with pytest.raises(SpecError, match="8 kinds cannot be told apart by colour: show 7 or fewer"):
        style.colours(list("abcdefgh"))


def test_all_colours_show_on_white():
    light = [np.dot(to_rgb(c), [0.299, 0.587, 0.114]) for c in style.PALETTE]
    assert len(set(style.PALETTE)) == len(style.PALETTE)
    assert max(light) < 0.7, "all of them show on white"


def test_the_legend_covers_nothing(drawing, table):
    drawn, ax = drawing
    marks.key(drawn, marks.lines(ax, table, x="layer", unit="share", colour_by="model"))
    drawn.draw_without_rendering()
    box = drawn.legends[0].get_window_extent()
    assert box.y0 >= ax.get_window_extent().y1
    assert box.x1 <= drawn.bbox.x1 and box.y1 <= drawn.bbox.y1


def test_bands_are_as_wide_as_what_flows(ax):
    flow = np.array([[0.3, 0.1], [0.0, 0.6]])
    marks.bands(ax, flow, sources=["question", "answer"], targets=["question", "passage"])
    drawn = [patch for patch in ax.patches if patch.get_alpha()]
    widths = [np.ptp(patch.get_path().vertices[[0, 7], 1]) for patch in drawn]
    np.testing.assert_allclose(widths, [0.3, 0.1, 0.6], atol=tolerances.EXACT)
    starts, ends = ([patch.get_path().vertices[at, 1] for patch in drawn] for at in (0, 3))
    np.testing.assert_allclose(starts[1], starts[0] + 0.3, err_msg="one under the other")
    np.testing.assert_allclose(ends[2], ends[1] + 0.1)
    said = [text.get_text() for text in ax.texts]
    assert said == ["question  40%", "answer  60%", "question  30%", "passage  70%", "from", "to"]


def test_a_source_without_queries_says_so(ax):
    flow = np.array([[1.0], [NAN]])
    marks.bands(ax, flow, sources=["a", "b"], targets=["c"])
    assert ax.texts[1].get_text() == "b (no queries)"


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        (np.ones((2, 3)), "expected \\[source, target\\], 2 x 2 for these names"),
        (-np.ones((2, 2)), "none below zero"),
        (np.zeros((2, 2)), "some above it"),
        (np.full((2, 2), NAN), "some above it"),
    ],
)
def test_flows_that_cannot_be_drawn(ax, flow, message):
    with pytest.raises(SpecError, match=message):
        marks.bands(ax, flow, sources=["a", "b"], targets=["c", "d"])


def test_too_many_blocks_are_a_heat_map(ax):
    names = list("abcdefgh")
    with pytest.raises(SpecError, match="up to 7 are drawn as bands, more as a heat map"):
        marks.bands(ax, np.ones((8, 8)), sources=names, targets=names)


def test_foreign_names_are_drawn_without_a_warning(drawing, table):
    drawn, ax = drawing
    table["model"] = ["段落 $x$"] * 4 + ["a\nb\u202e"] * 4
    marks.key(drawn, marks.lines(ax, table, x="layer", unit="share", colour_by="model"))
    drawn.draw_without_rendering()
    said = drawn.legends[0].get_texts()
    assert [text.get_text() for text in said][:2] == ["a⏎b·", "□□ $x$"]
    assert not any(text.get_parse_math() for text in said), "dollars are text"
