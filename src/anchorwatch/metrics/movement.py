"""Movement of the greatest sink: where it is, how often and how far it jumps, which way it goes.

`null` is what the same positions would give if the steps were shuffled, unless a docstring says
otherwise; all are exact expectations. Statistics are over the steps at which a head has a sink, the
others are counted as missing; names with `_any` are over the greatest key, sink or not. Positions
are given as shares of the canvas where models of different lengths are to be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import numpy as np
import pandas as pd

from anchorwatch.errors import TraceError
from anchorwatch.generation.decoding import Blocks
from anchorwatch.metrics.cells import Cell, Quantity, mean, ratio
from anchorwatch.metrics.passes import each_slab
from anchorwatch.metrics.paths import (
    any_path,
    centroid_path,
    chance,
    compare_with_chance,
    occupancy,
    shuffled_displacement,
    shuffled_jump,
    sink_path,
    steps_between,
)
from anchorwatch.metrics.reading import LayerSlice, Traces, check_traces
from anchorwatch.metrics.sink_rules import Rule, rulli
from anchorwatch.metrics.stats.ranks import kendall, theil_sen
from anchorwatch.metrics.tables import arm, model_names, over_slabs, prompt_id
from anchorwatch.trace.provenance import origin
from anchorwatch.trace.trace import MASKED, Trace

CELL = ("head", "step")
DRAWS = 400
"""Of random positions, for the expected share of the commonest one."""


def sink_positions(traces: Traces, rule: Rule | None = None, *, group: str = "all") -> pd.DataFrame:
    """Where the greatest key of every head is at every step, and whether it is a sink: plain rows.

    `progress` is the share of the answer written before the step, `relative` the position as a
    share of the canvas, `token` what stood there. Position -1 and NaN: not measured.
    """
    rule = rule or rulli()
    layers = each_slab(traces, partial(position_rows, rule=rule, group=group))
    found = [trace for trace, _ in layers]
    names = model_names(found)
    rows = [one.assign(model=names[arm(trace)]) for trace, every in layers for one in every]
    table = pd.concat(rows, ignore_index=True)
    table = table[["model", *(column for column in table.columns if column != "model")]]
    about = {"metric": "sink_positions", "rule": str(rule), "group": group}
    table.attrs = {"about": about, "traces": [origin(trace) for trace in found]}
    return table


def position_rows(slab: LayerSlice, rule: Rule, group: str = "all") -> pd.DataFrame:
    trace, (place, share) = slab.trace, slab.top(group)
    steps, heads = place.shape
    step, head = (index.ravel() for index in np.indices(place.shape))
    flat = place.ravel()
    there = flat >= 0
    ids, which = np.unique(trace.canvas[step, np.maximum(flat, 0)], return_inverse=True)
    texts = np.array([trace.token(int(one)) for one in ids], dtype=object)[which]
    return pd.DataFrame(
        {
            "trace": trace.digest()[:12],
            "prompt": prompt_id(trace),
            "seed": trace.seed,
            "step": step,
            "progress": np.repeat(trace.progress[:steps], heads),
            "layer": slab.layer,
            "head": head,
            "position": flat,
            "relative": np.where(there, flat / trace.canvas.shape[1], np.nan),
            "share": share.ravel(),
            "sink": slab.sink_top(rule, group).ravel() >= 0,
            "token": np.where(there, texts, ""),
        }
    )


def jumps(
    traces: Traces,
    rule: Rule | None = None,
    *,
    group: str = "all",
    by: Sequence[str] = ("layer",),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> pd.DataFrame:
    """How often the greatest sink is elsewhere than a step before, and how far away.

    `jump_rate` is over neighbouring steps that both have a sink, `displacement` the mean distance
    there as a share of the canvas (0 where it stayed). The null of a sink that stays for a while
    before it moves is larger than the value. Dims: step (or progress), layer, head.
    """
    rule = rule or rulli()
    kernel = partial(jump_cells, rule=rule, group=group)
    return compare_with_chance(
        lambda ts: over_slabs(ts, kernel),
        traces,
        by,
        about={"metric": "jumps", "rule": str(rule), "group": group},
        others={"frozen": frozen, "untrained": untrained},
    )


def jump_cells(slab: LayerSlice, rule: Rule, group: str = "all") -> list[Quantity]:
    positions, found = slab.trace.canvas.shape[1], []
    for name, path in _paths(slab, rule, group).items():
        moved = np.full(path.shape, np.nan)
        moved[:, 1:] = np.abs(np.diff(path, axis=1))
        jumped = np.where(np.isnan(moved), np.nan, moved > 0)
        steps_at = occupancy(path, positions)
        rate, distance = shuffled_jump(steps_at), shuffled_displacement(steps_at)
        found += [
            mean(f"jump_rate{name}", CELL, jumped, rate[:, None]),
            mean(f"displacement{name}", CELL, moved / positions, distance[:, None] / positions),
        ]
    return [steps_between(one, 1) for one in found]


def spread(
    traces: Traces,
    rule: Rule | None = None,
    *,
    group: str = "all",
    by: Sequence[str] = ("layer",),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> pd.DataFrame:
    """Over how much of the canvas the greatest sink is spread: variance, commonest position.

    No order of the steps changes these, so the null is another one: positions drawn evenly among
    the keys that exist (for `modal_share` from 400 seeded draws), and for the centroid, the mean
    position weighted by attention, that of indifferent attention. Variances are of positions as
    shares of the canvas. A head needs two steps with a sink, else it is missing. Dims: layer, head.
    """
    rule = rule or rulli()
    kernel = partial(spread_cells, rule=rule, group=group)
    return compare_with_chance(
        lambda ts: over_slabs(ts, kernel),
        traces,
        by,
        about={"metric": "spread", "rule": str(rule), "group": group},
        others={"frozen": frozen, "untrained": untrained},
    )


def spread_cells(slab: LayerSlice, rule: Rule, group: str = "all") -> list[Quantity]:
    positions, found = slab.trace.canvas.shape[1], []
    null = slab.null(group)
    keys = np.sum(~np.isnan(null), axis=-1).T  # [1, step]
    most = expected_mode(slab.trace.num_steps, int(keys.max(initial=0)))
    for name, path in _paths(slab, rule, group).items():
        steps_at = occupancy(path, positions)
        count = steps_at.sum(axis=-1)
        enough = np.where(count >= 2, 1.0, np.nan)
        modal = steps_at.max(axis=-1) / np.maximum(count, 1) * enough
        even = _even_variance(np.where(np.isnan(path), np.nan, keys)) / positions**2
        variance = _variance(path) / positions**2
        found += [
            mean(f"position_variance{name}", ("head",), variance, even),
            mean(f"modal_share{name}", ("head",), modal, most[count]),
        ]
    there = slab.measured(group).T
    centre = _variance(centroid_path(slab.shares(group)))
    indifferent = np.where(there, centroid_path(null), np.nan)
    scale = positions**2
    found.append(
        mean("centroid_variance", ("head",), centre / scale, _variance(indifferent) / scale)
    )
    return found


def direction(
    traces: Traces,
    rule: Rule | None = None,
    *,
    group: str = "all",
    by: Sequence[str] = ("layer",),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> pd.DataFrame:
    """Which way the greatest sink goes: Kendall's tau with the step, Theil-Sen slope, per head.

    Above zero is to the right. `slope` is in positions per step. Shuffled steps give 0 for both;
    tau of a sink that never moves does not exist. `centroid_` is the same of the mean position
    weighted by attention. Dims: layer, head.
    """
    rule = rule or rulli()
    kernel = partial(direction_cells, rule=rule, group=group)
    return compare_with_chance(
        lambda ts: over_slabs(ts, kernel),
        traces,
        by,
        about={"metric": "direction", "rule": str(rule), "group": group},
        others={"frozen": frozen, "untrained": untrained},
    )


def direction_cells(slab: LayerSlice, rule: Rule, group: str = "all") -> list[Quantity]:
    paths = {f"{{}}{name}": path for name, path in _paths(slab, rule, group).items()}
    paths["centroid_{}"] = centroid_path(slab.shares(group))
    every = np.stack(list(paths.values()))
    steps = np.arange(every.shape[-1])
    tau, slope = kendall(steps, every), theil_sen(steps, every).value
    found = []
    for index, name in enumerate(paths):
        for what, value in (("tau", tau[index]), ("slope", slope[index])):
            null = np.where(np.isnan(value), np.nan, 0.0)
            found.append(mean(name.format(what), ("head",), value, null))
    return found


def frontier_hits(
    traces: Traces,
    rule: Rule | None = None,
    *,
    group: str = "all",
    by: Sequence[str] = ("layer",),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> pd.DataFrame:
    """Whether the greatest sink is the rightmost masked position, and how far from it.

    `frontier_distance` is a share of the canvas. The column `chance` is a masked position taken at
    random: a hit 1 / masked. A step without masked positions is missing. Dims: step (or progress),
    layer, head.
    """
    rule = rule or rulli()
    kernel = partial(frontier_cells, rule=rule, group=group)
    return compare_with_chance(
        lambda ts: over_slabs(ts, kernel),
        traces,
        by,
        about={"metric": "frontier_hits", "rule": str(rule), "group": group},
        others={"frozen": frozen, "untrained": untrained},
    )


def frontier_cells(slab: LayerSlice, rule: Rule, group: str = "all") -> list[Quantity]:
    edge, hit, far = frontier_of(slab.trace)
    positions, found = slab.trace.canvas.shape[1], []
    at = np.where(np.isnan(edge), 0, edge).astype(int)
    gaps = np.abs(np.arange(positions)[:, None] - at)  # [position, step]
    for name, path in _paths(slab, rule, group).items():
        path = np.where(np.isnan(edge), np.nan, path)
        steps_at = occupancy(path, positions)
        count = np.maximum(steps_at.sum(axis=-1, keepdims=True), 1)
        none = np.where(np.isnan(path), np.nan, 0.0)
        away = np.abs(path - edge) / positions
        found += [
            mean(f"frontier_hit{name}", CELL, (path == edge) + none, steps_at[:, at] / count),
            mean(f"frontier_distance{name}", CELL, away, steps_at @ gaps / count / positions),
            chance(f"frontier_hit{name}", CELL, hit + none),
            chance(f"frontier_distance{name}", CELL, far + none),
        ]
    return found


def frontier_of(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[step] each: rightmost masked position, and a random masked one's hit and distance to it.

    NaN where nothing is masked.
    """
    masked = trace.role[:-1] == MASKED
    count = masked.sum(axis=1).astype(np.float64)
    count[count == 0] = np.nan
    positions = np.arange(masked.shape[1])
    edge = np.where(np.isnan(count), np.nan, np.where(masked, positions, -1).max(axis=1))
    mean_gap = np.sum((edge[:, None] - positions) * masked, axis=1) / count
    return edge, 1 / count, mean_gap / masked.shape[1]


