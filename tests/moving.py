"""Traces whose sinks move, the history of every head by loops, and rows of tables."""

import numpy as np
import pytest
from hypothesis import strategies as st

import tolerances
from anchorwatch.metrics.null import group_queries
from anchorwatch.metrics.sink_rules import rulli
from planted import column, planted, random_maps, uniform
from references import movement as slow

EPS = 1.3571
RULE = rulli(EPS)


@st.composite
def made_of_maps(draw, most_steps=5):
    """(trace, maps): random maps that hold a while, some steps and layers absent."""
    causal = draw(st.booleans())
    steps, layers, heads = draw(st.integers(1, most_steps)), draw(st.integers(1, 2)), 2
    prompt = draw(st.integers(1, 7))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    maps = random_maps(generator, (steps, layers, heads, prompt + steps), causal=causal)
    for step in range(1, steps):  # without it hardly a position is held
        for head in range(heads):
            if generator.random() < 0.4:
                maps[step, :, head] = maps[step - 1, :, head]
    if steps > 2 and draw(st.booleans()):
        maps[draw(st.integers(0, steps - 1)), draw(st.integers(0, layers - 1))] = np.nan
    visibility = "causal" if causal else "bidirectional"
    return planted(maps, prompt=prompt, visibility=visibility), maps


def told(trace, maps, group="all"):
    """(layer, head, history) of every head."""
    for layer in range(maps.shape[1]):
        for head in range(maps.shape[2]):
            rows = [
                np.flatnonzero(group_queries(trace, s, group)).tolist() for s in range(len(maps))
            ]
            yield layer, head, slow.history(trace, maps, layer, head, rows.__getitem__, EPS)


def row(table, quantity, **cell):
    """The one row of a cell, whose table is turned into a lookup once."""
    names = tuple(sorted(cell))
    kept = table.attrs.setdefault("rows", {})
    if names not in kept:
        columns = [table[name].tolist() for name in (*names, "quantity")]
        kept[names] = dict(zip(zip(*columns, strict=True), table.itertuples(), strict=True))
        assert len(kept[names]) == len(table), "a cell has several rows"
    return kept[names][(*(cell[name] for name in names), quantity)]


def same(value, twin):
    assert value == pytest.approx(twin, abs=tolerances.METRIC, nan_ok=True)


def with_blocks(trace, block):
    trace._manifest["decoding"]["block"] = block
    return trace


def moving(place, *, length, share=0.9, heads=1):
    """Maps of one layer whose heads all have a column at place[step]; None: indifferent."""
    maps = uniform(len(place), 1, heads, length)
    for step, key in enumerate(place):
        if key is not None:
            maps[step] = column(length, key, share)
    return maps
