"""Figures of geometry and norms: why a sink is one, what its value brings, how states mix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.figures.figure import Figure
from anchorwatch.figures.marks import (
    band,
    key,
    lines,
    no_interval,
    require,
    require_quantities,
    whole_ticks,
)
from anchorwatch.figures.registry import Plot, figure
from anchorwatch.figures.style import (
    COLUMN,
    MAGNITUDE,
    NULL,
    PAGE,
    PALETTE,
    SMALL,
    label_axis,
    plain_log,
    printable,
    sheet,
    token_labels,
)
from anchorwatch.metrics.geometry import ROTARY, shapley
from anchorwatch.metrics.layer_slices import iter_layers, require_field
from anchorwatch.metrics.sink_rules import Rule, rulli
from anchorwatch.trace.trace import Trace

OTHER, SINK = PALETTE[0], PALETTE[1]
_PANELS = {
    "logit": "mean logit",
    "cosine": "mean cos(q, k)",
    "norm_product": "mean |q| |k|",
}
_KINDS = {"other": OTHER, "sink": SINK}
_SIDE = 0.62
"""Width of a bar, of the room between two."""


@figure(Plot("qk-triptych"))
def qk_triptych(
    trace: Trace,
    *,
    step: int,
    layer: int,
    head: int,
    rule: Rule | None = None,
    rotary: str = "after",
) -> Figure:
    """Logit, cosine and norm product of every key of one head at one step, sinks marked.

    Means over all queries; the dashed line is the mean of the keys that are no sinks. The title
    says how much of the sinks' logit advantage is angle and how much is norm. Needs every key:
    `aw.probes.qk_geometry(keys=True)`.
    """
    rule = rule or rulli()
    if rotary not in ROTARY:
        raise SpecError(f"rotary={rotary!r} is unknown: expected 'after' or 'before'")
    # 1. Every key of the one head, and which of them are sinks.
    values = {name: require_field(trace, f"each_{name}{ROTARY[rotary]}").values for name in _PANELS}
    cell = (step, layer, head)
    _check(trace, dict(zip(("step", "layer", "head"), cell, strict=True)))
    exists = ~np.isnan(values["logit"][cell])
    if not exists.any():
        raise TraceError(f"step {step}, layer {layer} was not measured: choose another")
    sinks = _sinks(trace, rule, cell)
    data = pd.DataFrame({name: array[cell] for name, array in values.items()})
    data = data.assign(key=np.arange(len(data)), sink=sinks)[exists]
    # 2. Three panels over the same keys, which only the last one names.
    drawn, axes = sheet(PAGE if len(data) > 26 else COLUMN, 3.9, rows=3)
    for ax, (name, title) in zip(axes, _PANELS.items(), strict=True):
        _stems(ax, data, name)
        ax.set(ylabel=title, xlim=(-0.6, len(data) - 0.4))
    for ax in axes[:2]:
        ax.tick_params(axis="x", labelbottom=False, length=0)
    label_axis(axes[2], [token_labels(trace, step)[key] for key in data["key"]], name="key")
    # 3. Title, legend and record.
    axes[0].set_title(f"step {step}, layer {layer}, head {head}{_describe_split(data)}")
    dashed = Line2D([], [], color=NULL, linestyle=(0, (4, 2)), linewidth=0.8)
    dashed.set_label("mean of the others")
    named = f"sink by {rule}" + ("" if data["sink"].any() else ": none")
    key(drawn, [Patch(color=SINK, label=named), Patch(color=OTHER, label="other key"), dashed])
    settings = {"step": step, "layer": layer, "head": head, "rule": str(rule), "rotary": rotary}
    return Figure(drawn, data, name="qk_triptych", settings=settings, traces=[trace])


def _check(trace: Trace, index: Mapping[str, int]) -> None:
    sizes = require_field(trace, "received").sizes
    for name, number in index.items():
        if not 0 <= number < sizes[name]:
            raise SpecError(f"{name} {number} is not in the trace: it has 0 to {sizes[name] - 1}")


def _sinks(trace: Trace, rule: Rule, cell: tuple[int, int, int]) -> np.ndarray:
    """[key] bool."""
    step, layer, head = cell
    layer_slice = next(
        layer_slice for layer_slice in iter_layers(trace) if layer_slice.index == layer
    )
    return layer_slice.labels(rule)[step, head]


def _stems(ax: Axes, data: pd.DataFrame, name: str) -> None:
    value, position = data[name].to_numpy(dtype=np.float64), np.arange(len(data))
    shades = [SINK if sink else OTHER for sink in data["sink"]]
    ax.bar(position, value, 0.8, color=shades, linewidth=0)
    ax.axhline(0, color="black", linewidth=0.5)
    others = value[~data["sink"].to_numpy()]
    if len(others):
        ax.axhline(others.mean(), color=NULL, linestyle=(0, (4, 2)), linewidth=0.8)


def _describe_split(data: pd.DataFrame) -> str:
    """The split of the sinks' advantage in words."""
    sinks, others = data[data["sink"]], data[~data["sink"]]
    if not len(sinks) or not len(others):
        return ""
    norm, other_norm = sinks["norm_product"].to_numpy(), others["norm_product"].mean()
    felt, other_felt = sinks["logit"].to_numpy() / norm, others["logit"].mean() / other_norm
    angle, length = (part.mean() for part in shapley(felt, norm, other_felt, other_norm))
    text = f"\nsinks: {angle + length:+.2f} logits = {angle:+.2f} angle {length:+.2f} norm"
    return text.replace("-", "−")