def block_jumps(
    traces: Traces,
    rule: Rule | None = None,
    *,
    group: str = "all",
    by: Sequence[str] = ("layer",),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> pd.DataFrame:
    """Jump rate at the steps that open a block, inside blocks, and how much more it is.

    The null deals out the opening steps at random among all, so that both rates are the head's own
    rate. `excess` is the difference, `times` the ratio, absent if nothing jumps inside. A trace
    decoded in one block is missing; traces of that kind alone are refused. Dims: layer, head.
    """
    rule = rule or rulli()
    kernel = partial(block_cells, rule=rule, group=group)
    if not any((block_of(trace) > 0).any() for trace in check_traces(traces)):
        raise TraceError(
            "every trace was decoded in one block, so nothing can jump between blocks: "
            "run with a shorter one, such as aw.decoding.LowConfidence(length=128, block=32)"
        )
    return compare_with_chance(
        lambda ts: over_slabs(ts, kernel),
        traces,
        by,
        finish=_more_at_boundaries,
        about={"metric": "block_jumps", "rule": str(rule), "group": group},
        others={"frozen": frozen, "untrained": untrained},
    )


def block_cells(slab: LayerSlice, rule: Rule, group: str = "all") -> list[Quantity]:
    block = block_of(slab.trace)
    opens = np.diff(block) > 0
    path = sink_path(slab, rule, group)
    gap = np.diff(path, axis=1)
    pair, jump = ~np.isnan(gap), np.abs(np.nan_to_num(gap)) > 0
    if not opens.any():
        pair = np.zeros_like(pair)
    pairs = pair.sum(axis=1)
    rate = (jump & pair).sum(axis=1) / np.maximum(pairs, 1)
    found = []
    for name, at in (("jump_rate_at_boundaries", opens), ("jump_rate_inside", ~opens)):
        count = (pair & at).sum(axis=1)
        null = count * rate, count
        found.append(ratio(name, ("head",), (jump & pair & at).sum(axis=1), count, null))
    return found


def _more_at_boundaries(cells: dict[str, Cell]) -> dict[str, Cell]:
    at, inside = cells["jump_rate_at_boundaries"], cells["jump_rate_inside"]
    missing = np.maximum(at.missing, inside.missing)
    times = [
        np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0)
        for top, bottom in ((at.value, inside.value), (at.null, inside.null))
    ]
    return cells | {
        "excess": Cell(at.value - inside.value, at.null - inside.null, missing),
        "times": Cell(times[0], times[1], missing),
    }


