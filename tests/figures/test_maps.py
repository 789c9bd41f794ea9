"""Figures straight from a trace: limits, labels, hatches, the frontier, the data behind them."""

import numpy as np
import pytest
from matplotlib.collections import PolyCollection, QuadMesh
from matplotlib.colors import to_hex

import anchorwatch as aw
import tolerances
from anchorwatch import figures, rules
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.figures import style
from anchorwatch.trace import render_html as strip
from anchorwatch.trace.trace import FRESH, Trace


def mesh(ax):
    return next(c for c in ax.collections if isinstance(c, QuadMesh))


def hatched(ax):
    found = [c for c in ax.collections if isinstance(c, PolyCollection) and c.get_hatch()]
    centres = [path.vertices[:4].mean(axis=0) for c in found for path in c.get_paths()]
    return sorted((round(y), round(x)) for x, y in centres)


def trace_of_another(trace):
    """The same trace under another model's name."""
    return Trace(
        trace.dataset(), trace.manifest | {"model": trace.manifest["model"] | {"source": "another"}}
    )


def legend(figure):
    return [text.get_text() for text in figure.drawn.legends[0].get_texts()]


def test_a_sink_map_draws_what_the_trace_received(trace):
    figure = figures.sink_map(trace, layer=1, head=2)
    wanted = trace["received"].sel(group="all").values[:, 1, 2]
    drawn = mesh(figure.axes[0])
    np.testing.assert_array_equal(drawn.get_array().reshape(wanted.shape), wanted)
    assert drawn.get_clim() == (0, wanted.max())
    data = figure.data
    assert list(data) == ["step", "position", "token", "role", "value", "sink"]
    np.testing.assert_array_equal(data.pivot(index="step", columns="position")["value"], wanted)
    assert data.query("step == 0 and position == 4")["role"].item() == "masked"
    assert not data["sink"].any()


def test_layers_and_heads_that_are_not_named_are_a_mean(trace):
    shares = trace["received"].sel(group="masked").values.astype(np.float64)
    figure = figures.sink_map(trace, group="masked")
    np.testing.assert_allclose(
        figure.data["value"].to_numpy(), shares.mean(axis=(1, 2)).ravel(), rtol=tolerances.EXACT
    )
    assert figure.axes[0].get_title(loc="left") == "mean of 3 layers and 4 heads, masked queries"


