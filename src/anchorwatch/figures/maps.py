"""Figures straight from a trace: what each token receives over the steps, and two maps in a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import Normal, Stroke

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.figures.figure import Figure
from anchorwatch.figures.marks import (
    absent_patch,
    even_limits_of,
    hatch_cells,
    heat,
    key,
    limits_of,
    sink_patch,
    whole_ticks,
)
from anchorwatch.figures.registry import Plot, figure
from anchorwatch.figures.style import (
    ABSENT_FACE,
    ABSENT_HATCH,
    ABSENT_LINE,
    COLUMN,
    PAGE,
    ROLE_COLOURS,
    label_axis,
    printable,
    room,
    sheet,
    token_labels,
)
from anchorwatch.metrics.sink_rules import Rule, gu
from anchorwatch.trace.trace import ABSENT, MISSING, ROLES, Trace

_NARROW = 26
"""Positions that still fit one column of a paper."""


@figure(Plot("sink-map"))
def sink_map(
    trace: Trace,
    *,
    layer: int | None = None,
    head: int | None = None,
    group: str = "all",
    rule: Rule | None = None,
) -> Figure:
    """Attention each token receives, step by step: where the sinks are and when they move.

    A mean over layers or heads where none is named; `group` are the queries it comes from. The line
    is the commit frontier: above it a position is masked, below it is written. The strip on top has
    the roles before the first step. With a `rule`, the cells it calls sinks are hatched: it reads
    the shares that are drawn.
    """
    # 1. [step, position] shares, and which of them the rule calls sinks.
    shares = _mean_received(trace, layer, head, group)
    sinks = np.zeros(shares.shape, dtype=bool) if rule is None else _labels(trace, rule, shares)
    steps, positions = shares.shape
    # 2. The map, as high as there are steps, up to a page.
    height = float(np.clip(0.9 + 0.11 * steps, 1.9, 5.0)) + 0.35
    drawn, (ax,) = sheet(COLUMN if positions <= _NARROW else PAGE, height)
    most = room(ax, "x")  # before the colour bar is placed
    mesh = heat(ax, shares, limits=limits_of(shares), unit="share of attention")
    count = hatch_cells(ax, sinks, mesh)
    label_axis(ax, token_labels(trace), name="token in the end", most=most)
    whole_ticks(ax, x=False)
    ax.set_ylabel("step")
    ax.set_title(_what(trace, layer, head, group), pad=9)
    # 3. Roles before the first step on top, and the line between masked and written.
    entries = [*role_strip(ax, trace.role[0]), frontier(ax, trace)]
    if rule is not None:
        entries.append(sink_patch(f"sink by {rule}" + ("" if count else ": none")))
    key(drawn, entries + _absence(trace, shares))
    spelled = None if rule is None else str(rule)
    settings = {"layer": layer, "head": head, "group": group, "rule": spelled}
    data = _received_table(trace, shares, sinks)
    return Figure(drawn, data, name="sink_map", settings=settings, traces=[trace])


@figure(Plot("map-pair"))
def map_pair(trace: Trace, *, step: int, layer: int, head: int, later: int | None = None) -> Figure:
    """The full maps of one head at a step and a later one, and what changed between them.

    `later` is the next step unless it is named. Labels are the tokens each step saw; what was
    committed from the one to the other stands on yellow. Needs the maps in the trace:
    `aw.probes.pattern` takes them, live or in a replay.
    """
    # 1. Two steps of one head.
    if not 0 <= step < trace.num_steps - 1:
        last = trace.num_steps - 2
        raise SpecError(f"step {step} has no next one in the trace: expected 0 to {last}")
    second = step + 1 if later is None else later
    if not step < second < trace.num_steps:
        last = trace.num_steps - 1
        raise SpecError(f"later={second} is no later step: expected {step + 1} to {last}")
    before, after = read_maps(trace, (step, second), layer, head)
    # 2. Both maps on one colour scale, and their difference.
    panels = {"before": before, "after": after, "difference": after - before}
    drawn, axes = sheet(PAGE, 2.6, columns=3)
    limits, even = limits_of(np.stack([before, after])), even_limits_of(after - before)
    heat(axes[0], before, limits=limits, unit=None)
    heat(axes[1], after, limits=limits, unit="share of attention")
    heat(axes[2], after - before, limits=even, unit="change of the share", kind="difference")
    axes[0].set_title(f"step {step}, layer {layer}, head {head}")
    axes[1].set_title(f"step {second}")
    axes[2].set_title(f"step {second} minus step {step}")
    # 3. Tokens along both axes.
    _label_pair(axes, trace, step, second)
    settings = {"step": step, "layer": layer, "head": head, "later": second}
    data = _pattern_table(panels, {"before": step, "after": second, "difference": second})
    return Figure(drawn, data, name="map_pair", settings=settings, traces=[trace])


def _label_pair(axes: list[Axes], trace: Trace, step: int, later: int) -> None:
    """Keys under every panel; queries beside the two maps, which differ in what was committed."""
    most = {along: min(room(ax, along) for ax in axes) for along in ("x", "y")}
    when = trace.committed_at
    committed = np.nonzero((step <= when) & (when < later))[0].tolist()
    for ax, frame, fresh in zip(
        axes, (step, later, later), ((), committed, committed), strict=True
    ):
        labels = token_labels(trace, frame)
        label_axis(ax, labels, name="key", most=most["x"], fresh=fresh)
        label_axis(ax, labels, along="y", name="query", most=most["y"], fresh=fresh)
    axes[1].set_ylabel("")
    axes[2].set(ylabel="", yticks=[])


def role_strip(ax: Axes, role: np.ndarray) -> list[Artist]:
    """The roles of positions as a thin strip on top of a map; returns the legend's entries.

    Absent positions are hatched, as absent cells are; `absent_patch` says what that means.
    """
    tall = 5.0 / (72 * ax.get_position().height * ax.figure.get_figheight())  # type: ignore[union-attr]
    strip = ax.inset_axes((0.0, 1.0 + 0.3 * tall, 1.0, tall))
    strip.set(xlim=ax.get_xlim(), ylim=(0, 1), xticks=[], yticks=[])
    for spine in strip.spines.values():
        spine.set_visible(False)
    entries: list[Artist] = []
    for kind in sorted(set(role.tolist())):
        edges = np.diff(np.concatenate([[False], role == kind, [False]]).astype(np.int8))
        starts, ends = np.nonzero(edges > 0)[0], np.nonzero(edges < 0)[0]
        inked: dict[str, Any] = {"facecolor": ROLE_COLOURS[ROLES[kind]], "edgecolor": "#8c8c8c"}
        if kind == ABSENT:
            inked = {"facecolor": ABSENT_FACE, "edgecolor": ABSENT_LINE, "hatch": ABSENT_HATCH * 2}
        spans = list(zip(starts - 0.5, ends - starts, strict=True))
        strip.broken_barh(spans, (0, 1), **inked, linewidth=0.3)
        if kind != ABSENT:
            entries.append(Patch(**inked, linewidth=0.3, label=ROLES[kind]))
    return entries


def frontier(ax: Axes, trace: Trace) -> Line2D:
    """When each position was committed: the edge between masked and written, on a step x token map.

    A position that was never written has it at the bottom. Returns the legend's entry.
    """
    when = trace.committed_at
    xs: list[float] = []
    ys: list[float] = []
    last = None
    for position in trace.answer.tolist():
        if last is not None and position != last + 1:
            xs.append(np.nan)
            ys.append(np.nan)
        step = trace.num_steps - 1 if when[position] == MISSING else int(when[position])
        xs += [position - 0.5, position + 0.5]
        ys += [step + 0.5, step + 0.5]
        last = position
    wide = float(np.clip(30 / len(when), 0.5, 1.0))
    outlined = [Stroke(linewidth=2 * wide, foreground="black"), Normal()]
    inked: dict[str, Any] = {"color": "white", "linewidth": wide, "path_effects": outlined}
    butt: dict[str, Any] = {"solid_capstyle": "butt", "solid_joinstyle": "miter"}
    ax.plot(xs, ys, **inked, **butt, clip_on=False)
    return Line2D([], [], **inked, label="commit frontier")


def _what(trace: Trace, layer: int | None, head: int | None, group: str) -> str:
    """What the colour is a mean of, in words."""
    model = trace.manifest["model"]
    parts = [
        f"{name} {index}" for name, index in (("layer", layer), ("head", head)) if index is not None
    ]
    many = {"layers": layer, "heads": head}
    means = " and ".join(f"{model[name]} {name}" for name, index in many.items() if index is None)
    queries = [] if group == "all" else [f"{group} queries"]
    return printable(", ".join([*parts, *([f"mean of {means}"] if means else []), *queries]), 60)


def _absence(trace: Trace, shares: np.ndarray) -> list[Artist]:
    """The legend's word on cells without a share: not there, or not measured."""
    gone = trace.role[: len(shares)] == ABSENT
    empty = np.isnan(shares)
    kinds = {"absent": gone & empty, "not measured": ~gone & empty}
    words = [word for word, cells in kinds.items() if cells.any()]
    return [absent_patch(" or ".join(words))] if words else []