def block_of(trace: Trace) -> np.ndarray:
    """[step] the block being written: of the last position committed so far, 0 before any."""
    decoding, answer = trace.decoding, trace.answer
    size = (decoding.block if isinstance(decoding, Blocks) else None) or len(answer)
    when = trace.committed_at[answer]
    there = (when >= 0) & (when < trace.num_steps)
    last = np.zeros(trace.num_steps, dtype=int)
    np.maximum.at(last, when[there], (np.arange(len(answer)) // size)[there])
    return np.maximum.accumulate(last)


@cache
def expected_mode(steps: int, keys: int) -> np.ndarray:
    """[count] expected share of the commonest of so many positions drawn evenly among keys."""
    found = np.full(steps + 1, np.nan)
    if keys == 0:
        return found
    drawn = np.random.default_rng(0).integers(0, keys, (DRAWS, steps))
    counts, most = np.zeros((DRAWS, keys), dtype=np.int32), np.zeros(DRAWS)
    for step in range(steps):
        at = np.arange(DRAWS), drawn[:, step]
        counts[at] += 1
        most = np.maximum(most, counts[at])
        found[step + 1] = most.mean() / (step + 1)
    return found


def _paths(slab: LayerSlice, rule: Rule, group: str) -> dict[str, np.ndarray]:
    """By what is added to a name."""
    return {"": sink_path(slab, rule, group), "_any": any_path(slab, group)}


def _variance(path: np.ndarray) -> np.ndarray:
    """[head] over the steps that exist, NaN for fewer than two."""
    there = ~np.isnan(path)
    count = np.where(there.sum(axis=1) >= 2, there.sum(axis=1), np.nan)
    middle = np.nansum(path, axis=1) / count
    return np.sum((path - middle[:, None]) ** 2, axis=1, where=there) / count


def _even_variance(keys: np.ndarray) -> np.ndarray:
    """[head] expected variance of positions drawn evenly among [head, step] numbers of keys."""
    count = np.maximum(np.sum(~np.isnan(keys), axis=1), 1)
    within = np.nansum((keys**2 - 1) / 12, axis=1) / count
    return within * (1 - 1 / count) + _variance((keys - 1) / 2)
