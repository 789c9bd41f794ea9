"""Figures of sink tables: marks, limits, labels, and where they come from."""

import numpy as np
import pytest

import tolerances
from anchorwatch.errors import SpecError
from anchorwatch.figures import sink_strength as figures
from anchorwatch.metrics import sink_strength as metrics
from synthetic_traces import column, planted, uniform


@pytest.fixture(scope="module")
def traces():
    """Six prompts of a model with a sink in layer 1, and one of an indifferent causal model."""
    found = []
    for number in range(6):
        maps = uniform(3, 2, 2, 20)
        maps[:, 1] = column(20, 3, 0.5 + 0.05 * number)
        ids = range(100 * number + 1, 100 * number + 21)
        found.append(planted(maps, prompt=17, tokens=ids, source="mdm"))
    causal = uniform(3, 2, 2, 20, causal=True)
    return [*found, planted(causal, prompt=17, visibility="causal", source="arm")]


def test_a_profile_draws_each_models_line_band_and_null(traces):
    table = metrics.absorption(traces, ("first", "top1"))
    figure = figures.profile(table)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["first", "top1"]
    top = figure.axes[1]
    mdm = next(line for line in top.get_lines() if line.get_label() == "mdm")
    expected = table[(table.model == "mdm") & (table.quantity == "top1")]
    np.testing.assert_allclose(mdm.get_ydata(), expected.value)
    np.testing.assert_allclose(mdm.get_xdata(), [0, 1])
    assert mdm.get_ydata()[1] == pytest.approx(0.625, abs=tolerances.METRIC)
    assert top.get_ylim()[0] == 0 and top.get_xlabel() == "layer"
    names = [text.get_text() for text in figure.drawn.legends[0].get_texts()]
    assert names == ["arm", "mdm", "null", "no interval: 1 prompt"]
    assert len(figure.whence["traces"]) == 7
    assert figure.whence["settings"]["metric"] == "absorption"


def test_a_head_grid_has_a_cell_for_every_layer_and_head(traces):
    figure = figures.head_grid(metrics.sinks(traces, by=("layer", "head")))
    assert [ax.get_title(loc="left") for ax in figure.axes[:2]] == ["mdm", "arm"]
    cells = figure.axes[0].collections[0].get_array()
    np.testing.assert_allclose(
        np.asarray(cells), [[0.05, 0.05], [0.625, 0.625]], atol=tolerances.METRIC
    )


def test_the_epsilon_curve_marks_the_papers_eps(traces):
    figure = figures.epsilon_curve(metrics.epsilon_curve(traces, [0, 1, 3, 8]))
    (ax,) = figure.axes
    assert ax.get_xlim() == (0, 8)
    assert [text.get_text() for text in ax.texts] == ["eps = 3"]
    mdm = next(line for line in ax.get_lines() if line.get_label() == "mdm")
    assert (np.diff(mdm.get_ydata()) >= 0).all() and mdm.get_ydata()[2] == 1 - 0.5 / 20


def test_the_histogram_has_an_outline_and_a_null_for_each_model(traces):
    figure = figures.score_histogram(metrics.score_histogram(traces, [0, 0.5, 2, 8, 16]))
    (ax,) = figure.axes
    names = [patch.get_label() for patch in ax.patches]
    assert names == ["arm", "null of arm", "mdm", "null of mdm"]
    mdm = ax.patches[2].get_data()
    assert mdm.values.sum() == pytest.approx(1)
    assert mdm.edges.tolist() == [0, 0.5, 2, 8, 16]


def test_a_dose_response_has_an_arm_for_each_line():
    import pandas as pd

    table = pd.DataFrame({"k": [1, 5, 1, 5], "arm": ["sinks", "sinks", "random", "random"]})
    table = table.assign(value=[0.2, 0.6, 0.1, 0.1], low=0.05, high=0.7, n=9)
    figure = figures.dose_response(table, unit="answers changed")
    assert figure.axes[0].get_ylabel() == "answers changed"
    assert [line.get_label() for line in figure.axes[0].get_lines()] == ["random", "sinks"]


def test_a_quantity_that_is_not_there_is_named_with_those_that_are(traces):
    table = metrics.sinks(traces, by=("layer", "head"))
    with pytest.raises(SpecError, match="no quantity 'mass': it has count, incidence, absorbed"):
        figures.head_grid(table, quantity="mass")
    with pytest.raises(SpecError, match="no column eps: its columns are model, layer, head"):
        figures.epsilon_curve(table)
