"""Where the greatest key is, step by step, and what a shuffle of the steps would make of it.

A path is [head, step] positions, NaN where a head has none. The time-shuffle null keeps which steps
have a position and deals the positions out to them anew; its expectations are closed forms in the
occupancy, the number of steps that each position holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from anchorwatch.metrics.cells import Quantity, mean
from anchorwatch.metrics.reading import LayerSlice, Traces
from anchorwatch.metrics.sink_rules import Rule
from anchorwatch.metrics.tables import NUMBERS, Finish, beside, check_dimensions, tabulate
from anchorwatch.trace.provenance import origin
from anchorwatch.trace.trace import Trace

Parts = list[tuple[Trace, list[Quantity]]]

LAGS = (1, 2, 4, 8, 16, 32)
CHANCE = "chance of "
"""What the name of a quantity begins with that goes into the column `chance`."""
ROUNDING = 6
"""Decimals of a centroid as a share of the canvas: float32 sums differ beyond them."""


def sink_path(slab: LayerSlice, rule: Rule, group: str = "all") -> np.ndarray:
    """[head, step] position of the greatest key where the rule calls it a sink, else NaN."""
    place = slab.sink_top(rule, group).T
    return np.where(place >= 0, place, np.nan)


def any_path(slab: LayerSlice, group: str = "all") -> np.ndarray:
    """[head, step] position of the greatest key, sink or not; NaN where nothing was measured."""
    place = slab.top(group)[0].T
    return np.where(place >= 0, place, np.nan)


def centroid_path(shares: np.ndarray) -> np.ndarray:
    """[head, step] mean position weighted by [step, head, key] shares, NaN where absent."""
    keys = shares.shape[-1]
    places = (np.arange(keys) / keys).astype(shares.dtype)
    whole = shares @ np.ones_like(places)
    if np.isnan(whole).any():  # a copy without absent keys, only where there are any
        shares = np.nan_to_num(shares)
        whole = shares @ np.ones_like(places)
    with np.errstate(invalid="ignore"):
        centre = (shares @ places) / whole
    return np.round(centre.T.astype(np.float64), ROUNDING) * keys


def occupancy(path: np.ndarray, positions: int) -> np.ndarray:
    """[head, position] number of steps at which the path is there."""
    head, step = np.nonzero(~np.isnan(path))
    flat = head * positions + path[head, step].astype(np.int64)
    return np.bincount(flat, minlength=len(path) * positions).reshape(len(path), positions)


def shuffled_jump(held: np.ndarray) -> np.ndarray:
    """[head] chance that two different steps have different positions; NaN for fewer than two."""
    count = held.sum(axis=-1).astype(np.float64)
    same = np.sum(held * (held - 1.0), axis=-1)
    return 1 - _over(same, count * (count - 1))


def shuffled_displacement(held: np.ndarray) -> np.ndarray:
    """[head] mean distance between the positions of two different steps."""
    count = held.sum(axis=-1).astype(np.float64)
    below = np.cumsum(held, axis=-1, dtype=np.float64)
    # each unit of the axis is crossed by the pairs with one end on either side of it
    crossed = np.sum(below * (count[..., None] - below), axis=-1)
    return _over(2 * crossed, count * (count - 1))


def steps_between(quantity: Quantity, first: int) -> Quantity:
    """Without counting as missing the first steps, which have no step so far before them."""
    missing = quantity.missing
    assert missing is not None
    axis = quantity.dims.index("step")
    there = np.arange(missing.shape[axis]) >= first
    shape = [-1 if dim == axis else 1 for dim in range(missing.ndim)]
    return replace(quantity, missing=missing * there.reshape(shape))


def chance(name: str, dims: tuple[str, ...], value: np.ndarray) -> Quantity:
    """What goes into the column `chance` beside the quantity of this name."""
    return mean(CHANCE + name, dims, value)


def along(dim: str, by: Sequence[str]) -> list[str]:
    """What a table is split by that always has this dim, asked for or not."""
    return [dim, *(one for one in check_dimensions(by) if one != dim)]


def compare_with_chance(
    measure: Callable[[Traces], Parts],
    traces: Traces,
    by: Sequence[str],
    *,
    finish: Finish | None = None,
    about: Mapping[str, Any],
    others: Mapping[str, Traces | None],
) -> pd.DataFrame:
    """The table of the traces, with a column for chance and one for each of the others.

    A column is NaN, absent, where no such traces are given.
    """
    parts = measure(traces)
    given = {name: None if other is None else measure(other) for name, other in others.items()}
    said = dict(about) | {
        name: [origin(trace)["digest"] for trace, _ in found] if found else None
        for name, found in given.items()
    }
    table = tabulate(name_chances(parts, chances=False), by, finish, said)
    values = {
        name: tabulate(name_chances(found, chances=False), by, finish) if found else None
        for name, found in given.items()
    }
    attrs, table = table.attrs, beside(table, values)
    by_chance = name_chances(parts, chances=True)
    if any(quantities for _, quantities in by_chance):
        keys = [name for name in table.columns if name not in (*NUMBERS, *values)]
        found = tabulate(by_chance, by)[[*keys, "value"]].rename(columns={"value": "chance"})
        found["quantity"] = found["quantity"].str.removeprefix(CHANCE)
        table = table.merge(found, on=keys, how="left")
    table = table.infer_objects()
    table.attrs = attrs
    return table


def name_chances(parts: Parts, *, chances: bool) -> Parts:
    return [
        (trace, [q for q in quantities if q.name.startswith(CHANCE) == chances])
        for trace, quantities in parts
    ]


def _over(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    return np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0)
