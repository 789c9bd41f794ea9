"""What kind of sink a head has: static, moving, flickering, split, drifting, at the frontier, none.

The words are those of 2510.15731, the tests and their limits ours. They are tried in the order
none, split, static, frontier, block-drift, moving, flicker; the first that holds names the head,
and one that passes none is mixed. Numbers are of the greatest sink of all queries, unless they say
otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from anchorwatch.errors import SpecError
from anchorwatch.metrics.layer_slices import LayerSlice, Traces
from anchorwatch.metrics.movement import current_block, mask_frontier, occupancy, shuffled_jump
from anchorwatch.metrics.registry import Reading, custom_metric, read_quantities, read_rows
from anchorwatch.metrics.sink_rules import Rule, rulli
from anchorwatch.metrics.stats.ranks import kendall
from anchorwatch.metrics.table import Quantity, mean, split_always
from anchorwatch.trace.trace import Trace

TYPES = ("static", "moving", "flicker", "split", "block-drift", "frontier", "none", "mixed")
ABSENT = "absent"
"""The type of a head that was not measured."""
SPLIT_GROUPS = ("masked", "written")
SHUFFLES = 4
DRAWS = 16
"""Of shuffled steps, for what positions say of blocks by chance."""


@dataclass(frozen=True)
class TypeLimits:
    """Thresholds of the types; all are shares, but `held`, which is a number of steps."""

    none: float = 0.9
    """Steps without a sink, more than which a head has none."""
    split: float = 0.5
    """Steps at which masked and written queries have different greatest sinks, at least."""
    static: float = 0.9
    """Steps with a sink that the commonest position holds, at least."""
    trend: float = 0.3
    """Kendall's tau that is a direction: to the left for the frontier, to the right for a drift."""
    frontier: float = 0.5
    """Steps with a sink on the rightmost masked position, at least, and more than shuffled ones."""
    block: float = 0.5
    """Of what the position could say of the block being written beyond chance, at least."""
    flicker: float = 0.5
    """Stays of the greatest sink that last one step, at least."""
    held: int = 2
    """Steps in a row that hold a position; a moving sink holds two of them, or has a direction."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "held":
                if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                    raise SpecError(f"held={value!r} is not a whole number of at least 1")
            elif not isinstance(value, int | float) or not 0 <= value <= 1:
                raise SpecError(f"{field.name}={value!r} is not a number from 0 to 1")


@custom_metric()
def head_types(
    traces: Traces,
    rule: Rule | None = None,
    *,
    group: str = "all",
    limits: TypeLimits | None = None,
) -> Reading:
    """The type of every head of every trace, with the numbers it rests on: plain rows.

    `without_sink`, `split` are shares of steps; `modal_share`, `frontier_hit` of steps with a sink
    (`_null`: shuffled steps); `jump_rate` of neighbouring steps with a sink; `held` counts the
    positions that some stay of the greatest sink holds, `flicker` is the share of stays of one
    step; `block_information` is what the position says of the block being written, from 0, as by
    chance, to 1. NaN is a number that the trace cannot give; its test does not hold.
    """
    rule, limits = rule or rulli(), limits or TypeLimits()
    about = {"metric": "head_types", "rule": str(rule), "group": group}
    return read_rows(
        traces,
        partial(type_rows, rule=rule, group=group, limits=limits),
        about | {"limits": dataclasses.asdict(limits)},
    )


def type_rows(
    layer: LayerSlice, rule: Rule, group: str = "all", limits: TypeLimits | None = None
) -> dict[str, Any]:
    limits = limits or TypeLimits()
    numbers = head_numbers(layer, rule, group, limits)
    where = {"layer": layer.index, "head": np.arange(len(numbers["steps"]))}
    return where | {"type": classify_heads(numbers, limits)} | numbers


@custom_metric(default=True)
def head_type_shares(
    traces: Traces,
    rule: Rule | None = None,
    *,
    group: str = "all",
    limits: TypeLimits | None = None,
    by: Sequence[str] = ("layer",),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> Reading:
    """Share of heads of each type; the null is the same with the steps shuffled, four times.

    Dims: type (always), layer, head.
    """
    rule, limits = rule or rulli(), limits or TypeLimits()
    kernel = partial(type_cells, rule=rule, group=group, limits=limits)
    about = {"metric": "head_type_shares", "rule": str(rule), "group": group}
    return read_quantities(
        traces,
        kernel,
        split_always("type", by),
        about=about | {"limits": dataclasses.asdict(limits)},
        baselines={"frozen": frozen, "untrained": untrained},
    )


def type_cells(
    layer: LayerSlice, rule: Rule, group: str = "all", limits: TypeLimits | None = None
) -> list[Quantity]:
    limits, rng = limits or TypeLimits(), np.random.default_rng(0)
    # Only measured steps are shuffled among each other.
    steps = np.flatnonzero(layer.is_measured(group).any(axis=1))
    value = _one_hot(classify_heads(head_numbers(layer, rule, group, limits), limits))
    null = np.zeros_like(value)
    for _ in range(SHUFFLES):
        order = np.arange(layer.trace.num_steps)
        order[steps] = rng.permutation(steps)
        null += (
            _one_hot(classify_heads(head_numbers(layer, rule, group, limits, order), limits))
            / SHUFFLES
        )
    labels = {"type": list(TYPES)}
    return [mean("share_of_heads", ("head", "type"), value, null, labels)]


def _one_hot(types: np.ndarray) -> np.ndarray:
    """[head, type] 0 or 1, NaN for heads that were not measured."""
    one_hot = (types[:, None] == np.array(TYPES)).astype(float)
    return np.where((types == ABSENT)[:, None], np.nan, one_hot)


def classify_heads(numbers: dict[str, np.ndarray], limits: TypeLimits) -> np.ndarray:
    """[head] names of types."""
    n = numbers
    with np.errstate(invalid="ignore"):  # what does not exist fulfils nothing
        # Each test is [head] bool, tried in the order of `tests` below.
        trend = np.abs(n["tau"]) >= limits.trend
        at_edge = (n["frontier_hit"] >= limits.frontier) & (n["frontier_hit"] > n["frontier_null"])
        in_blocks = (n["block_information"] >= limits.block) & (
            n["jump_rate_at_boundaries"] > n["jump_rate_inside"]
        )
        flickers = n["flicker"] >= limits.flicker
        tests = {
            ABSENT: n["steps"] == 0,
            "none": n["without_sink"] > limits.none,
            "split": n["split"] >= limits.split,
            "static": n["modal_share"] >= limits.static,
            "frontier": trend & (n["tau"] < 0) & at_edge,
            "block-drift": trend & (n["tau"] > 0) & in_blocks,
            "moving": trend | ((n["held"] >= 2) & ~flickers),
            "flicker": flickers,
        }
    return np.select(list(tests.values()), list(tests), "mixed")


def head_numbers(
    layer: LayerSlice, rule: Rule, group: str, limits: TypeLimits, order: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """[head] each. `order` shuffles what is seen of the heads, not the canvas."""
    path, measured = layer.sink_path(rule, group), layer.is_measured(group).T
    if order is not None:
        path, measured = path[:, order], measured[:, order]
    # NaN in the path: a step without a sink.
    steps, with_sink = measured.sum(axis=1), np.sum(~np.isnan(path), axis=1)
    steps_at = occupancy(path, layer.trace.canvas.shape[1])
    jump, pair = _find_jumps(path)
    held_positions, flicker = _stays(path, limits.held)
    return {
        "steps": steps,
        "without_sink": 1 - _share(with_sink, steps),
        "positions": np.sum(steps_at > 0, axis=1),
        "held": held_positions,
        "modal_share": _share(steps_at.max(axis=1), with_sink * (with_sink >= 2)),
        "jump_rate": _share(jump.sum(axis=1), pair.sum(axis=1)),
        "jump_rate_null": shuffled_jump(steps_at),
        "tau": kendall(np.arange(path.shape[1]), path),
        **_at_frontier(path, layer.trace),
        "flicker": flicker,
        "split": _split_share(layer, rule, order),
        **_with_blocks(path, layer.trace),
    }


def _find_jumps(path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[head, step - 1] whether it jumped, and whether both steps have a sink."""
    gap = np.diff(path, axis=1)
    return np.nan_to_num(gap) != 0, ~np.isnan(gap)