def _mean_received(trace: Trace, layer: int | None, head: int | None, group: str) -> np.ndarray:
    """[step, key] shares, a mean over the layers and heads that were measured."""
    if "received" not in trace.fields:
        raise TraceError(
            "the trace has no received attention: measure it with "
            "aw.replay(model, trace, probes=[aw.probes.received()]), "
            "or anchorwatch replay TRACE --probes received -o OUT"
        )
    received = trace["received"]
    groups = received["group"].values.tolist()
    if group not in groups:
        raise SpecError(f"group {group!r} was not measured: the trace has {', '.join(groups)}")
    for name, index in (("layer", layer), ("head", head)):
        if index is not None:
            _check_index(name, index, received.sizes[name])
    shares = received.sel(group=group).transpose("step", "layer", "head", "key").values
    layers = slice(None) if layer is None else slice(layer, layer + 1)
    heads = slice(None) if head is None else slice(head, head + 1)
    chosen = shares[:, layers, heads].astype(np.float64)
    count = np.sum(~np.isnan(chosen), axis=(1, 2))
    mean = np.nansum(chosen, axis=(1, 2)) / np.maximum(count, 1)
    return np.where(count > 0, mean, np.nan)


def _labels(trace: Trace, rule: Rule, shares: np.ndarray) -> np.ndarray:
    visibility = trace.manifest["model"]["visibility"]
    if isinstance(rule, gu) and visibility != "bidirectional":
        raise SpecError(
            f"{rule} asks how many queries may look at a key, which differs from key to key under "
            f"{visibility} visibility: hatch by rulli, ratio or topk"
        )
    return rule.labels(shares)


