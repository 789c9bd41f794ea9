"""Figures of retrieval heads: a cell for each head, the mean of each layer, its null."""

import numpy as np
import pandas as pd
import pytest

from anchorwatch.errors import SpecError
from anchorwatch.figures import retrieval as figures
from anchorwatch.figures.style import DIFFERENCE, MAGNITUDE
from anchorwatch.metrics import retrieval
from synthetic_traces import planted, random_maps


@pytest.fixture(scope="module")
def table():
    regions = {"gold": [1, 2, 3], "d1": [4, 5, 6]}
    found = []
    for number in range(5):
        maps = random_maps(np.random.default_rng(number), (3, 2, 4, 12))
        ids = range(100 * number + 1, 100 * number + 13)
        for source in ("one", "two"):
            found.append(planted(maps, prompt=9, tokens=ids, regions=regions, source=source))
    return retrieval.retrieval_heads(found, distractors=["d1"])


def test_the_map_has_a_cell_for_each_head_and_means_beside_it(table):
    figure = figures.retrieval_map(table, quantity="hit")
    beside, ax = figure.axes[:2]
    part = table[(table.quantity == "hit") & (table.model == "one")]
    wide = part.pivot(index="layer", columns="head", values="value").to_numpy()
    mesh = ax.collections[0]
    np.testing.assert_allclose(np.asarray(mesh.get_array()).reshape(2, 4), wide)
    assert mesh.get_cmap().name == MAGNITUDE and mesh.get_clim()[0] == 0
    assert ax.get_title(loc="left") == "one" and ax.get_xlabel() == "head"
    null, means = beside.get_lines()
    np.testing.assert_allclose(means.get_xdata(), wide.mean(axis=1))
    np.testing.assert_allclose(means.get_ydata(), [0, 1])
    np.testing.assert_allclose(null.get_xdata(), [3 / 12, 3 / 12])
    assert beside.get_ylim() == ax.get_ylim() == (1.5, -0.5)
    assert len(figure.whence["traces"]) == 10
    assert figure.whence["settings"]["quantity"] == "hit"
    bars = [
        one for one in figure.axes if one.get_ylabel() == "share of rows that look at gold most"
    ]
    assert len(bars) == 2, "a bar for each model"


def test_the_contrast_has_its_middle_at_no_difference(table):
    figure = figures.retrieval_contrast(table)
    mesh = figure.axes[1].collections[0]
    low, high = mesh.get_clim()
    part = table[table.quantity == "evidence_in_top_minus_distractors"]
    assert low == -high == -np.abs(part.value).max()
    assert mesh.get_cmap().name == DIFFERENCE
    names = [text.get_text() for text in figure.drawn.legends[0].get_texts()]
    assert names == ["null"]
    assert figure.whence["figure"] == "retrieval_contrast"


def test_absent_heads_are_hatched_and_said(table):
    part = table[(table.quantity == "hit") & (table.model == "one")].copy()
    part.loc[part.index[0], "value"] = np.nan
    figure = figures.retrieval_map(part, quantity="hit")
    names = [text.get_text() for text in figure.drawn.legends[0].get_texts()]
    assert names == ["null", "absent"]


def test_what_cannot_be_drawn(table):
    with pytest.raises(SpecError, match="no quantity 'heat': it has copy, evidence_mass"):
        figures.retrieval_map(table, quantity="heat")
    with pytest.raises(SpecError, match="auroc is absent in every cell: choose another of copy"):
        figures.retrieval_map(table, quantity="auroc")
    alone = table[~table.quantity.str.endswith("_minus_distractors")]
    with pytest.raises(
        SpecError, match=r"retrieval_heads\(\.\.\., distractors=\[\.\.\.\]\) adds it"
    ):
        figures.retrieval_contrast(alone)
    with pytest.raises(SpecError, match="the table has no column head"):
        figures.retrieval_map(pd.DataFrame(table.drop(columns="head")))
