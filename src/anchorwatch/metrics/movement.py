"""Movement of the top sink: where it is, how often and how far it jumps, which way it goes.

`null` is what the same positions would give if the steps were shuffled, unless a docstring says
otherwise; all are exact expectations. Statistics are over the steps at which a head has a sink, the
others are counted as missing; names with `_any` are over the greatest key, sink or not. Positions
are given as shares of the canvas where models of different lengths are to be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from anchorwatch.errors import TraceError
from anchorwatch.generation.decoding import Blocks
from anchorwatch.metrics.layer_slices import LayerSlice, Traces, check_traces
from anchorwatch.metrics.registry import Reading, custom_metric, metric, read_quantities, read_rows
from anchorwatch.metrics.sink_rules import Rule, rulli
from anchorwatch.metrics.stats.ranks import kendall, theil_sen
from anchorwatch.metrics.table import Cell, Quantity, chance, mean, ratio
from anchorwatch.trace.trace import MASKED, Trace

CELL = ("head", "step")
CENTROID_DECIMALS = 6
"""Of a centroid as a share of the canvas: float32 sums differ beyond them."""
DRAWS = 400
"""Of random positions, for the expected share of the commonest one."""


@custom_metric()
def sink_positions(traces: Traces, rule: Rule | None = None, *, group: str = "all") -> Reading:
    """Where the top key of every head is at every step, and whether it is a sink: plain rows.

    `progress` is the share of the answer written before the step, `relative` the position as a
    share of the canvas, `token` what stood there. Position -1 and NaN: not measured.
    """
    rule = rule or rulli()
    about = {"metric": "sink_positions", "rule": str(rule), "group": group}
    return read_rows(traces, partial(position_rows, rule=rule, group=group), about)


def position_rows(layer: LayerSlice, rule: Rule, group: str = "all") -> dict[str, Any]:
    """The columns of one layer's rows, [step * head] each."""
    trace, (position, share) = layer.trace, layer.top_key(group)
    steps, heads = position.shape
    step, head = (index.ravel() for index in np.indices(position.shape))
    flat = position.ravel()
    known = flat >= 0
    # Each token is looked up once, however many rows it stands in.
    ids, which = np.unique(trace.canvas[step, np.maximum(flat, 0)], return_inverse=True)
    texts = np.array([trace.token(int(i)) for i in ids], dtype=object)[which]
    return {
        "step": step,
        "progress": np.repeat(trace.progress[:steps], heads),
        "layer": layer.index,
        "head": head,
        "position": flat,
        "relative": np.where(known, flat / trace.canvas.shape[1], np.nan),
        "share": share.ravel(),
        "sink": layer.top_sink(rule, group).ravel() >= 0,
        "token": np.where(known, texts, ""),
    }


@metric(by=("layer",), baselines=True, default=True)
def jumps(layer: LayerSlice, rule: Rule, *, group: str) -> list[Quantity]:
    """How often the greatest sink is elsewhere than a step before, and how far away.

    `jump_rate` is over neighbouring steps that both have a sink, `displacement` the mean distance
    there as a share of the canvas (0 where it stayed). The null of a sink that stays for a while
    before it moves is larger than the value. Dims: step (or progress), layer, head.
    """
    positions, quantities = layer.trace.canvas.shape[1], []
    # Once for the top sink, once for the top key whether it is a sink or not.
    for name, path in _paths(layer, rule, group).items():
        moved = np.full(path.shape, np.nan)
        # NaN where one of two neighbouring steps has no position.
        moved[:, 1:] = np.abs(np.diff(path, axis=1))
        jumped = np.where(np.isnan(moved), np.nan, moved > 0)
        steps_at = occupancy(path, positions)
        rate, distance = shuffled_jump(steps_at), shuffled_displacement(steps_at)
        quantities += [
            mean(f"jump_rate{name}", CELL, jumped, rate[:, None]),
            mean(f"displacement{name}", CELL, moved / positions, distance[:, None] / positions),
        ]
    return [steps_between(quantity, 1) for quantity in quantities]