@figure(Plot("shapley-bars", metric="qk_split"))
def shapley_bars(table: pd.DataFrame) -> Figure:
    """Angle and norm of the sinks' logit advantage by layer, and the angle's share of both.

    For a table of `qk_split` by layer; a row of panels for each model. What works against the sinks
    hangs below zero, and the mark is the advantage, their sum.
    """
    require(table, "model", "layer", "quantity", "value", "low", "high")
    require_quantities(table, "angle", "norm", "advantage", "angle_share")
    # 1. A row of two panels for each model.
    models = list(table["model"].drop_duplicates())
    drawn, axes = sheet(
        PAGE, 0.45 + 1.75 * len(models), rows=len(models), columns=2, ratios=[1.6, 1]
    )
    for row, model in enumerate(models):
        left, right = axes[2 * row : 2 * row + 2]
        part = table[table["model"] == model]
        # 2. Left: angle and norm stacked, and their sum with its interval.
        wide = part.pivot(index="layer", columns="quantity", values="value").sort_index()
        _draw_stacked_bars(left, wide)
        total = part[part["quantity"] == "advantage"].sort_values("layer")
        left.plot(total["layer"], total["value"], "D", color="black", markersize=2.4)
        left.vlines(total["layer"], total["low"], total["high"], color="black", linewidth=0.7)
        left.set(xlabel="layer", ylabel="mean logit over other keys")
        left.set_title(printable(model, 40))
        # 3. Right: the angle's share of both, from -1 to 1.
        share = part[part["quantity"] == "angle_share"].sort_values("layer")
        layers = share["layer"].to_numpy(dtype=np.float64)
        right.plot(layers, share["value"], color=OTHER, marker="o")
        band(right, layers, share["low"].to_numpy(), share["high"].to_numpy(), colour=OTHER)
        right.set(xlabel="layer", ylabel="angle / (|angle| + |norm|)", ylim=(-1.05, 1.05))
        right.set_yticks([-1, -0.5, 0, 0.5, 1])
        for level in (-1, 0, 1):
            right.axhline(level, color=NULL, linewidth=0.4, zorder=0)
        for ax in (left, right):
            whole_ticks(ax, y=False)
    # 4. The legend.
    mark = Line2D([], [], linestyle="none", marker="D", markersize=2.4, color="black")
    mark.set_label("advantage")
    entries: list[Artist] = [Patch(color=OTHER, label="angle"), Patch(color=SINK, label="norm")]
    shown = table[table["quantity"].isin(["advantage", "angle_share"])]
    key(drawn, [*entries, mark, *no_interval(shown)])
    return Figure.of_table(drawn, table, "shapley_bars")


def _draw_stacked_bars(ax: Axes, wide: pd.DataFrame) -> None:
    """Two bars on each other where they agree in sign, on either side of zero where not."""
    layers = wide.index.to_numpy(dtype=np.float64)
    angle, norm = (wide[name].fillna(0).to_numpy(dtype=np.float64) for name in ("angle", "norm"))
    ax.bar(layers, angle, _SIDE, color=OTHER, linewidth=0)
    base = np.where(np.sign(angle) == np.sign(norm), angle, 0.0)
    ax.bar(layers, norm, _SIDE, bottom=base, color=SINK, linewidth=0)
    ax.axhline(0, color="black", linewidth=0.5)


@figure(Plot("value-norms", metric="value_norm_points"))
def value_norm_scatter(points: pd.DataFrame, *, layer: int | None = None) -> Figure:
    """Value norms of sampled sinks and other tokens over what they receive, a panel for each model.

    The title has median and mean of each kind. For a table of `value_norm_points`; of one `layer`,
    where it is named, else of all together.
    """
    require(points, "model", "kind", "layer", "received", "value_norm")
    data = points if layer is None else points[points["layer"] == layer]
    if not len(data):
        known = sorted(points["layer"].unique().tolist())
        raise SpecError(f"no point is of layer {layer}: the table has layers {known}")
    models = list(data["model"].drop_duplicates())
    columns = min(len(models), 2)
    rows = -(-len(models) // columns)
    drawn, axes = sheet(
        COLUMN if columns == 1 else PAGE, 0.3 + 2.2 * rows, rows=rows, columns=columns
    )
    for ax, model in zip(axes, models, strict=False):
        part = data[(data["model"] == model) & (data["received"] > 0)]
        for kind, shade in _KINDS.items():
            dots = part[part["kind"] == kind]
            ax.scatter(
                dots["received"],
                dots["value_norm"],
                s=3.0 if len(dots) < 2000 else 1.2,
                color=shade,
                alpha=0.6 if len(dots) < 2000 else 0.35,
                linewidths=0,
                rasterized=len(dots) > 2000,
            )
        ax.set(xscale="log", xlabel="share of attention received", ylabel="norm of the value")
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if _decades(part) < 2 else (1,)))
        plain_log(ax.xaxis)
        ax.set_title(f"{printable(model, 28)}, {_layers(part)}\n{_describe_kinds(part)}")
    for ax in axes[len(models) :]:
        ax.set_visible(False)
    dots = {"linestyle": "none", "marker": "o", "markersize": 3}
    rule = points.attrs.get("about", {}).get("rule")
    names = {"other": "other", "sink": f"sink by {rule}" if rule else "sink"}
    key(drawn, [Line2D([], [], **dots, color=_KINDS[kind], label=names[kind]) for kind in _KINDS])
    return Figure.of_table(drawn, data, "value_norm_scatter", {"layer": layer})