def test_the_axes_are_named(trace):
    figure = figures.sink_map(trace, layer=0)
    ax, bar = figure.axes[0], figure.axes[-1]
    labels = [text.get_text() for text in ax.get_xticklabels()]
    assert labels[:5] == ["␣the", "␣anchor", "␣hold", "s", "␣line"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("token in the end", "step")
    assert bar.get_ylabel() == "share of attention"
    assert ax.get_ylim() == (7.5, -0.5), "the first step is on top"
    assert ax.get_title(loc="left") == "layer 0, mean of 4 heads"
    assert legend(figure) == ["prompt", "masked", "commit frontier"]


def test_sinks_are_hatched_by_the_rule(trace):
    rule = rules.ratio(2.0)
    figure = figures.sink_map(trace, layer=0, rule=rule)
    shares = trace["received"].sel(group="all").values[:, 0].astype(np.float64).mean(axis=1)
    wanted = list(zip(*np.nonzero(rule.labels(shares)), strict=True))
    assert wanted
    assert hatched(figure.axes[0]) == wanted
    assert "sink by ratio:2" in legend(figure)
    marked = figure.data.query("sink")
    assert list(zip(marked["step"], marked["position"], strict=True)) == wanted


def test_a_rule_that_finds_none_says_so(trace):
    figure = figures.sink_map(trace, rule=rules.gu(0.99))
    assert hatched(figure.axes[0]) == []
    assert "sink by gu:0.99: none" in legend(figure)


def test_the_frontier_is_when_positions_were_committed(trace):
    ax = figures.sink_map(trace, layer=0).axes[0]
    (line,) = ax.get_lines()
    x, y = line.get_data()
    assert x.reshape(-1, 2).mean(axis=1).tolist() == trace.answer.tolist()
    assert (y.reshape(-1, 2)[:, 0] - 0.5).tolist() == trace.committed_at[trace.answer].tolist()


def test_the_frontier_is_broken_where_the_answer_is(model):
    decoding = aw.decoding.LowConfidence(steps=2)
    trace = aw.run(model, canvas=[358, 3, 427, 483, 3, 346], decoding=decoding)
    assert trace.is_infill
    (line,) = figures.sink_map(trace).axes[0].get_lines()
    assert np.isnan(line.get_xdata()).sum() == 1


def test_absent_keys_are_hatched_not_zero(causal):
    figure = figures.sink_map(causal, rule=rules.topk(1))
    ax = figure.axes[0]
    assert (
        np.ma.getmaskarray(mesh(ax).get_array()).sum() == np.isnan(figure.data["value"]).sum() > 0
    )
    assert ax.patch.get_hatch() == style.ABSENT_HATCH
    assert legend(figure)[-1] == "absent"
    assert not figure.data.loc[figure.data["value"].isna(), "sink"].any()


def test_steps_that_were_not_measured_are_said(model, trace):
    seen = aw.replay(model, trace, probes=[aw.probes.received(steps=[0, 1])])
    figure = figures.sink_map(seen)
    assert legend(figure)[-1] == "not measured"
    assert figure.data.groupby("step")["value"].count().tolist() == [12, 12, *[0] * 6]


def test_roles_have_the_colours_of_the_film_strip(trace):
    for role in ("prompt", "written", "fresh"):
        assert f".{role}" in strip._STYLE and style.ROLE_COLOURS[role] in strip._STYLE
    ax = figures.sink_map(trace).axes[0]
    (row,) = ax.child_axes
    spans = {}
    for held in row.collections:
        across = held.get_paths()[0].vertices[:, 0]
        spans[to_hex(held.get_facecolor()[0])] = (across.min(), across.max())
    colours = style.ROLE_COLOURS
    assert spans == {colours["prompt"]: (-0.5, 3.5), colours["masked"]: (3.5, 11.5)}


def test_a_wide_map_takes_both_columns(model):
    long = aw.run(model, "the anchor holds", aw.decoding.LowConfidence(length=60, steps=4))
    assert figures.sink_map(long).drawn.get_figwidth() == style.PAGE


def test_bad_choices_name_the_good_ones(trace, causal):
    with pytest.raises(SpecError, match="layer 3 is not in the trace: it has 0 to 2"):
        figures.sink_map(trace, layer=3)
    with pytest.raises(SpecError, match="head -1 is not in the trace: it has 0 to 3"):
        figures.sink_map(trace, head=-1)
    with pytest.raises(
        SpecError, match="'answer' was not measured: the trace has all, masked, wri"
    ):
        figures.sink_map(trace, group="answer")
    with pytest.raises(SpecError, match="causal visibility: hatch by rulli, ratio or topk"):
        figures.sink_map(causal, rule=rules.gu())


def test_a_trace_without_received_names_the_probe(model, trace):
    bare = aw.replay(model, trace, probes=[aw.probes.entropy()])
    with pytest.raises(TraceError, match=r"probes=\[aw.probes.received\(\)\]"):
        figures.sink_map(bare)


def test_a_pair_shows_both_maps_and_what_changed(patterned):
    figure = figures.map_pair(patterned, step=3, layer=0, head=1)
    first, second = patterned["pattern"].values.astype(np.float64)
    panels = [mesh(ax) for ax in figure.axes[:3]]
    for panel, wanted in zip(panels, (first, second, second - first), strict=True):
        np.testing.assert_array_equal(panel.get_array().reshape(wanted.shape), wanted)
    assert panels[0].get_clim() == panels[1].get_clim() == (0, max(first.max(), second.max()))
    low, high = panels[2].get_clim()
    assert low == -high == -np.abs(second - first).max()
    titles = [ax.get_title(loc="left") for ax in figure.axes[:3]]
    assert titles == ["step 3, layer 0, head 1", "step 4", "step 4 minus step 3"]
    data = figure.data
    assert list(data) == ["panel", "step", "query", "key", "value"]
    after = data.query("panel == 'after'").pivot(index="query", columns="key", values="value")
    np.testing.assert_array_equal(after, second)


def test_a_pair_is_labelled_with_what_each_step_saw(patterned):
    figure = figures.map_pair(patterned, step=3, layer=0, head=1)
    fresh = np.nonzero(patterned.role[4] == FRESH)[0].tolist()
    one, two = ([text.get_text() for text in ax.get_xticklabels()] for ax in figure.axes[:2])
    assert [one[p] for p in fresh] == ["░"] * len(fresh)
    assert all(two[p] != "░" for p in fresh)
    boxed = [i for i, text in enumerate(figure.axes[1].get_xticklabels()) if text.get_bbox_patch()]
    assert boxed == fresh
    assert one.count("░") == patterned.masked[3].sum()


def test_a_pair_that_was_not_measured_names_the_replay(trace, patterned):
    call = r"aw.replay\(model, trace, probes=\[aw.probes.pattern\(layers=\[0\], heads=\[1\], steps=\[3, 4\]\)\]\)"
    with pytest.raises(
        TraceError, match=f"no map of step 3, layer 0, head 1: measure it with {call}"
    ):
        figures.map_pair(trace, step=3, layer=0, head=1)
    with pytest.raises(TraceError, match=r"no map of step 5, .* steps=\[4, 5\]"):
        figures.map_pair(patterned, step=4, layer=0, head=1)


@pytest.mark.parametrize("step", [-1, 7, 8])
def test_a_pair_needs_a_next_step(patterned, step):
    with pytest.raises(
        SpecError, match=f"step {step} has no next one in the trace: expected 0 to 6"
    ):
        figures.map_pair(patterned, step=step, layer=0, head=1)


def test_a_pair_of_a_layer_that_is_not_there(patterned):
    with pytest.raises(SpecError, match="layer 9 is not in the trace: it has 0 to 2"):
        figures.map_pair(patterned, step=3, layer=9, head=1)


def test_maps_of_layers_share_one_colour_scale(model, trace):
    maps = aw.replay(model, trace, probes=[aw.probes.pattern(steps=[3])])
    figure = figures.layer_maps([maps, trace_of_another(maps)], step=3, layers=[0, 2])
    panels, bars = figure.axes[:4], figure.axes[4:]
    highest = max(np.quantile(mesh(ax).get_array().compressed(), 0.99) for ax in panels)
    assert {mesh(ax).get_clim() for ax in panels} == {(0.0, highest)}
    assert [bar.get_ylabel() for bar in bars] == ["share of attention, mean of heads"]
    assert set(figure.data["model"]) == {"tiny/llada", "another"}
