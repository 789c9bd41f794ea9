"""Figures of what sinks are: marks, limits, labels, and where they come from."""

import numpy as np
import pytest

from anchorwatch.errors import SpecError
from anchorwatch.figures import draw, enrichment, enrichment_depth, meaning_or_place, structure
from anchorwatch.metrics import sink_classes as metrics
from anchorwatch.metrics.sink_rules import rulli
from anchorwatch.metrics.token_classes import CLASSES
from anchorwatch.metrics.token_vs_position import meaning_or_place as measured
from synthetic_traces import column, planted, uniform

TEXTS = {1: "\n", 2: " .", 3: " the", 4: " anchor", 8: " ship"}


def run(number, source="mdm", causal=False):
    """Layer 0 looks at a newline, layer 1 at a word, layer 2 at nothing in particular."""
    length, prompt = 24, 18
    maps = uniform(6, 3, 2, length, causal=causal)
    if not causal:
        maps[:, 0], maps[:, 1] = column(length, 3, 0.6), column(length, 5, 0.7)
    tokens = np.where(np.arange(length) % 4 == 3, 1, 4)
    tokens[0], tokens[8:11] = 2, [1 + (number >> bit) % 2 for bit in range(3)]
    visibility = "causal" if causal else "bidirectional"
    return planted(
        maps, prompt=prompt, tokens=tokens, texts=TEXTS, source=source, visibility=visibility
    )


@pytest.fixture(scope="module")
def traces():
    return [run(number) for number in range(6)]


def named(figure):
    return [text.get_text() for text in figure.drawn.legends[0].get_texts()]


def test_enrichment_has_a_dot_for_each_class_on_a_scale_of_twos(traces):
    table = metrics.enrichment(traces, rulli(3))
    figure = enrichment(table)
    (ax,) = figure.axes
    assert ax.get_xscale() == "log" and ax.get_xlabel() == "share of sinks / share of keys"
    standing = [name for name in CLASSES if (table[table["class"] == name].null > 0).any()]
    assert [text.get_text() for text in ax.get_yticklabels()] == standing
    dots = next(line for line in ax.get_lines() if line.get_marker() == "o")
    rows = table.set_index("class").loc[standing]
    np.testing.assert_allclose(dots.get_xdata(), rows.lift)
    assert dots.get_ydata().tolist() == list(range(len(standing)))
    never = next(line for line in ax.get_lines() if line.get_marker() == "<")
    assert len(never.get_xdata()) == (rows.lift == 0).sum() > 0
    low, high = ax.get_xlim()
    assert low < 0.5 and high > rows.lift_high.max()
    spans = {tuple(one[:, 0]) for one in ax.collections[1].get_segments()}
    assert (rows.lift_low["newline"], rows.lift_high["newline"]) in spans
    assert named(figure) == ["mdm", "never a sink", "null"]
    shown = [text.get_text() for text in ax.texts]
    assert shown[0] == "sinks" and "50%" in shown and shown.count("keys") == 1
    assert figure.whence["settings"]["rule"] == "rulli:3:sum"
    assert len(figure.whence["traces"]) == 6


def test_two_models_are_dots_side_by_side_and_too_few_prompts_are_said(traces):
    few = [*traces[:2], run(0, "other")]
    figure = enrichment(metrics.enrichment(few, rulli(3)))
    (ax,) = figure.axes
    dots = [line for line in ax.get_lines() if line.get_marker() in ("o", "s")]
    assert len(dots) == 2
    assert (dots[0].get_ydata() != dots[1].get_ydata()).all()
    assert named(figure) == ["mdm", "other", "never a sink", "null", "no interval: 1–2 prompts"]
    assert not ax.texts  # shares are said where they are one model's