@metric(by=("layer",), baselines=True, default=True)
def spread(layer: LayerSlice, rule: Rule, *, group: str) -> list[Quantity]:
    """Over how much of the canvas the greatest sink is spread: variance, commonest position.

    No order of the steps changes these, so the null is another one: positions drawn evenly among
    the keys that exist (for `modal_share` from 400 seeded draws), and for the centroid, the mean
    position weighted by attention, that of uniform attention. Variances are of positions as
    shares of the canvas. A head needs two steps with a sink, else it is missing. Dims: layer, head.
    """
    positions, quantities = layer.trace.canvas.shape[1], []
    null = layer.null(group)
    # 1. The null: positions drawn evenly among the keys of each step.
    keys = np.sum(~np.isnan(null), axis=-1).T  # [1, step]
    most = expected_mode(layer.trace.num_steps, int(keys.max(initial=0)))
    for name, path in _paths(layer, rule, group).items():
        steps_at = occupancy(path, positions)
        count = steps_at.sum(axis=-1)
        enough = np.where(count >= 2, 1.0, np.nan)
        # 2. The share of steps that the commonest position holds, and the variance of positions.
        modal = steps_at.max(axis=-1) / np.maximum(count, 1) * enough
        even = _even_variance(np.where(np.isnan(path), np.nan, keys)) / positions**2
        variance = _variance(path) / positions**2
        quantities += [
            mean(f"position_variance{name}", ("head",), variance, even),
            mean(f"modal_share{name}", ("head",), modal, most[count]),
        ]
    # 3. The centroid, against that of uniform attention at the measured steps.
    measured = layer.is_measured(group).T
    centre = _variance(centroid_path(layer.shares(group)))
    uniform = np.where(measured, centroid_path(null), np.nan)
    scale = positions**2
    quantities.append(
        mean("centroid_variance", ("head",), centre / scale, _variance(uniform) / scale)
    )
    return quantities


@metric(by=("layer",), baselines=True, default=True)
def direction(layer: LayerSlice, rule: Rule, *, group: str) -> list[Quantity]:
    """Which way the greatest sink goes: Kendall's tau with the step, Theil-Sen slope, per head.

    Above zero is to the right. `slope` is in positions per step. Shuffled steps give 0 for both;
    tau of a sink that never moves does not exist. `centroid_` is the same of the mean position
    weighted by attention. Dims: layer, head.
    """
    paths = {f"{{}}{name}": path for name, path in _paths(layer, rule, group).items()}
    paths["centroid_{}"] = centroid_path(layer.shares(group))
    # All paths at once: [path, head, step].
    every = np.stack(list(paths.values()))
    steps = np.arange(every.shape[-1])
    tau, slope = kendall(steps, every), theil_sen(steps, every).value
    quantities = []
    for index, name in enumerate(paths):
        for what, value in (("tau", tau[index]), ("slope", slope[index])):
            null = np.where(np.isnan(value), np.nan, 0.0)
            quantities.append(mean(name.format(what), ("head",), value, null))
    return quantities


@metric(by=("layer",), baselines=True, default=True)
def frontier_hits(layer: LayerSlice, rule: Rule, *, group: str) -> list[Quantity]:
    """Whether the greatest sink is the rightmost masked position, and how far from it.

    `frontier_distance` is a share of the canvas. The column `chance` is a masked position taken at
    random: a hit 1 / masked. A step without masked positions is missing. Dims: step (or progress),
    layer, head.
    """
    edge, hit, far = mask_frontier(layer.trace)
    positions, quantities = layer.trace.canvas.shape[1], []
    edge_index = np.where(np.isnan(edge), 0, edge).astype(int)
    # The null: distance of each position to the edge of each step, weighted by occupancy.
    gaps = np.abs(np.arange(positions)[:, None] - edge_index)  # [position, step]
    for name, path in _paths(layer, rule, group).items():
        path = np.where(np.isnan(edge), np.nan, path)
        steps_at = occupancy(path, positions)
        count = np.maximum(steps_at.sum(axis=-1, keepdims=True), 1)
        none = np.where(np.isnan(path), np.nan, 0.0)
        away = np.abs(path - edge) / positions
        quantities += [
            mean(
                f"frontier_hit{name}", CELL, (path == edge) + none, steps_at[:, edge_index] / count
            ),
            mean(f"frontier_distance{name}", CELL, away, steps_at @ gaps / count / positions),
            chance(f"frontier_hit{name}", CELL, hit + none),
            chance(f"frontier_distance{name}", CELL, far + none),
        ]
    return quantities