def _stays(path: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    """[head] each: positions that a stay of `least` steps holds, share of stays of one step."""
    heads, steps = path.shape
    known = ~np.isnan(path)
    jump, pair = _find_jumps(path)
    # 1. A stay begins where a sink appears or jumps.
    begins = known.copy()
    begins[:, 1:] &= jump | ~pair
    # 2. Its length: the steps with a sink up to the next beginning.
    number = np.cumsum(begins.ravel())[known.ravel()] - 1
    length = np.bincount(number, minlength=int(begins.sum()))
    head, first = np.nonzero(begins)
    # 3. Different positions that some long enough stay holds, by head.
    kept = length >= least
    size = np.nanmax(path, initial=0) + 1
    holders = (np.unique(head[kept] * size + path[head, first][kept]) // size).astype(int)
    short, seen = length == 1, (length > 1) | (first < steps - 1)  # the last step may have been cut
    flickers = np.bincount(head[short & seen], minlength=heads)
    return np.bincount(holders, minlength=heads), _share(
        flickers, np.bincount(head[seen], minlength=heads)
    )


def _at_frontier(path: np.ndarray, trace: Trace) -> dict[str, np.ndarray]:
    edge, _, _ = mask_frontier(trace)
    path = np.where(np.isnan(edge), np.nan, path)
    number = np.sum(~np.isnan(path), axis=1)
    steps_at = occupancy(path, trace.canvas.shape[1])
    # Shuffled steps: the chance that the path is at this step's edge at a random step.
    null = np.sum(np.where(np.isnan(path), 0, steps_at[:, np.nan_to_num(edge).astype(int)]), axis=1)
    return {
        "frontier_hit": _share(np.sum(path == edge, axis=1), number),
        "frontier_null": _share(null, number**2),
    }


def _split_share(layer: LayerSlice, rule: Rule, order: np.ndarray | None) -> np.ndarray:
    """[head] share of steps at which both groups have a sink, and another; NaN without both."""
    if not set(SPLIT_GROUPS) <= set(layer.groups):
        return np.full(layer.shares(layer.groups[0]).shape[1], np.nan)
    first, second = (layer.sink_path(rule, group) for group in SPLIT_GROUPS)
    first_measured, second_measured = (layer.is_measured(group).T for group in SPLIT_GROUPS)
    if order is not None:
        second, second_measured = second[:, order], second_measured[:, order]
    apart = ~np.isnan(first) & ~np.isnan(second) & (first != second)
    return _share(apart.sum(axis=1), (first_measured & second_measured).sum(axis=1))


def _with_blocks(path: np.ndarray, trace: Trace) -> dict[str, np.ndarray]:
    block = current_block(trace)
    opens = np.diff(block) > 0
    jump, pair = _find_jumps(path)
    opening, inside = pair & opens, pair & ~opens
    return {
        "block_information": _block_information(path, block),
        "jump_rate_at_boundaries": _share((jump & opening).sum(axis=1), opening.sum(axis=1)),
        "jump_rate_inside": _share((jump & inside).sum(axis=1), inside.sum(axis=1)),
    }


def _block_information(path: np.ndarray, block: np.ndarray) -> np.ndarray:
    """[head] how much of the block the position says: 0 as by chance, 1 all; NaN if it cannot.

    Mutual information over the entropy of the block, both beyond what shuffled steps give.
    """
    heads = len(path)
    if block.max(initial=0) == 0:
        return np.full(heads, np.nan)
    # 1. Steps with a sink to the front, so that shuffling can leave the others alone.
    first = np.argsort(np.isnan(path), axis=1, kind="stable")  # steps with a sink first
    positions = np.take_along_axis(path, first, axis=1)
    blocks = np.where(np.isnan(positions), np.nan, block[first].astype(float))
    wide, rng = float(block.max() + 1), np.random.default_rng(0)
    # 2. Mutual information I(position; block) = H(position) + H(block) - H(both).
    whole, alone = _entropies(blocks), _entropies(positions)
    information, drawn = alone + whole - _entropies(positions * wide + blocks), np.zeros(heads)
    # 3. The same of shuffled positions is what chance gives: both are measured beyond it.
    for _ in range(DRAWS):
        order = np.argsort(rng.random(path.shape) + 2 * np.isnan(positions), axis=1)
        mixed = np.take_along_axis(positions, order, axis=1)
        drawn += (alone + whole - _entropies(mixed * wide + blocks)) / DRAWS
    return np.divide(information - drawn, whole - drawn, out=np.full(heads, np.nan),
                     where=whole - drawn > 1e-9)  # fmt: skip


def _entropies(codes: np.ndarray) -> np.ndarray:
    """[head] entropy in nats of the codes that are not NaN; 0 where there is none."""
    known = ~np.isnan(codes)
    size = np.nanmax(codes, initial=0) + 1
    head = np.nonzero(known)[0]
    # H = log n - sum c log c / n, over the codes of each head.
    values, counts = np.unique(head * size + codes[known], return_counts=True)
    number = known.sum(axis=1)
    sums = np.bincount((values // size).astype(int), counts * np.log(counts), len(codes))
    return np.log(np.maximum(number, 1)) - sums / np.maximum(number, 1)


def _share(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    return np.divide(top, bottom, out=np.full(np.shape(top), np.nan), where=bottom > 0)