def _layers(part: pd.DataFrame) -> str:
    layers = sorted(part["layer"].unique().tolist())
    return f"layer {layers[0]}" if len(layers) == 1 else f"{len(layers)} layers"


def _decades(part: pd.DataFrame) -> float:
    return float(np.log10(part["received"].max() / part["received"].min())) if len(part) else 0.0


def _describe_kinds(part: pd.DataFrame) -> str:
    """Median, mean and spread of each kind in words."""
    texts = []
    for kind in _KINDS:
        norms = part[part["kind"] == kind]["value_norm"].to_numpy(dtype=np.float64)
        words = "none"
        if len(norms):
            middle, spread = np.median(norms), f"{norms.mean():.2f} ± {norms.std():.2f}"
            words = f"median {middle:.2f}, mean {spread} (n = {len(norms)})"
        texts.append(f"{kind}: {words}")
    return "\n".join(texts)


@figure(Plot("contributions", metric="contributions"))
def contribution_scatter(table: pd.DataFrame) -> Figure:
    """What sinks bring over what they take, a point for each cell, a panel for each model.

    For a table of `contributions` by layer, or by layer and head. On the line, attention to sinks
    brings as much as attention elsewhere; far below it, it is nearly no operation.
    """
    require(table, "model", "quantity", "value", "null")
    require_quantities(table, "contribution_share")
    data = table[table["quantity"] == "contribution_share"]
    models = list(data["model"].drop_duplicates())
    columns = min(len(models), 2)
    rows = -(-len(models) // columns)
    drawn, axes = sheet(
        COLUMN if columns == 1 else PAGE, 0.35 + 2.6 * rows, rows=rows, columns=columns
    )
    depth = Normalize(0, max(int(data["layer"].max()), 1)) if "layer" in data.columns else None
    for ax, model in zip(axes, models, strict=False):
        part = data[data["model"] == model]
        shade: Any = OTHER if depth is None else part["layer"]
        look_up: dict[str, Any] = {} if depth is None else {"cmap": MAGNITUDE, "norm": depth}
        ax.plot([0, 1], [0, 1], color=NULL, linestyle=(0, (4, 2)), linewidth=0.8, zorder=0)
        ax.scatter(part["null"], part["value"], s=9, c=shade, linewidths=0, **look_up)
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
        ax.set(xlabel="sinks' share of attention", ylabel="sinks' share of contributions")
        ax.set_title(printable(model, 40))
    for ax in axes[len(models) :]:
        ax.set_visible(False)
    if depth is not None:
        shades = ScalarMappable(norm=depth, cmap=MAGNITUDE)
        bar = drawn.colorbar(shades, ax=axes[: len(models)], pad=0.015, aspect=24)
        bar.set_label("layer")
        bar.locator = MaxNLocator(nbins=6, integer=True)
        bar.update_ticks()
        bar.ax.tick_params(labelsize=SMALL, width=0.5, length=2)
    diagonal = Line2D([], [], color=NULL, linestyle=(0, (4, 2)), linewidth=0.8)
    diagonal.set_label("null: as much as attention elsewhere")
    key(drawn, [diagonal])
    return Figure.of_table(drawn, data, "contribution_scatter")


@figure(Plot("mixing", metric="mixing"))
def mixing_by_depth(table: pd.DataFrame) -> Figure:
    """How alike states become with depth: mean cosine and effective rank, a line for each model.

    For a table of `mixing` by layer. The null of the rank is the number of positions.
    """
    require(table, "model", "layer", "quantity", "value", "null")
    require_quantities(table, "state_cosine", "effective_rank")
    drawn, axes = sheet(PAGE, 2.2, columns=2)
    units = {"state_cosine": "mean cosine of two positions", "effective_rank": "effective rank"}
    entries: list[Artist] = []
    for ax, (quantity, unit) in zip(axes, units.items(), strict=True):
        part = table[table["quantity"] == quantity]
        entries = lines(ax, part, x="layer", unit=unit, colour_by="model")
        if part["value"].min() >= 0:
            ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    key(drawn, entries)
    return Figure.of_table(drawn, table, "mixing_by_depth")
