"""Which keys are sinks: loops over cells, and planted columns."""

import numpy as np
import pytest
from hypothesis import given

from anchorwatch.errors import SpecError
from anchorwatch.metrics import sink_table as metrics
from anchorwatch.metrics.layer_slices import iter_layers
from anchorwatch.metrics.sink_rules import rulli
from synthetic_traces import RULE, assert_same, column, planted, traces_and_maps, uniform


def loop(layer, rule, group="all"):
    """{(position, token id): (cells, sum of shares, sum of nulls)} by loops over the labels."""
    labels, shares, null = layer.labels(rule, group), layer.shares(group), layer.null(group)
    cells: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for step, head, key in np.ndindex(*labels.shape):
        if labels[step, head, key]:
            pair = (key, int(layer.trace.canvas[step, key]))
            cells.setdefault(pair, []).append((shares[step, head, key], null[step, 0, key]))
    return cells


@given(traces_and_maps())
def test_rows_are_what_loops_over_cells_count(made):
    trace, _ = made
    table = metrics.sink_keys(trace, RULE, most=1000)
    for layer in iter_layers(trace):
        cells, rows = loop(layer, RULE), table[table.layer == layer.index]
        assert len(rows) == len(cells)
        assert (np.diff(rows.frequency) <= 0).all()
        texts = {pair: trace.token(pair[1]) for pair in cells}
        for row in rows.itertuples():
            (pair,) = [p for p in cells if (p[0], texts[p]) == (row.position, row.token)]
            share, null = np.mean(cells[pair], axis=0, dtype=np.float64)
            measured = layer.is_measured().sum()
            assert_same(row.frequency, len(cells[pair]) / measured)
            assert_same(row.share, share)
            assert_same(row.null, null)
            assert_same(row.lift, row.share / row.null)


def test_a_planted_sink_is_named_with_its_token_before_and_after_it_is_written():
    maps = np.broadcast_to(column(10, 5, 0.6), (4, 2, 3, 10, 10)).copy()
    trace = planted(maps, prompt=4, texts={6: "."})  # position 5 is committed at step 1
    table = metrics.sink_keys(trace, rulli(3))
    layer = table[table.layer == 1]
    assert layer[["position", "token", "frequency"]].values.tolist() == [
        [5, "<mask>", 0.5],
        [5, ".", 0.5],
    ]
    for row in layer.itertuples():
        assert_same(row.share, np.float32(0.6))
        assert_same(row.lift, np.float32(0.6) / 0.1)


def test_even_attention_has_no_rows_and_most_limits_them():
    trace = planted(uniform(3, 2, 2, 8), prompt=2)
    assert metrics.sink_keys(trace, rulli(3)).empty
    maps = np.broadcast_to(column(10, 5, 0.6), (4, 1, 1, 10, 10)).copy()
    assert len(metrics.sink_keys(planted(maps, prompt=4), rulli(3), most=1)) == 1
    with pytest.raises(SpecError, match="whole number above 0"):
        metrics.sink_keys(trace, most=0)
