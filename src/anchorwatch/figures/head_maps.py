"""Maps [query, key] of a head or a layer: attention, and logits with their two factors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from anchorwatch.errors import SpecError
from anchorwatch.figures.figure import Figure
from anchorwatch.figures.maps import read_maps, role_strip
from anchorwatch.figures.marks import absent_patch, even_limits_of, heat, key, limits_of, shared_bar
from anchorwatch.figures.registry import Plot, figure
from anchorwatch.figures.style import (
    COLUMN,
    PAGE,
    PALETTE,
    label_axis,
    printable,
    sheet,
    token_labels,
)
from anchorwatch.metrics.layer_slices import find_top_key
from anchorwatch.metrics.null import layer_window, visible_spans
from anchorwatch.metrics.sink_rules import Rule, check_rule, zscore
from anchorwatch.trace.trace import ABSENT, MASKED, Trace

MARK = PALETTE[1]
DEFAULT_RULE = zscore(3)
"""Of the published script: above the mean by three standard deviations."""
_PANELS = {
    "qk_logit": "logit: scaled q · k",
    "qk_cosine": "cos(q, k)",
    "qk_norm_product": "|q| |k|",
}


@figure(Plot("qk-maps"))
def qk_maps(trace: Trace, *, step: int, layer: int, head: int, rule: Rule | None = None) -> Figure:
    """Logit, cosine and norm product of every query and key of one head at one step.

    Triangles mark the columns that the rule calls sinks of this head, by default mean + 3 standard
    deviations, as 2601.07894 has it; where there is none, the top key (hollow). Pairs that may not
    look at each other are absent. Needs `aw.probes.qk_maps`.
    """
    # 1. Three maps; what a query may not look at is left out.
    maps = {name: read_maps(trace, [step], layer, head, name)[0] for name in _PANELS}
    hidden = ~_visible(trace, step, layer)
    for matrix in maps.values():
        matrix[hidden] = np.nan
    marked, by_rule = _marked_keys(trace, step, layer, head, rule)
    # 2. One panel each; the cosine has its middle at zero.
    drawn, axes = sheet(PAGE, 2.75, columns=3)
    for ax, (name, title) in zip(axes, _PANELS.items(), strict=True):
        signed = name != "qk_norm_product"
        values = maps[name]
        limits = even_limits_of(values) if signed else _limits(values)
        heat(ax, values, limits=limits, unit=title, kind="difference" if signed else "magnitude")
        _mark_columns(ax, marked, filled=by_rule)
    _label_tokens(axes, trace, step)
    model = printable(trace.manifest["model"]["source"], 30)
    axes[0].set_title(f"{model}, layer {layer}, head {head}, step {step}", pad=9)
    # 3. Legend and record.
    word = str(rule or DEFAULT_RULE)
    said = f"sink by {word}" if by_rule else f"top key ({word} finds none)"
    entries: list[Artist] = [_triangle(said, filled=by_rule)]
    key(drawn, entries + ([absent_patch("may not be looked at")] if hidden.any() else []))
    settings = {"step": step, "layer": layer, "head": head, "rule": word}
    return Figure(drawn, _tidy(maps), name="qk_maps", settings=settings, traces=[trace])


@figure(Plot("attention-map"))
def attention_map(trace: Trace, *, step: int, layer: int, head: int) -> Figure:
    """The full map of one head at one step; roles of the keys on top, of the queries at the left.

    Triangles mark the top key of masked queries and of all others: where they differ, masked and
    written positions have a sink each (2510.15731, Fig. 6a). Needs `aw.probes.pattern`.
    """
    # 1. The map, and the top key of masked queries and of the others.
    (values,) = read_maps(trace, [step], layer, head)
    values[~_visible(trace, step, layer)] = np.nan
    role = trace.role[step]
    kinds = {"masked queries": role == MASKED, "other queries": (role != MASKED) & (role != ABSENT)}
    tops = {}
    for name, rows in kinds.items():
        known = values[rows & ~np.isnan(values).all(axis=1)]
        if len(known):
            share = np.nansum(known, axis=0) / len(known)
            tops[name] = (int(find_top_key(share[None])[0][0]), float(share.max()))
    # 2. Colour, tokens, roles.
    drawn, (ax,) = sheet(1.4 * COLUMN, 4.3)
    heat(ax, values, limits=limits_of(values), unit="share of attention")
    label_axis(ax, token_labels(trace, step), name="key")
    label_axis(ax, token_labels(trace, step), along="y", name="query")
    entries: list[Artist] = [*role_strip(ax, role)]
    for number, (name, (position, share)) in enumerate(tops.items()):
        colour = PALETTE[1 + number]
        ax.axvline(position, color=colour, linewidth=0.9, linestyle=(0, (4, 3)))
        label = f"top key of {name}: {share:.0%}"
        entries.append(
            Line2D([], [], color=colour, linewidth=0.9, linestyle=(0, (4, 3)), label=label)
        )
    model = printable(trace.manifest["model"]["source"], 30)
    ax.set_title(f"{model}, layer {layer}, head {head}, step {step}", pad=10)
    key(drawn, entries)
    settings = {"step": step, "layer": layer, "head": head}
    data = _tidy({"pattern": values})
    return Figure(drawn, data, name="attention_map", settings=settings, traces=[trace])


@figure()
def layer_maps(traces: Sequence[Trace], *, step: int, layers: Sequence[int]) -> Figure:
    """Mean over heads of the full maps: a row for each trace, a column for each layer.

    A triangle marks the top key of each map. All maps share one colour scale, which ends at the
    largest 99th percentile of a map. Needs `aw.probes.pattern` of all heads.
    """
    if not traces or not layers:
        raise SpecError(
            "layer_maps needs traces and layers: layer_maps([trace], step=8, layers=[0])"
        )
    # 1. Mean maps of every trace and layer, and one scale for all of them.
    steps = [min(step, trace.num_steps - 1) for trace in traces]
    maps = [
        [_mean_map(trace, at, layer) for layer in layers]
        for trace, at in zip(traces, steps, strict=True)
    ]
    # The diagonal would hide the columns: colour ends at the 99th percentile.
    highest = max(float(np.nanquantile(values, 0.99)) for row in maps for values in row)
    # 2. A panel each, with its top key, and one bar for all.
    drawn, axes = sheet(PAGE, 0.45 + 2.25 * len(traces), rows=len(traces), columns=len(layers))
    meshes = []
    for ax, (row, column) in zip(axes, np.ndindex(len(traces), len(layers)), strict=True):
        values = maps[row][column]
        meshes.append(heat(ax, values, limits=(0.0, highest or 1.0), unit=None))
        share = np.nansum(values, axis=0) / len(values)
        top = int(find_top_key(share[None])[0][0])
        _mark_columns(ax, np.array([top]), filled=True)
        ax.set_title(f"layer {layers[column]}: top key {top}, {share[top]:.0%}", pad=8)
        ax.set_xlabel("key")
        if column == 0:
            source = printable(traces[row].manifest["model"]["source"], 24)
            ax.set_ylabel(f"{source}\nquery at step {steps[row]}")
    shared_bar(axes, meshes, "share of attention, mean of heads")
    # 3. Legend and record.
    names = [trace.manifest["model"]["source"] for trace in traces]
    panels = {
        (name, layer): values
        for name, row_of_maps in zip(names, maps, strict=True)
        for layer, values in zip(layers, row_of_maps, strict=True)
    }
    data = pd.concat(
        [_tidy({"pattern": v}).assign(model=m, layer=n) for (m, n), v in panels.items()]
    )
    entries: list[Artist] = [_triangle("top key", filled=True)]
    unseen = any(np.isnan(values).any() for values in panels.values())
    key(drawn, entries + ([absent_patch("may not be looked at")] if unseen else []))
    settings = {"step": step, "layers": list(layers)}
    return Figure(drawn, data, name="layer_maps", settings=settings, traces=list(traces))


def _mean_map(trace: Trace, step: int, layer: int) -> np.ndarray:
    """[query, key] mean over heads; what may not be looked at is NaN, what is absent left out."""
    heads = range(trace.manifest["model"]["heads"])
    values = np.mean([read_maps(trace, [step], layer, head)[0] for head in heads], axis=0)
    values[~_visible(trace, step, layer)] = np.nan
    length = int(np.count_nonzero(trace.role[step] != ABSENT))
    return values[:length, :length]


def _limits(values: np.ndarray) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    if not finite.size or finite.min() == finite.max():
        return limits_of(values)
    return float(finite.min()), float(finite.max())


def _visible(trace: Trace, step: int, layer: int) -> np.ndarray:
    """[query, key] bool: what each existing row may look at; False beyond the canvas."""
    size = trace.canvas.shape[1]
    first, last = visible_spans(trace, step, layer_window(trace, layer))
    keys = np.arange(size)
    seen = np.zeros((size, size), dtype=bool)
    seen[: len(first)] = (first[:, None] <= keys) & (keys < last[:, None])
    return seen


def _marked_keys(
    trace: Trace, step: int, layer: int, head: int, rule: Rule | None
) -> tuple[np.ndarray, bool]:
    """Positions that the rule calls sinks of this head at this step; else its top key."""
    received = trace["received"].sel(group="all")[step, layer, head].values.astype(np.float64)
    labels = check_rule(rule or DEFAULT_RULE).labels(received[None])[0]
    if labels.any():
        return np.flatnonzero(labels), True
    return find_top_key(received[None])[0], False


def _mark_columns(ax: Axes, positions: np.ndarray, *, filled: bool) -> None:
    """Triangles above the columns."""
    ax.plot(
        positions,
        np.full(len(positions), 1.015),
        marker="v",
        markersize=3.2,
        linestyle="none",
        color=MARK,
        markerfacecolor=MARK if filled else "white",
        markeredgewidth=0.7,
        transform=ax.get_xaxis_transform(),
        clip_on=False,
    )


def _triangle(label: str, *, filled: bool) -> Line2D:
    face = MARK if filled else "white"
    return Line2D(
        [],
        [],
        marker="v",
        markersize=3.6,
        linestyle="none",
        color=MARK,
        markerfacecolor=face,
        label=label,
    )


def _label_tokens(axes: Sequence[Axes], trace: Trace, step: int) -> None:
    """Keys under every panel, queries beside the first."""
    labels = token_labels(trace, step)
    for ax in axes:
        label_axis(ax, labels, name="key")
    label_axis(axes[0], labels, along="y", name="query")
    for ax in axes[1:]:
        ax.set(yticks=[], ylabel="")


def _tidy(maps: dict[str, np.ndarray]) -> pd.DataFrame:
    """One row for each query and key, a column for each map."""
    shape = next(iter(maps.values())).shape
    query, key_at = (grid.ravel() for grid in np.indices(shape))
    return pd.DataFrame(
        {"query": query, "key": key_at} | {name: matrix.ravel() for name, matrix in maps.items()}
    )
