"""Attention rollout between regions, with the nulls and the warning it cannot be read without.

A product of many positive stochastic matrices has nearly equal rows, a causal one sends everything
to the first position even without a sink, and a pooled one follows lengths. So every rollout comes
with its Dobrushin coefficient, which is 0 where all rows are the same, and with what uniform
attention under the same visibility and lengths would have given.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy  # its submodules load when they are first used

from anchorwatch.errors import AnchorwatchWarning, SpecError, TraceError
from anchorwatch.metrics.flow import (
    REGIONS,
    Layout,
    check_regions_in_by,
    null_flows,
    region_layouts,
)
from anchorwatch.metrics.layer_slices import Traces, require_field
from anchorwatch.metrics.null import count_extra_keys, layer_window, visible_spans
from anchorwatch.metrics.registry import custom_metric
from anchorwatch.metrics.table import Quantity, mean, tabulate
from anchorwatch.trace.trace import ABSENT, Trace

COLLAPSED = 0.05
"""A Dobrushin coefficient below which rows are the same for every purpose."""
BESIDE = ("length_null", "sink_null", "dobrushin")
"""Columns of a rollout's table besides those of every table."""


@custom_metric()
def rollout(
    traces: Traces,
    *,
    sink_share: float | None = None,
    sink_at: int = 0,
    by: Sequence[str] = ("layer", *REGIONS),
) -> pd.DataFrame:
    """Rollout from region to region, up to and with each layer: X <- (X + mean_h A X) / 2.

    `null` is the rollout of uniform attention under the same visibility and lengths (anchors
    that the probe hid are hidden there too), `length_null` the share of positions in the region,
    and `sink_null` that of uniform attention whose rows give `sink_share` to the position
    `sink_at`. `dobrushin` says how much rows still differ. Dims: step (or progress), layer and both
    regions; without layer it is the rollout through all of them.
    """
    check_regions_in_by(by)
    plant = _planted_column(sink_share, sink_at)
    parts, layouts = [], region_layouts(traces)
    for trace, regions in layouts:
        values = require_field(trace, "region_rollout").values.astype(np.float64)
        hidden = _hidden_by_the_probe(trace)
        if plant is not None and sink_at in hidden:
            raise SpecError(
                f"position {sink_at} was hidden from the rollout: plant a sink elsewhere"
            )
        # A region without positions has no rollout.
        values = np.where(regions.lengths[:, None, None, :] > 0, values, np.nan)
        null = _even_regions(trace, regions, hidden)
        sunk = None if plant is None else _even_regions(trace, regions, hidden, plant)
        lengths = _length_shares(trace, regions, hidden)
        parts.append((trace, _quantities(values, null, lengths, sunk, regions, by)))
    about = {"metric": "rollout", "sink_share": sink_share, "sink_at": sink_at}
    return _table(parts, by, about | {"regions": list(layouts[0][1].names)})


@custom_metric()
def published_rollout(traces: Traces, *, by: Sequence[str] = ("layer", *REGIONS)) -> pd.DataFrame:
    """The rollout as 2601.07894 published it: pooled to regions before the product.

    Head means are summed to regions, rows normalised over regions, B = (P + I) / 2, and B of every
    layer multiplied. Read it beside `null`, the same recipe on uniform attention: with 13
    regions, 32 causal layers and no sink at all the first token ends with 0.72 to 0.89.
    """
    check_regions_in_by(by)
    parts, layouts = [], region_layouts(traces)
    for trace, regions in layouts:
        flow = require_field(trace, "region_flow").values
        pooled = flow.mean(axis=2, dtype=np.float64)
        expected = np.stack(null_flows(trace, regions), axis=1)
        lengths = _length_shares(trace, regions, (), within=True)
        values, null = (_multiply_layers(flows, regions) for flows in (pooled, expected))
        parts.append((trace, _quantities(values, null, lengths, None, regions, by)))
    about = {"metric": "published_rollout", "regions": list(layouts[0][1].names)}
    return _table(parts, by, about)