def _received_table(trace: Trace, shares: np.ndarray, sinks: np.ndarray) -> pd.DataFrame:
    steps, positions = shares.shape
    tokens = [_replace_surrogates(trace.token(token)) for token in trace.canvas[-1].tolist()]
    return pd.DataFrame(
        {
            "step": np.repeat(np.arange(steps), positions),
            "position": np.tile(np.arange(positions), steps),
            "token": tokens * steps,
            "role": [ROLES[role] for role in trace.role[:steps].ravel().tolist()],
            "value": shares.ravel(),
            "sink": sinks.ravel(),
        }
    )


def _replace_surrogates(text: str) -> str:
    """Text that a table can hold: half of a surrogate pair is no character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_maps(
    trace: Trace, steps: Sequence[int], layer: int, head: int, name: str = "pattern"
) -> list[np.ndarray]:
    """[query, key] of one head at some steps: a field of `pattern` or of `qk_maps`."""
    _check_index("layer", layer, trace.manifest["model"]["layers"])
    _check_index("head", head, trace.manifest["model"]["heads"])
    for step in steps:
        _check_index("step", step, trace.num_steps)
    probe, dim = ("pattern", "pick") if name == "pattern" else ("qk_maps", "qk_pick")
    maps = []
    for step in steps:
        index = np.zeros(0, dtype=int)
        if name in trace.fields:
            cell = {"step": step, "layer": layer, "head": head}
            hits = [trace[f"{dim}_{axis}"].values == number for axis, number in cell.items()]
            index = np.nonzero(np.all(hits, axis=0))[0]
        if not index.size:
            listed = ", ".join(map(str, steps))
            word = f"{probe}:layers={layer},heads={head},steps={'+'.join(map(str, steps))}"
            raise TraceError(
                f"the trace has no map of step {step}, layer {layer}, head {head}: measure it with "
                f"aw.replay(model, trace, probes=[aw.probes.{probe}("
                f"layers=[{layer}], heads=[{head}], steps=[{listed}])]), "
                f"or anchorwatch replay TRACE --probes default,{word} -o OUT"
            )
        maps.append(trace[name].values[index[0]].astype(np.float64))
    return maps


def _pattern_table(panels: dict[str, np.ndarray], steps: dict[str, int]) -> pd.DataFrame:
    parts = []
    for name, matrix in panels.items():
        query, key_at = (grid.ravel() for grid in np.indices(matrix.shape))
        fixed = {"panel": name, "step": steps[name]}
        parts.append(pd.DataFrame({"query": query, "key": key_at, "value": matrix.ravel()} | fixed))
    return pd.concat(parts, ignore_index=True)[["panel", "step", "query", "key", "value"]]


def _check_index(name: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        raise SpecError(f"{name} {index} is not in the trace: it has 0 to {count - 1}")
