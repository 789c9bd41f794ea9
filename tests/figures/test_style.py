"""Tokens on an axis: visible, in the font, clipped, apart; no warning and no mathematics."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorwatch import figures
from anchorwatch.errors import SpecError
from anchorwatch.figures import style
from anchorwatch.figures.style import (
    LONGEST,
    _drawable,
    label_axis,
    printable,
    token_label,
    token_labels,
)

WEIRD = [
    *("\n", " ", "\t", "\r", "", "\x00", "\x1b[31mred", "$x_1$", "$\\frac{", "\\n", "%", "_^"),
    *("你好", "😀", "👩‍👩‍👧", "שלום", "سلام", "\u202eabc", "\u2066", "e\u0301", "\ud800", "﷽", "░"),
    *("</text><script>", "&amp;", "a" * 300, "　", "\u00a0"),
]


@pytest.mark.parametrize(
    ("token", "label"),
    [
        (" the", "␣the"),
        ("\n", "⏎"),
        ("\n\n", "⏎⏎"),
        ("  ", "␣␣"),
        ("\t", "⇥"),
        ("你", "U+4F60"),
        ("你好", "U+4F60…"),
        (" 你", "␣U+4F60"),
        ("a你b", "a□b"),
        ("\x1b", "·"),
        ("\r", "U+000D"),
        ("$x$", "$x$"),
        ("internationalisation", "internation…"),
        ("", ""),
    ],
)
def test_how_a_token_is_labelled(token, label):
    assert token_label(token) == label


@given(st.text())
def test_every_label_can_be_drawn_and_is_short(text):
    label = token_label(text)
    assert len(label) <= LONGEST
    assert all(_drawable(char) for char in label)
    assert " " not in label and "\n" not in label
    assert bool(label) == bool(text)


@given(st.text(max_size=20))
def test_printable_text_stays_on_one_line(text):
    assert "\n" not in printable(text)


def test_masked_positions_are_a_mark_and_absent_ones_empty(trace, causal):
    assert token_labels(trace, 0)[4:] == ["░"] * 8
    assert "░" not in token_labels(trace)
    assert token_labels(causal, 0)[4:] == [""] * 6


@pytest.mark.parametrize("kind", ["pdf", "png", "svg"])
def test_weird_tokens_are_drawn_without_a_warning(spelled, tmp_path, kind):
    for start in range(0, len(WEIRD), 11):
        trace = spelled(WEIRD[start : start + 12])
        figure = figures.sink_map(trace)
        assert figures.whence(figure.save(tmp_path / f"{start}.{kind}")) == figure.whence


def test_dollars_are_text(spelled):
    svg = figures.sink_map(spelled(["$x_1$"] * 20))._repr_svg_()
    assert ">$x_1$</text>" in svg


@style.look()
def labelled(count, width, *, along="x", fresh=(), most=None):
    drawn, (ax,) = style.sheet(width, width)
    ax.set(xlim=(-0.5, count - 0.5), ylim=(count - 0.5, -0.5))
    every = label_axis(ax, [f"Token{p}" for p in range(count)], along=along, fresh=fresh, most=most)
    drawn.draw_without_rendering()
    return ax, every


@pytest.mark.parametrize("along", ["x", "y"])
@pytest.mark.parametrize("count", [1, 2, 12, 24, 25, 26, 60, 200, 1024])
@pytest.mark.parametrize("fresh", [(), (0, 1, 7)], ids=["plain", "fresh"])
def test_labels_never_overlap(count, along, fresh):
    ax, every = labelled(count, style.COLUMN, along=along, fresh=[p for p in fresh if p < count])
    axis = ax.xaxis if along == "x" else ax.yaxis
    boxes = [text.get_window_extent() for text in axis.get_ticklabels()]
    spans = sorted((box.x0, box.x1) if along == "x" else (box.y0, box.y1) for box in boxes)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    said = axis.get_label_text()
    assert said == ("token" if every == 1 else f"token (1 in {every} named)")


def test_labels_of_a_drawn_map_never_overlap(model):
    import anchorwatch as aw

    for length in (12, 20, 21, 22, 40, 70):
        trace = aw.run(model, "the anchor holds", aw.decoding.LowConfidence(length=length, steps=2))
        ax = figures.sink_map(trace).axes[0]
        boxes = [text.get_window_extent() for text in ax.get_xticklabels()]
        assert all(a.x1 <= b.x0 for a, b in pairwise(boxes)), length


def test_fresh_positions_are_always_named():
    ax, every = labelled(200, style.COLUMN, fresh=[101])
    assert every > 1 and 101 in ax.get_xticks()


def test_most_is_kept_and_checked():
    ax, every = labelled(20, style.PAGE, most=5)
    assert len(ax.get_xticks()) == 5 and every == 4
    with pytest.raises(SpecError, match="most=0 labels name nothing: expected at least 1"):
        labelled(20, style.PAGE, most=0)