def _multiply_layers(pooled: np.ndarray, regions: Layout) -> np.ndarray:
    """[step, layer, row, column] products of (P + I) / 2; NaN from the first absent layer on."""
    exists = regions.lengths > 0
    same = np.eye(len(regions.names))
    rolled = np.empty(pooled.shape)
    product = np.broadcast_to(same, (len(pooled), *same.shape))
    for layer in range(pooled.shape[1]):
        # Rows are normalised over regions; a region without queries keeps itself.
        whole = pooled[:, layer].sum(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            rows = np.where(exists[:, :, None], pooled[:, layer] / whole, same)
            product = (rows + same) / 2 @ product
        rolled[:, layer] = product
    return np.where(exists[:, None, :, None] & exists[:, None, None, :], rolled, np.nan)


@dataclass(frozen=True, eq=False)
class TokenRollout:
    """The rollout of one step through all layers, token by token; NaN where there is no token."""

    shares: np.ndarray
    """[query, key]; with what a sink token holds, a row sums to one."""
    null: np.ndarray
    """[query, key] of uniform attention under the same visibility."""
    dobrushin: float
    """0 where all rows are the same, 1 where two have nothing in common."""
    trace: Trace
    step: int
    hidden: tuple[int, ...]

    def regions(self) -> pd.DataFrame:
        """Pooled as `rollout` pools: mean over a region's queries, sum over the other's keys."""
        ((trace, regions),) = region_layouts(self.trace)
        exists = trace.role[self.step] != ABSENT
        onto = regions.onto[exists]
        values, null = (
            _pool_rows(rows[np.ix_(exists, exists)] @ onto, onto)
            for rows in (self.shares, self.null)
        )
        values = np.where(onto.any(axis=0), values, np.nan)
        lengths = _length_shares(trace, regions, self.hidden)[self.step]
        quantities = [
            mean(
                name, REGIONS, np.where(np.isnan(values), np.nan, shares), expected, regions.labels
            )
            for name, shares, expected in (
                ("rollout", values, null),
                ("length_null", lengths, None),
                ("dobrushin", self.dobrushin, None),
            )
        ]
        about = {"metric": "token_rollout", "step": self.step, "hidden": list(self.hidden)}
        about["regions"] = list(regions.names)
        return _spread(tabulate([(trace, quantities)], REGIONS, about=about))


def token_rollout(
    trace: Trace, step: int, *, hidden: Sequence[int] = (), residual: float = 0.5
) -> TokenRollout:
    """X <- residual X + (1 - residual) mean_h A X over all layers of one step, from `pattern`.

    Columns of `hidden` positions are taken out and rows renormalised, head by head; a row with
    nothing left to look at keeps what it has.
    """
    # 1. Maps of every head of the step, and which columns are hidden.
    picks = _picks(trace, step)
    length = int(np.count_nonzero(trace.role[step] != ABSENT))
    places = [
        position for position in _checked_places(hidden, trace.canvas.shape[1]) if position < length
    ]
    if not 0 <= residual < 1:
        raise SpecError(f"residual={residual!r} is not at least 0 and below 1: 0.5 is the usual")
    kept = np.ones(length)
    kept[places] = 0
    # 2. Layer by layer: the rollout, and the same of uniform attention.
    maps, state, null = require_field(trace, "pattern"), np.eye(length), np.eye(length)
    for layer, rows in enumerate(picks):
        heads = maps[rows].values[:, :length, :length].astype(np.float64)
        if np.isnan(heads).any():
            row = int(np.argwhere(np.isnan(heads))[0][1])
            raise TraceError(f"row {row} of layer {layer} at step {step} is absent: {_again(step)}")
        added = int(count_extra_keys(trace, layer)[step])
        attention = _without(heads, kept, added > 0).mean(axis=0)
        state = residual * state + (1 - residual) * (attention @ state)
        even = evenly(null, visible_spans(trace, step, layer_window(trace, layer)), kept, added)
        null = residual * null + (1 - residual) * even
    # 3. How much rows still differ; below the limit nothing can be read from it.
    apart = float(dobrushin(state))
    if apart < COLLAPSED:
        _warn(apart, "", up=3)
    # 4. Back onto the whole canvas, NaN where there is no token.
    whole = np.full((2, *[trace.canvas.shape[1]] * 2), np.nan)
    whole[:, :length, :length] = state, null
    return TokenRollout(whole[0], whole[1], apart, trace, step, tuple(places))


def dobrushin(rows: np.ndarray) -> np.ndarray:
    """Half the greatest L1 distance between two rows of [..., row, column]; absent rows left out.

    What a row lacks to one (a sink token, positions outside every region) is a column of its own.
    NaN where there are fewer than two rows.
    """
    flat = rows.reshape(-1, *rows.shape[-2:])
    coefficients = np.full(len(flat), np.nan)
    for index, matrix in enumerate(flat):
        known = matrix[~np.isnan(matrix).all(axis=-1)]
        if len(known) > 1:
            known = np.nan_to_num(known)
            # What a row lacks to one, in a column of its own.
            whole = np.column_stack([known, 1 - known.sum(axis=-1)])
            coefficients[index] = scipy.spatial.distance.pdist(whole, "cityblock").max() / 2
    return coefficients.reshape(rows.shape[:-2])


def evenly(
    state: np.ndarray,
    spans: tuple[np.ndarray, np.ndarray],
    kept: np.ndarray,
    added: int,
    plant: tuple[int, float] | None = None,
) -> np.ndarray:
    """Uniform attention times `state` [key, column], by differences of cumulative sums.

    `spans` are those of `visible_spans`; keys not `kept` are taken out, and a row with none left
    keeps what it has. With `plant` (position, share) rows that may look there give it that share.
    """
    first, last = spans
    sums = np.concatenate([np.zeros((1, state.shape[1])), np.cumsum(state * kept[:, None], axis=0)])
    counts = np.concatenate([[0.0], np.cumsum(kept)])
    # Sum of the state over each row's span, as a difference of running sums.
    total = sums[last] - sums[first]
    count = (counts[last] - counts[first])[:, None] + added
    mixed = np.where(count > 0, total / np.maximum(count, 1), state)
    if plant is None or plant[0] >= len(state):
        return mixed
    position, share = plant
    # The planted position gets its share, the rest of the span divides what is left.
    rest = (total - state[position]) / np.maximum(count - 1, 1)
    sunk = np.where(count > 1, share * state[position] + (1 - share) * rest, state[position])
    return np.where(((first <= position) & (position < last))[:, None], sunk, mixed)


def _even_regions(
    trace: Trace,
    regions: Layout,
    hidden: tuple[int, ...],
    plant: tuple[int, float] | None = None,
) -> np.ndarray:
    """[step, layer, query_region, key_region] rollout of uniform attention."""
    model = trace.manifest["model"]
    windows = [layer_window(trace, layer) for layer in range(model["layers"])]
    sizes = np.count_nonzero(trace.role[:-1] != ABSENT, axis=1)
    added = np.stack([count_extra_keys(trace, layer) for layer in range(len(windows))])
    rolled = np.empty((len(sizes), len(windows), *[len(regions.names)] * 2))
    # Steps with the same canvas and added keys have the same rollout.
    for length, *more in np.unique(np.vstack([sizes, added]), axis=1).T:
        steps = np.flatnonzero((sizes == length) & (more == added.T).all(axis=1))
        spans = {window: visible_spans(trace, steps[0], window) for window in set(windows)}
        kept = np.ones(length)
        kept[[position for position in hidden if position < length]] = 0
        state = onto = regions.onto[:length]
        for layer, window in enumerate(windows):
            even = evenly(state, spans[window], kept, more[layer], plant)
            state = (state + even) / 2
            rolled[steps, layer] = _pool_rows(state, onto)
    return rolled


def _pool_rows(state: np.ndarray, onto: np.ndarray) -> np.ndarray:
    """[region, column] mean over each region's rows; NaN where it has none."""
    lengths = onto.sum(axis=0)[:, None]
    return np.where(lengths > 0, onto.T @ state / np.maximum(lengths, 1), np.nan)


def _length_shares(
    trace: Trace, regions: Layout, hidden: tuple[int, ...], *, within: bool = False
) -> np.ndarray:
    """[step, region] share of the positions that may be looked at, or of those in regions."""
    exists = trace.role[:-1] != ABSENT
    exists[:, [position for position in hidden if position < exists.shape[1]]] = False
    sizes = exists @ regions.onto
    whole = sizes.sum(axis=1) if within else exists.sum(axis=1) + count_extra_keys(trace)
    known = (regions.lengths > 0) & (whole > 0)[:, None]
    return np.where(known, sizes / np.maximum(whole, 1)[:, None], np.nan)


def _hidden_by_the_probe(trace: Trace) -> tuple[int, ...]:
    for probe in trace.manifest.get("probes", []):
        if probe["name"] == "region_rollout":
            return tuple(probe["hidden"])
    return ()


def _quantities(
    values: np.ndarray,
    null: np.ndarray,
    lengths: np.ndarray,
    sunk: np.ndarray | None,
    regions: Layout,
    by: Sequence[str],
) -> list[Quantity]:
    """The rollout and the columns beside it, over the same cells."""
    # 1. The rollout, its nulls and the Dobrushin coefficient, all [step, layer, query, key].
    columns = {
        "rollout": values,
        "length_null": np.broadcast_to(lengths[:, None, None, :], values.shape),
        "sink_null": np.full(values.shape, np.nan) if sunk is None else sunk,
        "dobrushin": np.broadcast_to(dobrushin(values)[..., None, None], values.shape),
    }
    # 2. The same cells are absent in all of them.
    absent = np.isnan(values)
    dims: tuple[str, ...] = ("step", "layer", *REGIONS)
    last: tuple[slice | int, ...] = (slice(None),)
    if "layer" not in by:  # a mean over depths of what adds up over depth means nothing
        measured = np.flatnonzero(~absent.all(axis=(0, 2, 3)))
        last = (slice(None), int(measured[-1]) if len(measured) else 0)
        dims = ("step", *REGIONS)
    # 3. Only the rollout itself has a null column.
    return [
        mean(
            name,
            dims,
            np.where(absent, np.nan, column)[last],
            null[last] if name == "rollout" else None,
            regions.labels,
        )
        for name, column in columns.items()
    ]


def _table(
    parts: list[tuple[Trace, list[Quantity]]], by: Sequence[str], about: Mapping[str, Any]
) -> pd.DataFrame:
    table = _spread(tabulate(parts, by, about=about))
    apart = table["dobrushin"]
    if (apart < COLLAPSED).any():
        depth = table.loc[apart < COLLAPSED, "layer"].min() if "layer" in table else None
        _warn(float(apart.min()), "" if depth is None else f" from layer {depth} on", up=4)
    return table


def _spread(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the rollout, with the other quantities as columns."""
    keys = list(table.columns[: table.columns.get_loc("quantity")])
    wide = table[table["quantity"] == "rollout"]
    for name in BESIDE:
        if name in set(table["quantity"]):
            column = table.loc[table["quantity"] == name, [*keys, "value"]]
            wide = wide.merge(column.rename(columns={"value": name}), on=keys, how="left")
    wide.attrs = table.attrs
    return wide.reset_index(drop=True)


def _warn(apart: float, where: str, *, up: int) -> None:
    warnings.warn(
        f"the rows of the rollout have collapsed{where}: their Dobrushin coefficient falls to "
        f"{apart:.2g}, below {COLLAPSED:g}, and differences between rows mean nothing; compare one "
        "row with its null, or read region_flow",
        AnchorwatchWarning,
        stacklevel=up,
    )


def _planted_column(share: float | None, position: int) -> tuple[int, float] | None:
    if share is None:
        return None
    if not 0 <= share <= 1:
        raise SpecError(f"sink_share={share!r} is no share: expected a number from 0 to 1")
    if not isinstance(position, int | np.integer) or position < 0:
        raise SpecError(
            f"sink_at={position!r} is no position: expected a whole number of at least 0"
        )
    return int(position), float(share)


def _checked_places(hidden: Sequence[int], positions: int) -> list[int]:
    for position in hidden:
        if not isinstance(position, int | np.integer) or not 0 <= position < positions:
            raise SpecError(f"hidden={list(hidden)}: the trace has positions 0 to {positions - 1}")
    return sorted({int(position) for position in hidden})


def _without(heads: np.ndarray, kept: np.ndarray, added: bool) -> np.ndarray:
    """Maps [head, query, key] without some columns, rows renormalised."""
    if kept.all():
        return heads
    left = heads * kept
    total = left.sum(axis=-1, keepdims=True)
    if added:  # their columns are not in the map
        total += 1 - heads.sum(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total > 0, left / total, np.eye(len(kept)))


def _picks(trace: Trace, step: int) -> list[np.ndarray]:
    """Which maps of `pattern` are each layer's; all layers and heads must be there."""
    if not 0 <= step < trace.num_steps:
        raise SpecError(f"step {step} is not in the trace: it has 0 to {trace.num_steps - 1}")
    called = f"the trace {trace.digest()[:12]}"
    if "pattern" not in trace.fields:
        raise TraceError(f"{called} has no 'pattern': {_again(step)}")
    steps, layer, head = (trace[f"pick_{name}"].values for name in ("step", "layer", "head"))
    model, chosen = trace.manifest["model"], []
    for index in range(model["layers"]):
        picks = np.flatnonzero((steps == step) & (layer == index))
        if lost := sorted(set(range(model["heads"])) - set(head[picks].tolist())):
            raise TraceError(
                f"{called} lacks the map of step {step}, layer {index}, head {lost[0]}: "
                f"a rollout goes through all of them; {_again(step)}"
            )
        chosen.append(picks)
    return chosen


def _again(step: int) -> str:
    call = f"aw.replay(model, trace, probes=[aw.probes.pattern(steps=[{step}])])"
    return f"measure them afterwards with {call}"
