"""Figures of movement: marks, limits, labels, and where they come from."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex

import tolerances
from anchorwatch import figures
from anchorwatch.errors import SpecError
from anchorwatch.figures.movement import TYPE_COLOURS
from anchorwatch.metrics import headtypes, lifetimes, movement, similarity
from synthetic_traces import moving_maps, planted, with_blocks

PLACE = [8, 8, 8, 8, 12, 12, None, 12]
"""A drift by two blocks of four; no sink at step 6."""


@pytest.fixture(scope="module")
def drifting():
    maps = np.concatenate([moving_maps(PLACE, length=16), moving_maps([3] * 8, length=16)], axis=2)
    return with_blocks(planted(np.repeat(maps, 2, axis=1), prompt=8, source="mdm"), 4)


@pytest.fixture(scope="module")
def many():
    """Six prompts of a model whose sink moves after three steps, and one of a static one."""
    found = []
    for number in range(6):
        place = [4] * (2 + number % 2) + [9] * (6 - number % 2)
        ids = range(100 * number + 1, 100 * number + 17)
        found.append(planted(moving_maps(place, length=16), prompt=8, tokens=ids, source="mdm"))
    return [*found, planted(moving_maps([3] * 8, length=16), prompt=8, source="still")]


def mesh(ax):
    return next(c for c in ax.collections if isinstance(c, QuadMesh))


def legend(figure):
    return [text.get_text() for text in figure.drawn.legends[0].get_texts()]


def test_the_layer_step_map_has_the_commonest_position_and_hatches_none(drifting):
    table = movement.sink_positions(drifting)
    figure = figures.sink_positions(table, head=0)
    cells = mesh(figure.axes[0]).get_array().reshape(2, 8)
    expected = [np.nan if p is None else p for p in PLACE]
    np.testing.assert_array_equal(np.ma.filled(cells.astype(float), np.nan), [expected] * 2)
    assert legend(figure) == ["no sink"]
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("step", "layer")
    assert figure.axes[1].get_ylabel() == "position of the sink"
    every = figures.sink_positions(table)
    assert not every.data.value.isna().any()  # the other head has a sink at step 6
    assert every.data[every.data.step == 6].value.tolist() == [3, 3]
    assert every.drawn.legends == []
    assert figure.whence["settings"]["metric"] == "sink_positions"
    assert figure.whence["traces"][0]["digest"] == drifting.digest()


def test_paths_have_gaps_without_a_sink_and_the_trace_adds_the_scene(drifting):
    table = movement.sink_positions(drifting)
    figure = figures.sink_path(table, drifting, heads=[(0, 0), (1, 1)])
    (ax,) = figure.axes
    lines = {line.get_label(): line for line in ax.get_lines()}
    path = lines["layer 0, head 0"].get_ydata()
    np.testing.assert_array_equal(path, [np.nan if p is None else p for p in PLACE])
    assert set(lines["layer 1, head 1"].get_ydata()) == {3}
    np.testing.assert_array_equal(lines["rightmost masked"].get_ydata(), [15] * 8)
    assert lines["commit"].get_ydata().tolist() == list(range(8, 16))
    assert lines["commit"].get_xdata().tolist() == list(range(8))
    upright = [x[0] for line in ax.get_lines() if len(set(x := list(line.get_xdata()))) == 1]
    assert upright == [3.5]
    assert legend(figure) == [
        *("prompt", "commit", "rightmost masked", "a block opens"),
        *("layer 0, head 0", "layer 1, head 1"),
    ]
    assert ax.get_ylabel().startswith("token in the end")
    assert len(figure.data) == 16 and figure.whence["settings"]["heads"] == [[0, 0], [1, 1]]


def test_paths_without_a_trace_have_positions_and_the_heads_with_most_sinks(drifting, many):
    figure = figures.sink_path(movement.sink_positions(drifting))
    (ax,) = figure.axes
    assert ax.get_ylabel() == "position"
    assert legend(figure) == [f"layer {at}, head {head}" for at in (0, 1) for head in (0, 1)]
    two = figures.sink_path(movement.sink_positions([many[0], many[-1]]), many[0])
    assert [ax.get_title(loc="left") for ax in two.axes] == ["mdm", "still"]
    assert two.axes[1].get_lines()[-1].get_ydata().tolist() == [3] * 8
    seeds = [
        planted(moving_maps([3] * 8, length=16), prompt=8, source="still", seed=n) for n in (0, 1)
    ]
    both = figures.sink_positions(movement.sink_positions(seeds))
    same = seeds[0].digest()[:12]
    titles = [ax.get_title(loc="left") for ax in both.axes[:2]]
    assert titles == [f"still, {same}, seed 0", f"still, {same}, seed 1"]
    again = figures.sink_path(movement.sink_positions(many[:3]))
    titles = [ax.get_title(loc="left") for ax in again.axes if ax.get_visible()]
    assert titles == [f"mdm, {trace.digest()[:12]}" for trace in many[:3]]


def test_survival_is_a_staircase_from_one_with_band_and_shuffled_steps(many):
    table = lifetimes.survival(many)
    figure = figures.survival(table)
    (ax,) = figure.axes
    lines = {line.get_label(): line for line in ax.get_lines()}
    rows = table[table.model == "mdm"].sort_values("age")
    np.testing.assert_allclose(lines["mdm"].get_ydata(), [1, *rows.value])
    np.testing.assert_allclose(lines["mdm"].get_xdata(), [0, *rows.age])
    assert lines["mdm"].get_drawstyle() == "steps-post"
    assert legend(figure) == ["mdm", "still", "steps shuffled", "no interval: 1–3 prompts"]
    assert ax.get_ylim()[0] == 0 and len(ax.get_lines()) == 4
    assert ax.collections[0].get_paths(), "six prompts have a band"
    with pytest.raises(SpecError, match="several values for one model and age: measure survival"):
        figures.survival(lifetimes.survival(many, by=("layer",)).pipe(lambda t: pd.concat([t, t])))


def test_likeness_by_lag_has_a_panel_for_each_quantity_and_lags_as_ticks(many):
    table = similarity.received_similarity(many, lags=[1, 2, 4, 64])
    figure = figures.by_lag(table)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["likeness of received attention", "Jensen-Shannon divergence of received"]
    ax = figure.axes[0]
    assert ax.get_xticks().tolist() == [1, 2, 4], "a lag without pairs is not drawn"
    assert [text.get_text() for text in ax.get_xticklabels()] == ["1", "2", "4"]
    still = next(line for line in ax.get_lines() if line.get_label() == "still")
    np.testing.assert_allclose(still.get_ydata(), 1, atol=tolerances.METRIC)
    assert [ax.get_ylabel() for ax in figure.axes] == ["cosine", "bits"]
    one = figures.by_lag(similarity.set_jaccard(many, lags=[1, 2]))
    assert one.axes[0].get_title(loc="left") == "overlap of sinks (Jaccard)"
    with pytest.raises(SpecError, match="no quantity 'mass': it has received_cosine, received_jen"):
        figures.by_lag(table, quantities=["mass"])


def test_a_map_of_types_has_the_commonest_and_bars_have_the_shares(drifting):
    table = headtypes.head_types(drifting)
    assert table.type.tolist() == ["block-drift", "static"] * 2
    more = table.assign(trace="other", type=["static", "static", "static", "absent"])
    third = more.assign(trace="third")
    every = pd.concat([table, more, third], ignore_index=True)
    every.attrs = table.attrs
    figure = figures.head_types(every)
    faces = mesh(figure.axes[0]).get_facecolor().reshape(2, 2, 4)
    static = TYPE_COLOURS["static"].lower()
    assert [to_hex(face) for face in faces[0]] == [static, static]
    assert faces[1, 1, 3] == 0, "not measured: the hatched ground shows"
    assert figure.axes[0].get_title(loc="left") == "mdm, commonest of 3 traces"
    widths = [bar.get_width() for bar in figure.axes[1].patches]
    np.testing.assert_allclose(widths, [5 / 6, 3 / 6, 1 / 6, 1 / 6])
    assert legend(figure) == ["static", "block-drift", "not measured"]
    alone = figures.head_types(table)
    drift = TYPE_COLOURS["block-drift"].lower()
    assert to_hex(mesh(alone.axes[0]).get_facecolor()[0]) == drift
    assert alone.whence["settings"]["limits"]["static"] == 0.9


def test_layers_are_shown_beside_what_shuffled_steps_would_share(drifting):
    table = similarity.layer_consistency(drifting)
    figure = figures.layer_consistency(table)
    left, right = figure.axes[:2]
    cells = np.ma.filled(mesh(left).get_array().reshape(2, 2).astype(float), np.nan)
    np.testing.assert_array_equal(cells, [[np.nan, 1], [1, np.nan]])
    row = table[(table.layer == 0) & (table.other_layer == 1) & (table.quantity == "jaccard")]
    beyond = np.ma.filled(mesh(right).get_array().reshape(2, 2).astype(float), np.nan)
    np.testing.assert_allclose(beyond[0, 1], 1 - row.null.item())
    assert legend(figure) == ["the same layer, or no sink"]
    assert left.get_xlabel() == "other layer" and left.get_ylabel() == "layer"
    low, high = mesh(right).get_clim()
    assert low == -high
    same = figures.layer_consistency(table, quantity="same_greatest")
    assert not np.ma.is_masked(mesh(same.axes[0]).get_array())
    with pytest.raises(SpecError, match="no quantity 'kappa': it has jaccard, same_greatest"):
        figures.layer_consistency(table, quantity="kappa")


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda t: figures.sink_positions(t, head=9), "head 9 is not in the table: it has 0 to 1"),
        (lambda t: figures.sink_path(t, heads=[(0, 7)]), r"heads=\[\(0, 7\)\]: not in the table"),
        (lambda t: figures.sink_path(t, heads=[]), "0 heads cannot be told apart: name 1 to 7"),
        (lambda t: figures.survival(t), "no column age, value: its columns are model"),
        (lambda t: figures.head_types(t), "no column type"),
        (lambda t: figures.layer_consistency(t), "no column other_layer"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_what_can(drifting, draw, says):
    with pytest.raises(SpecError, match=says):
        draw(movement.sink_positions(drifting))