def test_depth_is_colour_never_has_none_and_absent_is_hatched(traces):
    table = metrics.enrichment(traces, rulli(3), by=["layer"])
    figure = enrichment_depth(table)
    ax = figure.axes[0]
    names = [text.get_text() for text in ax.get_xticklabels()]
    cells = np.ma.asarray(ax.collections[0].get_array()).reshape(3, len(names))
    at = table.set_index(["class", "layer"])
    assert cells[0, names.index("newline")] == pytest.approx(at.log2["newline", 0])
    assert cells[1, names.index("content")] == pytest.approx(at.log2["content", 1])
    assert cells.mask[2].all() and not cells.mask[:2].any()  # no sink in layer 2
    held = at.log2.unstack("layer").loc[names]
    assert len(ax.collections[1].get_paths()) == np.isneginf(held.to_numpy()).sum()
    low, high = ax.collections[0].get_clim()
    assert low == -high and high == np.ceil(high)
    assert named(figure) == ["never a sink", "no sink in the layer, or no such token"]
    bar = [text.get_text() for text in figure.axes[1].get_yticklabels()]
    assert "1" in bar and any(text.startswith("1/") for text in bar)


def test_structure_has_shares_of_sinks_and_of_attention_with_nulls(traces):
    both = [*traces, run(0, "arm", causal=True)]
    table = metrics.structure(both, rulli(3))
    figure = structure(table)
    assert len(figure.axes) == 4
    left, right = figure.axes[:2]
    assert left.get_ylabel() == "share of attention on sinks"
    assert right.get_ylabel() == "share of all attention"
    mdm = table[(table.model == "mdm")].set_index(["quantity", "layer"])
    line = next(line for line in left.get_lines() if line.get_label() == "structure")
    np.testing.assert_allclose(line.get_ydata(), mdm.value["structure_of_sinks"])
    line = next(line for line in right.get_lines() if line.get_label() == "content")
    np.testing.assert_allclose(line.get_ydata(), mdm.value["content"])
    nulls = [line for line in right.get_lines() if line.get_label() == "null"]
    assert len(nulls) == 3
    assert named(figure)[:4] == ["structure", "mask", "content", "null"]
    assert figure.axes[2].get_title(loc="left") == "arm"


def test_meaning_or_place_has_a_line_for_each_way_to_explain(traces):
    table = measured(traces, rulli(3))
    figure = meaning_or_place(table)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["attention received", "being a sink"]
    rows = table[(table.outcome == "sink") & (table.quantity == "class")]
    line = next(line for line in figure.axes[1].get_lines() if line.get_label() == "token class")
    np.testing.assert_allclose(line.get_ydata(), rows.sort_values("layer").value)
    assert named(figure)[:4] == ["token class", "token", "place", "class and place"]


def test_the_catalogue_draws_them(traces):
    for name in ("enrichment", "enrichment-depth", "structure", "meaning-or-place"):
        figure = draw(name, traces, {"rule": rulli(3)})
        assert len(figure.whence["traces"]) == 6


def test_what_cannot_be_drawn_is_said(traces):
    split = metrics.enrichment(traces, rulli(3), by=["layer"])
    with pytest.raises(SpecError, match=r"split further than by class: draw enrichment_depth"):
        enrichment(split)
    with pytest.raises(SpecError, match=r"split further than by layer: measure with by="):
        enrichment_depth(metrics.enrichment(traces, rulli(3), by=["layer", "head"]))
    with pytest.raises(SpecError, match=r"no column layer: its columns are"):
        enrichment_depth(metrics.enrichment(traces, rulli(3)))
    nothing = planted(uniform(2, 1, 1, 12), prompt=10)
    for draws, by in ((enrichment, []), (enrichment_depth, ["layer"])):
        with pytest.raises(SpecError, match=r"there is no sink in these traces"):
            draws(metrics.enrichment(nothing, rulli(3), by=by))
    table = metrics.structure(traces, rulli(3))
    with pytest.raises(SpecError, match=r"no quantity 'mask_of_sinks': draw the table"):
        structure(table[table.quantity != "mask_of_sinks"])
