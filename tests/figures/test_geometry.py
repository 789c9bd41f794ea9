"""Figures of geometry and norms: marks, limits, labels, and what they refuse."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

import anchorwatch as aw
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.figures import geometry as figures
from anchorwatch.figures.style import PALETTE
from anchorwatch.metrics import geometry
from anchorwatch.metrics.sink_rules import topk
from references.geometry import Vectors

P = aw.probes


@pytest.fixture(scope="module")
def made():
    """Six prompts of grouped-key vectors, every key kept."""
    found = []
    for number in range(6):
        vectors = Vectors(np.random.default_rng(number), (2, 3, 4, 16), kv_heads=2)
        ids = range(100 * number + 1, 100 * number + 17)
        found.append(vectors.trace(prompt=14, keys=True, tokens=ids))
    return found


def bars_of(ax):
    return [patch for patch in ax.patches if patch.get_width() == pytest.approx(0.8)]


def test_the_triptych_has_a_bar_for_each_key_and_marks_sinks(made):
    trace = made[0]
    figure = figures.qk_triptych(trace, step=1, layer=2, head=3, rule=topk(2))
    assert [ax.get_ylabel() for ax in figure.axes] == [
        "mean logit",
        "mean cos(q, k)",
        "mean |q| |k|",
    ]
    received = trace["received"].values[1, 2, 3, 0]
    sinks = sorted(np.argsort(-received)[:2].tolist())
    for ax, name in zip(figure.axes, ("logit", "cosine", "norm_product"), strict=True):
        drawn = bars_of(ax)
        exact = trace[f"each_{name}"].values[1, 2, 3]
        np.testing.assert_allclose([bar.get_height() for bar in drawn], exact)
        marked = [
            i for i, bar in enumerate(drawn) if to_hex(bar.get_facecolor()) == PALETTE[1].lower()
        ]
        assert marked == sinks
        others = np.delete(exact, sinks).mean()
        dashed = [line for line in ax.get_lines() if line.get_linestyle() != "-"]
        assert dashed[0].get_ydata()[0] == pytest.approx(others)
    names = [text.get_text() for text in figure.drawn.legends[0].get_texts()]
    assert names == ["sink by topk:2", "other key", "mean of the others"]
    labels = [text.get_text() for text in figure.axes[2].get_xticklabels()]
    assert labels[0] == "␣w1" and len(labels) == 16
    assert figure.data.sink.sum() == 2
    assert figure.whence["settings"]["rule"] == "topk:2"


def test_the_triptych_tells_the_split_of_the_metric(made):
    trace = made[0]
    table = geometry.qk_split(trace, topk(2), by=("step", "layer", "head"))
    row = table[(table.step == 1) & (table.layer == 2) & (table["head"] == 3)]
    angle, norm = (row.value[row.quantity == name].item() for name in ("angle", "norm"))
    title = figures.qk_triptych(trace, step=1, layer=2, head=3, rule=topk(2)).axes[0]
    said = title.get_title(loc="left").replace("−", "-")
    assert f"{angle:+.2f} angle {norm:+.2f} norm" in said


def test_the_triptych_says_what_it_needs(made):
    for options, says in (
        ({"step": 2, "layer": 0, "head": 0}, "step 2 is not in the trace: it has 0 to 1"),
        ({"step": 0, "layer": 3, "head": 0}, "layer 3 is not in the trace"),
        ({"step": 0, "layer": 0, "head": 4}, "head 4 is not in the trace"),
        ({"step": 0, "layer": 0, "head": 0, "rotary": "no"}, "expected 'after' or 'before'"),
    ):
        with pytest.raises(SpecError, match=says):
            figures.qk_triptych(made[0], **options)
    vectors = Vectors(np.random.default_rng(0), (2, 1, 1, 8), kv_heads=1)
    with pytest.raises(TraceError, match=r"qk_geometry\(keys=True\)"):
        figures.qk_triptych(vectors.trace(), step=0, layer=0, head=0)
    absent = vectors.trace(keys=True, absent=[(0, 0)])
    with pytest.raises(TraceError, match="step 0, layer 0 was not measured"):
        figures.qk_triptych(absent, step=0, layer=0, head=0)


def test_shapley_bars_stand_on_each_other_or_hang_below():
    rows = [
        (0, "angle", 2.0),
        (0, "norm", 1.0),
        (0, "advantage", 3.0),
        (0, "angle_share", 2 / 3),
        (1, "angle", 2.0),
        (1, "norm", -0.5),
        (1, "advantage", 1.5),
        (1, "angle_share", 0.8),
    ]
    table = pd.DataFrame(rows, columns=["layer", "quantity", "value"]).assign(
        model="m", low=np.nan, high=np.nan, n=1
    )
    figure = figures.shapley_bars(table.sample(frac=1, random_state=0))
    left, right = figure.axes
    spans = sorted((p.get_x(), p.get_y(), p.get_height()) for p in left.patches)
    assert [(low, high) for _, low, high in spans] == [(0, 2), (2, 1), (0, -0.5), (0, 2)]
    points = next(line for line in left.get_lines() if line.get_marker() == "D")
    np.testing.assert_allclose(points.get_ydata(), [3, 1.5])
    assert right.get_ylim() == (-1.05, 1.05)
    np.testing.assert_allclose(right.get_lines()[0].get_ydata(), [2 / 3, 0.8])
    names = [text.get_text() for text in figure.drawn.legends[0].get_texts()]
    assert names == ["angle", "norm", "advantage", "no interval: 1 prompt"]


def test_shapley_bars_of_a_metric_have_intervals(made):
    figure = figures.shapley_bars(geometry.qk_split(made, topk(2)))
    names = [text.get_text() for text in figure.drawn.legends[0].get_texts()]
    assert names == ["angle", "norm", "advantage"]
    assert len(figure.whence["traces"]) == 6
    assert figure.whence["settings"]["metric"] == "qk_split"
    with pytest.raises(SpecError, match="no quantity 'angle': it has sink"):
        figures.shapley_bars(geometry.value_norms(made, topk(2)))


def test_the_scatter_has_a_dot_for_each_sampled_token(made):
    points = geometry.value_norm_points(made, topk(2), count=40)
    figure = figures.value_norm_scatter(points)
    (ax,) = figure.axes
    for dots, kind in zip(ax.collections, ("other", "sink"), strict=True):
        part = points[points.kind == kind]
        np.testing.assert_allclose(dots.get_offsets(), part[["received", "value_norm"]])
        middle, mean = part.value_norm.median(), part.value_norm.mean()
        assert f"{kind}: median {middle:.2f}, mean {mean:.2f} ± " in ax.get_title(loc="left")
    assert not ax.texts, "words over points cannot be read"
    assert ax.get_xscale() == "log" and ax.get_ylim()[0] == 0
    assert ax.get_title(loc="left").splitlines()[0] == "planted, 3 layers"
    one = figures.value_norm_scatter(points, layer=1)
    assert one.axes[0].get_title(loc="left").splitlines()[0] == "planted, layer 1"
    assert set(one.data.layer) == {1}
    with pytest.raises(
        SpecError, match=r"no point is of layer 9: the table has layers \[0, 1, 2\]"
    ):
        figures.value_norm_scatter(points, layer=9)


def test_contributions_are_points_about_the_diagonal(made):
    table = geometry.contributions(made, topk(2), by=("layer", "head"))
    figure = figures.contribution_scatter(table)
    ax = figure.axes[0]
    part = table[table.quantity == "contribution_share"]
    np.testing.assert_allclose(ax.collections[0].get_offsets(), part[["null", "value"]])
    np.testing.assert_array_equal(ax.collections[0].get_array(), part.layer)
    np.testing.assert_allclose(ax.get_lines()[0].get_xydata(), [[0, 0], [1, 1]])
    assert figure.axes[1].get_ylabel() == "layer"
    whole = figures.contribution_scatter(geometry.contributions(made, topk(2), by=()))
    assert len(whole.axes) == 1, "without layers there is no bar of layers"


def test_mixing_has_a_panel_for_each_quantity():
    trace = aw.run(
        aw.load("tiny/llada"), "the anchor", aw.decoding.LowConfidence(4, 2), probes=[P.mixing()]
    )
    table = geometry.mixing(trace)
    figure = figures.mixing_by_depth(table)
    assert [ax.get_ylabel() for ax in figure.axes] == [
        "mean cosine of two positions",
        "effective rank",
    ]
    line = next(one for one in figure.axes[1].get_lines() if one.get_label() == "tiny/llada")
    exact = table[table.quantity == "effective_rank"].value
    np.testing.assert_allclose(line.get_ydata(), exact)
    assert figure.axes[1].get_ylim()[0] == 0
