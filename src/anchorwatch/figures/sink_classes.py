"""Figures of what sinks are: classes that are more often sinks than keys, structure by depth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from anchorwatch.errors import SpecError
from anchorwatch.figures.figure import Figure
from anchorwatch.figures.marks import absent_patch, heat, key, lines, require, whole_ticks
from anchorwatch.figures.registry import Plot, figure
from anchorwatch.figures.style import (
    COLUMN,
    MARKERS,
    NULL,
    PAGE,
    SMALL,
    colours,
    printable,
    sheet,
)
from anchorwatch.metrics.token_classes import CLASSES

KINDS = ("structure", "mask", "content")
SCORES = {"class": "token class", "token": "token", "place": "place", "both": "class and place"}
NEVER = "#d9dee8"
"""The ground of a class that stands there and is never a sink."""
LEAST_LIMIT, MOST_LIMIT = 1.0, 6.0
"""Colours of a depth map reach from twofold to 64-fold at the most."""


@figure(Plot("enrichment", metric="enrichment"))
def enrichment(table: pd.DataFrame) -> Figure:
    """How many times as often each class is among sinks as among keys, a dot for each model.

    The line at 1 is the null. A class that stands in no canvas is left out; one that never is a
    sink is an arrow at the edge. With one model the shares are said beside the dots.
    """
    require(table, "model", "class", "lift", "lift_low", "lift_high", "lift_n")
    if table.duplicated(["model", "class"]).any():
        raise SpecError(
            "the table is split further than by class: draw enrichment_depth of it, "
            "or measure enrichment with by=()"
        )
    data = table[table["null"] > 0]
    if data.empty:
        raise SpecError("there is no sink in these traces: no class has a share to draw")
    names = [name for name in CLASSES if name in set(data["class"])]
    models = sorted(data["model"].drop_duplicates())
    drawn, (ax,) = sheet(COLUMN, 0.75 + 0.155 * len(names) * max(1.0, 0.6 * len(models)))
    entries = _dots(ax, data, names, models)
    if len(models) == 1:
        _shares_beside(ax, data.set_index("class"), names)
    ax.set_yticks(range(len(names)), labels=names)
    ax.tick_params(axis="y", length=0)
    ax.set(ylim=(len(names) - 0.5, -0.5), xlabel="share of sinks / share of keys")
    key(drawn, entries)
    return Figure.of_table(drawn, data, "enrichment")


def _dots(ax: Axes, data: pd.DataFrame, names: list[str], models: list[str]) -> list[Artist]:
    # 1. Lifts on a log scale, the null at 1.
    ax.set_xscale("log", base=2)
    low, high = _reach(data)
    ax.set_xlim(low, high)
    ax.xaxis.set_major_locator(LogLocator(base=2, numticks=9))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _times(value)))
    null = ax.axvline(1, color=NULL, linestyle=(0, (4, 2)), linewidth=0.8, label="null")
    between = np.arange(len(names) - 1) + 0.5
    ax.hlines(between, low, high, color="#e8e8e8", linewidth=0.4, zorder=0)
    # 2. Models stand a little apart at each class, with their intervals.
    shades, entries = colours(models), list[Artist]()
    apart = 0.62 / len(models)
    for index, model in enumerate(models):
        rows = data[data["model"] == model]
        height = rows["class"].map(names.index).to_numpy(dtype=float)
        height += (index - (len(models) - 1) / 2) * apart
        lift = rows["lift"].to_numpy(dtype=float)
        bounds = rows[["lift_low", "lift_high"]].to_numpy(dtype=float)
        ax.hlines(height, *np.clip(bounds, low, high).T, color=shades[model], linewidth=0.9)
        ax.plot(lift, height, MARKERS[index % len(MARKERS)], color=shades[model], markersize=3.6)
        never = height[lift == 0]
        ax.plot(
            np.full(len(never), low * 1.12), never, "<", color=shades[model], mfc="white", ms=3.6
        )
        label = printable(model, 40)
        marker = MARKERS[index % len(MARKERS)]
        entries.append(Line2D([], [], color=shades[model], marker=marker, label=label))
    # 3. A lift of 0 has no place on a log scale: an arrow at the edge.
    if (data["lift"] == 0).any():
        arrow = Line2D([], [], marker="<", color="black", linestyle="none", label="never a sink")
        arrow.set_markerfacecolor("white")
        entries.append(arrow)
    return [*entries, null, *_without_interval(data)]


def _shares_beside(ax: Axes, rows: pd.DataFrame, names: list[str]) -> None:
    """The shares whose ratio the dots are, in two columns at the right."""
    for column, name, title in ((1.10, "value", "sinks"), (1.27, "null", "keys")):
        shown = [
            (-0.55 - 0.35, title),
            *((i, _percent(rows[name][n])) for i, n in enumerate(names)),
        ]
        for height, text in shown:
            ax.text(
                column,
                height,
                text,
                transform=ax.get_yaxis_transform(),
                ha="right",
                va="center",
                fontsize=SMALL,
                color="black" if height >= 0 else NULL,
            )


def _reach(data: pd.DataFrame) -> tuple[float, float]:
    """Whole powers of two around every dot and interval, at least from 1/2 to 2."""
    lifts = data[["lift", "lift_low", "lift_high"]].to_numpy(dtype=float)
    lifts = lifts[np.isfinite(lifts) & (lifts > 0)]
    ends = np.log2([min(lifts.min(initial=1), 0.5) / 1.2, max(lifts.max(initial=1), 2) * 1.1])
    return float(2 ** max(np.floor(ends[0]), -10)), float(2 ** np.ceil(ends[1]))


@figure(Plot("enrichment-depth", metric="enrichment", by=("layer",)))
def enrichment_depth(table: pd.DataFrame) -> Figure:
    """Layer x class: log2 of how many times as often a class is among sinks as among keys.

    For `enrichment(..., by=["layer"])`. Red is more, blue is less. Where a class is never a sink
    there is no colour; a layer without a sink is hatched, and a class that stands in no canvas.
    """
    require(table, "model", "layer", "class", "log2")
    if table.duplicated(["model", "layer", "class"]).any():
        raise SpecError("the table is split further than by layer: measure with by=['layer']")
    # 1. Classes that stand in some canvas, and one colour scale for all models.
    standing = table.groupby("class")["null"].max()
    names = [name for name in CLASSES if standing.get(name, 0) > 0]
    if not names:
        raise SpecError("there is no sink in these traces: no class has a share to draw")
    data = table[table["class"].isin(names)]
    finite = data["log2"].to_numpy(dtype=float)
    finite = finite[np.isfinite(finite)]
    limit = float(np.clip(np.ceil(np.abs(finite).max(initial=0)), LEAST_LIMIT, MOST_LIMIT))
    # 2. A map for each model, as high as it has layers.
    models = list(data["model"].drop_duplicates())
    width = COLUMN if len(models) == 1 else PAGE
    rows = -(-len(models) // 2)
    layers = int(data["layer"].max()) + 1
    height = 0.95 + float(np.clip(0.11 * layers, 0.7, 2.6))
    drawn, axes = sheet(width, height * rows, rows=rows, columns=min(len(models), 2))
    for ax, model in zip(axes, models, strict=False):
        _depth_map(ax, data[data["model"] == model], names, limit)
        ax.set_title(printable(model, 40))
    for ax in axes[len(models) :]:
        ax.set_visible(False)
    # 3. What has no colour is explained.
    entries: list[Artist] = []
    if np.isneginf(data["log2"]).any():
        entries.append(Patch(facecolor=NEVER, label="never a sink"))
    if data["log2"].isna().any():
        entries.append(absent_patch("no sink in the layer, or no such token"))
    key(drawn, entries)
    return Figure.of_table(drawn, data, "enrichment_depth")


def _depth_map(ax: Axes, rows: pd.DataFrame, names: Sequence[str], limit: float) -> None:
    wide = rows.pivot(index="layer", columns="class", values="log2")
    wide = wide.reindex(index=range(int(rows["layer"].max()) + 1), columns=list(names))
    values = wide.to_numpy(dtype=float)
    never = np.isneginf(values)
    shown = np.where(never, 0.0, values)  # not absent: its own ground covers it
    mesh = heat(ax, shown, limits=(-limit, limit), unit="sinks / keys", kind="difference")
    ticks = np.arange(-limit, limit + 1, 1 if limit < 4 else 2)
    assert mesh.colorbar is not None
    mesh.colorbar.set_ticks(ticks.tolist(), labels=[_times(2.0**tick) for tick in ticks])
    squares = [Rectangle((x - 0.5, y - 0.5), 1, 1) for y, x in np.argwhere(never)]
    ground = PatchCollection(squares, facecolor=NEVER, edgecolor="face", linewidth=0.15)
    ax.add_collection(ground, autolim=False)
    whole_ticks(ax, x=False)
    ax.set_xticks(range(len(names)), labels=list(names), rotation=45)
    ax.tick_params(axis="x", length=0, pad=4)
    for text in ax.get_xticklabels():
        text.set(ha="right", va="center", rotation_mode="anchor")
    ax.set(ylabel="layer")


@figure(Plot("structure", metric="structure"))
def structure(table: pd.DataFrame) -> Figure:
    """Structure, masks and content by layer: their shares of sinks, and of all attention.

    One row of panels for each model, with bands and nulls.
    """
    require(table, "model", "layer", "quantity", "value")
    panels = {"of_sinks": "share of attention on sinks", "": "share of all attention"}
    wanted = [f"{kind}{'_' * bool(of)}{of}" for of in panels for kind in KINDS]
    if lost := [name for name in wanted if name not in set(table["quantity"])]:
        raise SpecError(f"the table has no quantity {lost[0]!r}: draw the table of `structure`")
    models = list(table["model"].drop_duplicates())
    drawn, axes = sheet(PAGE, 0.45 + 1.75 * len(models), rows=len(models), columns=2)
    entries: list[Artist] = []
    for index, model in enumerate(models):
        for ax, (of, unit) in zip(axes[2 * index :], panels.items(), strict=False):
            part = _of_kinds(table[table["model"] == model], of)
            drawn_lines = lines(ax, part, x="layer", unit=unit, colour_by="kind")
            entries = drawn_lines if len(drawn_lines) > len(entries) else entries
            ax.set(ylim=(-0.03, 1.03))
            ax.set_title(printable(model, 40) if len(models) > 1 else "")
    key(drawn, entries)
    return Figure.of_table(drawn, table, "structure")


def _of_kinds(rows: pd.DataFrame, of: str) -> pd.DataFrame:
    end = f"_{of}" if of else ""
    named = {f"{kind}{end}": kind for kind in KINDS}
    part = rows[rows["quantity"].isin(named)]
    kinds = pd.Categorical(part["quantity"].map(named), categories=list(KINDS), ordered=True)
    return part.assign(kind=kinds)


@figure(Plot("meaning-or-place", metric="meaning_or_place"))
def meaning_or_place(table: pd.DataFrame) -> Figure:
    """Variance that class, token, place and class with place explain, by layer, out of sample.

    A panel for each outcome, a row for each model; below zero the means mislead.
    """
    require(table, "model", "outcome", "layer", "quantity", "value")
    models = list(table["model"].drop_duplicates())
    outcomes = list(table["outcome"].drop_duplicates())
    columns = len(outcomes)
    drawn, axes = sheet(PAGE, 0.45 + 1.75 * len(models), rows=len(models), columns=columns)
    titles = {"received": "attention received", "sink": "being a sink"}
    entries: list[Artist] = []
    for index, model in enumerate(models):
        for ax, outcome in zip(axes[columns * index :], outcomes, strict=False):
            chosen = (table["model"] == model) & (table["outcome"] == outcome)
            part = table[chosen & table["quantity"].isin(SCORES)]
            label = part["quantity"].map(SCORES)
            kinds = pd.Categorical(label, categories=list(SCORES.values()), ordered=True)
            part = part.assign(by=kinds)
            drawn_lines = lines(ax, part, x="layer", unit="variance explained", colour_by="by")
            entries = drawn_lines if len(drawn_lines) > len(entries) else entries
            ax.axhline(0, color="black", linewidth=0.5)
            ax.set_ylim(top=1.03)
            title = titles.get(outcome, outcome)
            ax.set_title(title if len(models) == 1 else f"{printable(model, 40)}: {title}")
    key(drawn, entries)
    return Figure.of_table(drawn, table, "meaning_or_place")


def _without_interval(data: pd.DataFrame) -> list[Artist]:
    bare = data[data["lift_low"].isna()]
    if bare.empty:
        return []
    counts = sorted(set(bare["lift_n"].astype(int)))
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
    label = f"no interval: {span} prompt{'s' * (counts != [1])}"
    return [Line2D([], [], linestyle="none", label=label)]


def _times(value: float) -> str:
    return f"{value:g}" if value >= 1 else f"1/{1 / value:g}"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.0995 or share == 0 else f"{share:.1%}"