def mask_frontier(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[step] each: rightmost masked position, and a random masked one's hit and distance to it.

    NaN where nothing is masked.
    """
    masked = trace.role[:-1] == MASKED
    count = masked.sum(axis=1).astype(np.float64)
    count[count == 0] = np.nan
    positions = np.arange(masked.shape[1])
    # The rightmost masked position; the mean distance of a random masked one to it.
    edge = np.where(np.isnan(count), np.nan, np.where(masked, positions, -1).max(axis=1))
    mean_gap = np.sum((edge[:, None] - positions) * masked, axis=1) / count
    return edge, 1 / count, mean_gap / masked.shape[1]


@custom_metric()
def block_jumps(
    traces: Traces,
    rule: Rule | None = None,
    *,
    group: str = "all",
    by: Sequence[str] = ("layer",),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> Reading:
    """Jump rate at the steps that open a block, inside blocks, and how much more it is.

    The null deals out the opening steps at random among all, so that both rates are the head's own
    rate. `excess` is the difference, `times` the ratio, absent if nothing jumps inside. A trace
    decoded in one block is missing; traces of that kind alone are refused. Dims: layer, head.
    """
    rule = rule or rulli()
    kernel = partial(block_cells, rule=rule, group=group)
    if not any((current_block(trace) > 0).any() for trace in check_traces(traces)):
        raise TraceError(
            "every trace was decoded in one block, so nothing can jump between blocks: "
            "run with a shorter one, such as aw.decoding.LowConfidence(length=128, block=32)"
        )
    return read_quantities(
        traces,
        kernel,
        by,
        finish=_more_at_boundaries,
        about={"metric": "block_jumps", "rule": str(rule), "group": group},
        baselines={"frozen": frozen, "untrained": untrained},
    )


def block_cells(layer: LayerSlice, rule: Rule, group: str = "all") -> list[Quantity]:
    block = current_block(layer.trace)
    opens = np.diff(block) > 0
    path = layer.sink_path(rule, group)
    gap = np.diff(path, axis=1)
    pair, jump = ~np.isnan(gap), np.abs(np.nan_to_num(gap)) > 0
    # One block: nothing opens, and every pair is missing.
    if not opens.any():
        pair = np.zeros_like(pair)
    pairs = pair.sum(axis=1)
    # The null deals out the opening steps at random: both kinds then have the head's own rate.
    rate = (jump & pair).sum(axis=1) / np.maximum(pairs, 1)
    quantities = []
    for name, chosen in (("jump_rate_at_boundaries", opens), ("jump_rate_inside", ~opens)):
        count = (pair & chosen).sum(axis=1)
        null = count * rate, count
        quantities.append(ratio(name, ("head",), (jump & pair & chosen).sum(axis=1), count, null))
    return quantities


def _more_at_boundaries(cells: dict[str, Cell]) -> dict[str, Cell]:
    boundary, inside = cells["jump_rate_at_boundaries"], cells["jump_rate_inside"]
    missing = np.maximum(boundary.missing, inside.missing)
    times = [
        np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0)
        for top, bottom in ((boundary.value, inside.value), (boundary.null, inside.null))
    ]
    return cells | {
        "excess": Cell(boundary.value - inside.value, boundary.null - inside.null, missing),
        "times": Cell(times[0], times[1], missing),
    }


def current_block(trace: Trace) -> np.ndarray:
    """[step] the block being written: of the last position committed so far, 0 before any."""
    decoding, answer = trace.decoding, trace.answer
    size = (decoding.block if isinstance(decoding, Blocks) else None) or len(answer)
    when = trace.committed_at[answer]
    known = (when >= 0) & (when < trace.num_steps)
    last = np.zeros(trace.num_steps, dtype=int)
    # The block of the last position committed so far, step by step.
    np.maximum.at(last, when[known], (np.arange(len(answer)) // size)[known])
    return np.maximum.accumulate(last)


@cache
def expected_mode(steps: int, keys: int) -> np.ndarray:
    """[count] expected share of the commonest of so many positions drawn evenly among keys."""
    expected = np.full(steps + 1, np.nan)
    if keys == 0:
        return expected
    drawn = np.random.default_rng(0).integers(0, keys, (DRAWS, steps))
    counts, most = np.zeros((DRAWS, keys), dtype=np.int32), np.zeros(DRAWS)
    # One more position in each draw; the count of the commonest can only grow.
    for step in range(steps):
        cell = np.arange(DRAWS), drawn[:, step]
        counts[cell] += 1
        most = np.maximum(most, counts[cell])
        expected[step + 1] = most.mean() / (step + 1)
    return expected


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
    return np.round(centre.T.astype(np.float64), CENTROID_DECIMALS) * keys


def occupancy(path: np.ndarray, positions: int) -> np.ndarray:
    """[head, position] number of steps at which the path is there."""
    head, step = np.nonzero(~np.isnan(path))
    # One bincount over flat (head, position) cells.
    flat = head * positions + path[head, step].astype(np.int64)
    return np.bincount(flat, minlength=len(path) * positions).reshape(len(path), positions)


def shuffled_jump(steps_at: np.ndarray) -> np.ndarray:
    """[head] chance that two different steps have different positions; NaN for fewer than two."""
    count = steps_at.sum(axis=-1).astype(np.float64)
    # Ordered pairs of different steps with the same position, of all ordered pairs.
    same = np.sum(steps_at * (steps_at - 1.0), axis=-1)
    return 1 - _over(same, count * (count - 1))


def shuffled_displacement(steps_at: np.ndarray) -> np.ndarray:
    """[head] mean distance between the positions of two different steps."""
    count = steps_at.sum(axis=-1).astype(np.float64)
    below = np.cumsum(steps_at, axis=-1, dtype=np.float64)
    # each unit of the axis is crossed by the pairs with one end on either side of it
    crossed = np.sum(below * (count[..., None] - below), axis=-1)
    return _over(2 * crossed, count * (count - 1))


def steps_between(quantity: Quantity, first: int) -> Quantity:
    """Without counting as missing the first steps, which have no step so far before them."""
    missing = quantity.missing
    assert missing is not None
    # A step without one before it is no missing value.
    axis = quantity.dims.index("step")
    counted = np.arange(missing.shape[axis]) >= first
    shape = [-1 if dim == axis else 1 for dim in range(missing.ndim)]
    return replace(quantity, missing=missing * counted.reshape(shape))


def _over(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    return np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0)


def _paths(layer: LayerSlice, rule: Rule, group: str) -> dict[str, np.ndarray]:
    """By what is added to a name."""
    return {"": layer.sink_path(rule, group), "_any": layer.top_key_path(group)}


def _variance(path: np.ndarray) -> np.ndarray:
    """[head] over the steps that exist, NaN for fewer than two."""
    known = ~np.isnan(path)
    count = np.where(known.sum(axis=1) >= 2, known.sum(axis=1), np.nan)
    # Population variance: the steps are all there are.
    middle = np.nansum(path, axis=1) / count
    return np.sum((path - middle[:, None]) ** 2, axis=1, where=known) / count


def _even_variance(keys: np.ndarray) -> np.ndarray:
    """[head] expected variance of positions drawn evenly among [head, step] numbers of keys."""
    count = np.maximum(np.sum(~np.isnan(keys), axis=1), 1)
    # Mean of the variances plus variance of the means; a sample of n has (1 - 1/n) of the first.
    within = np.nansum((keys**2 - 1) / 12, axis=1) / count
    return within * (1 - 1 / count) + _variance((keys - 1) / 2)
