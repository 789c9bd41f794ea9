"""Figures of movement: where sinks are over layers and steps, how long they last, head types."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from anchorwatch.errors import SpecError
from anchorwatch.figures.figure import Figure
from anchorwatch.figures.marks import (
    absent_patch,
    even_limits_of,
    grid,
    heat,
    key,
    limits_of,
    lines,
    no_interval,
    require,
    require_quantities,
    whole_ticks,
)
from anchorwatch.figures.registry import Plot, figure
from anchorwatch.figures.style import (
    ABSENT_FACE,
    COLUMN,
    MARKERS,
    NULL,
    PAGE,
    PALETTE,
    ROLE_COLOURS,
    colours,
    label_axis,
    printable,
    sheet,
    token_labels,
)
from anchorwatch.metrics.headtypes import ABSENT, TYPES
from anchorwatch.metrics.movement import current_block, mask_frontier
from anchorwatch.trace.trace import Trace

MOST_PATHS = 4
TYPE_COLOURS = {
    "static": "#0072B2",
    "moving": "#D55E00",
    "flicker": "#CC79A7",
    "split": "#009E73",
    "block-drift": "#E69F00",
    "frontier": "#56B4E9",
    "none": "#e3e3e3",
    "mixed": "#6e6e6e",
}
_UNITS = {
    "jaccard": "shared / all sinks",
    "received_cosine": "cosine",
    "received_jensen_shannon": "bits",
    "map_cosine": "cosine",
    "map_jensen_shannon": "bits",
    "same_greatest": "share of pairs of heads",
}
_TITLES = {
    "jaccard": "overlap of sinks (Jaccard)",
    "received_cosine": "likeness of received attention",
    "received_jensen_shannon": "Jensen-Shannon divergence of received",
    "map_cosine": "likeness of maps, row by row",
    "map_jensen_shannon": "Jensen-Shannon divergence of maps",
}


@figure(Plot("sink-positions", metric="sink_positions"))
def sink_positions(table: pd.DataFrame, *, head: int | None = None) -> Figure:
    """Layer x step: where the greatest sink is, one panel for each trace of `sink_positions`.

    Of all heads that have a sink the commonest position, unless one is named; hatched where none
    has a sink.
    """
    require(table, "model", "trace", "seed", "layer", "head", "step", "position", "sink")
    if head is not None and head not in set(table["head"]):
        raise SpecError(f"head {head} is not in the table: it has 0 to {table['head'].max()}")
    chosen = table if head is None else table[table["head"] == head]
    panels = _traces(chosen)
    drawn, axes = sheet(
        COLUMN if len(panels) == 1 else PAGE,
        0.35 + 1.75 * -(-len(panels) // 2),
        rows=-(-len(panels) // 2),
        columns=min(len(panels), 2),
    )
    limits = (0.0, float(max(chosen["position"].max(), 1)))
    shown = []
    for ax, (name, rows) in zip(axes, panels.items(), strict=False):
        part = _commonest(rows)
        heat(ax, part.pivot(index="layer", columns="step", values="value").to_numpy(float),
             limits=limits, unit="position of the sink")  # fmt: skip
        whole_ticks(ax)
        ax.set(xlabel="step", ylabel="layer", title=printable(name, 40))
        shown.append(part)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    data = pd.concat(shown, ignore_index=True)
    key(drawn, [absent_patch("no sink")] if data["value"].isna().any() else [])
    return Figure.of_table(drawn, data, "sink_positions", {"head": head}, table)


@figure(Plot("sink-path", metric="sink_positions"))
def sink_path(
    table: pd.DataFrame,
    traces: Trace | Sequence[Trace] | None = None,
    *,
    heads: Sequence[tuple[int, int]] | None = None,
) -> Figure:
    """Position of the greatest sink over steps, a line for each (layer, head) (Fig. 7).

    One panel for each trace of `sink_positions`; a line has a gap where its head has no sink. The
    traces themselves add tokens, commits, the rightmost masked position and where blocks open.
    Without `heads`, the four that have sinks most often, and of those the greatest.
    """
    require(table, "model", "trace", "seed", "layer", "head", "step", "position", "sink", "share")
    chosen = _chosen_heads(table, heads)
    given = [traces] if isinstance(traces, Trace) else list(traces or ())
    known = {item.digest()[:12]: item for item in given}
    panels = _traces(table)
    drawn, axes = sheet(
        PAGE if len(panels) > 1 else 1.35 * COLUMN,
        0.45 + 2.3 * -(-len(panels) // 2),
        rows=-(-len(panels) // 2),
        columns=min(len(panels), 2),
    )
    entries: dict[str, Artist] = {}
    shades = colours(list(range(len(chosen))))
    for ax, (name, rows) in zip(axes, panels.items(), strict=False):
        trace = known.get(str(rows["trace"].iloc[0]))
        if trace is not None:
            entries |= {str(item.get_label()): item for item in _scene(ax, trace)}
        for index, (layer, head) in enumerate(chosen):
            part = rows[(rows["layer"] == layer) & (rows["head"] == head)].sort_values("step")
            position = part["position"].where(part["sink"]).to_numpy(float)
            (line,) = ax.plot(
                part["step"].to_numpy(),
                position,
                color=shades[index],
                marker=MARKERS[index % len(MARKERS)],
                markersize=2.2,
                linewidth=0.9,
                label=f"layer {layer}, head {head}",
                zorder=3,
            )
            entries[str(line.get_label())] = line
        whole_ticks(ax, y=trace is None)
        ax.set(xlabel="step", title=printable(name, 40))
        ax.set_xlim(-0.5, int(rows["step"].max()) + 0.5)
        if trace is None:
            ax.set_ylabel("position")
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    key(drawn, list(entries.values()))
    pairs = pd.MultiIndex.from_tuples(chosen)
    data = table[pd.MultiIndex.from_frame(table[["layer", "head"]]).isin(pairs)]
    return Figure.of_table(
        drawn, data, "sink_path", {"heads": [list(item) for item in chosen]}, table
    )


@figure(Plot("survival", metric="survival"))
def survival(table: pd.DataFrame) -> Figure:
    """Share of sinks that outlast so many steps, one staircase for each model, with bands."""
    require(table, "model", "age", "value")
    if table.duplicated(["model", "age"]).any():
        raise SpecError(
            "the table has several values for one model and age: measure survival without `by`, "
            "or choose a layer first"
        )
    # 1. Every stay lasts zero steps: each staircase begins at age 0 with share 1.
    drawn, (ax,) = sheet(COLUMN, 2.4)
    models = sorted(table["model"].drop_duplicates())
    shades = colours(models)
    entries: list[Artist] = []
    for model in models:
        rows = table[table["model"] == model].sort_values("age")
        age = np.insert(rows["age"].to_numpy(float), 0, 0.0)
        stairs = {name: np.insert(rows[name].to_numpy(float), 0, 1.0) for name in ("value", "null")}
        (line,) = ax.step(
            age, stairs["value"], where="post", color=shades[model], label=printable(model, 40)
        )
        low, high = (np.insert(rows[name].to_numpy(float), 0, np.nan) for name in ("low", "high"))
        known = (np.isfinite(low) & np.isfinite(high)).tolist()
        ax.fill_between(
            age, low, high, where=known, step="post", color=shades[model], alpha=0.18, linewidth=0
        )
        ink = shades[model] if len(models) > 1 else NULL
        ax.step(age, stairs["null"], where="post", color=ink, linestyle=(0, (4, 2)), linewidth=0.8)
        entries.append(line)
    entries.append(
        Line2D([], [], color=NULL, linestyle=(0, (4, 2)), linewidth=0.8, label="steps shuffled")
    )
    # 2. The axis ends where nothing is left to see.
    shown = table[(table["value"] > 0) | (table["null"] > 0.005)]
    ax.set(xlabel="steps", ylabel="share of sinks that last longer", ylim=(0, 1.03))
    ax.set_xlim(0, max(int(shown["age"].max()) if len(shown) else 1, 1))
    whole_ticks(ax, y=False)
    key(drawn, entries + no_interval(table))
    return Figure.of_table(drawn, table, "survival")


@figure(
    Plot("set-jaccard", metric="set_jaccard"),
    Plot("received-similarity", metric="received_similarity"),
)
def by_lag(table: pd.DataFrame, *, quantities: Sequence[str] | None = None) -> Figure:
    """Likeness over the lag in steps, a panel for each quantity, a line for each model.

    For `set_jaccard`, `received_similarity` and `map_similarity`; the null is all pairs of steps.
    """
    require(table, "model", "lag", "quantity", "value")
    chosen = list(quantities or table["quantity"].drop_duplicates())
    require_quantities(table, *chosen)
    drawn, axes = sheet(COLUMN if len(chosen) == 1 else PAGE, 2.2, columns=len(chosen))
    entries: list[Artist] = []
    for ax, quantity in zip(axes, chosen, strict=True):
        part = table[(table["quantity"] == quantity) & table["value"].notna()]
        drawn_lines = lines(ax, part, x="lag", unit=_UNITS.get(quantity, ""), colour_by="model")
        entries = drawn_lines if len(drawn_lines) > len(entries) else entries
        lags = sorted(part["lag"].unique())
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_locator(FixedLocator(lags))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda lag, _: f"{lag:g}"))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set(xlabel="lag (steps)", title=_TITLES.get(quantity, quantity.replace("_", " ")))
        ax.set_ylim(0, None if "shannon" in quantity else 1.03)
    key(drawn, entries)
    data = table[table["quantity"].isin(chosen)]
    return Figure.of_table(drawn, data, "by_lag", {"quantities": chosen}, table)


@figure(Plot("head-types", metric="head_types"))
def head_types(table: pd.DataFrame) -> Figure:
    """Layer x head, coloured by type, and the share of each type in a layer; a row for each model.

    Of several traces of one model a cell has the commonest type, and the shares are of all.
    """
    require(table, "model", "layer", "head", "type")
    models = list(table["model"].drop_duplicates())
    tall = 0.5 + len(models) * float(np.clip(0.6 + 0.09 * (table["layer"].max() + 1), 1.5, 3.2))
    drawn, axes = sheet(PAGE, tall, rows=len(models), columns=2, ratios=(1.5, 1.0))
    for row, model in enumerate(models):
        rows = table[table["model"] == model]
        _type_grid(axes[2 * row], rows)
        _type_bars(axes[2 * row + 1], rows)
        number = int(rows.groupby(["layer", "head"]).size().max())
        of = f", commonest of {number} traces" if number > 1 else ""
        axes[2 * row].set_title(printable(model, 40) + of)
    types = set(table["type"])
    entries: list[Artist] = [
        Patch(color=TYPE_COLOURS[kind], label=kind) for kind in TYPES if kind in types
    ]
    key(drawn, entries + ([absent_patch("not measured")] if ABSENT in types else []))
    return Figure.of_table(drawn, table, "head_types")


@figure(Plot("layer-consistency", metric="layer_consistency"))
def layer_consistency(table: pd.DataFrame, *, quantity: str = "jaccard") -> Figure:
    """Layer x layer: how far sinks are shared at the same step, and how much more than shuffled."""
    require(table, "model", "layer", "other_layer", "quantity", "value", "null")
    require_quantities(table, quantity)
    data = table[table["quantity"] == quantity]
    models = list(data["model"].drop_duplicates())
    drawn, axes = sheet(PAGE, 0.3 + 2.5 * len(models), rows=len(models), columns=2)
    if quantity == "jaccard":  # a layer with itself says nothing
        data = data.assign(value=data["value"].where(data["layer"] != data["other_layer"]))
    beyond = data.assign(value=data["value"] - data["null"])
    limits, even = (of(part["value"].to_numpy(float)) for of, part in
                    ((limits_of, data), (even_limits_of, beyond)))  # fmt: skip
    unit = _UNITS[quantity]
    for row, model in enumerate(models):
        left, right = axes[2 * row : 2 * row + 2]
        grid(left, data[data["model"] == model], limits=limits, unit=unit, column="other_layer")
        grid(right, beyond[beyond["model"] == model], limits=even, unit=f"{unit}, beyond null",
             kind="difference", column="other_layer")  # fmt: skip
        left.set_title(printable(model, 40))
        right.set_title("minus shuffled steps")
        for ax in (left, right):
            ax.set_aspect("equal")
    label = "the same layer, or no sink" if quantity == "jaccard" else "no sink"
    key(drawn, [absent_patch(label)] if data["value"].isna().any() else [])
    return Figure.of_table(drawn, data, "layer_consistency", {"quantity": quantity}, table)


def _traces(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Rows of each trace by its name on the panel: the model, and what tells apart its traces.

    Two models, or two seeds, that wrote the same canvas have the same digest.
    """
    by_trace = {}
    for model, rows in table.groupby("model", sort=False):
        traces = list(rows.groupby(["trace", "seed"], sort=False))
        digests = {digest for (digest, _), _ in traces}
        for (digest, seed), part in traces:
            apart = f", {digest}" if len(digests) == len(traces) else f", {digest}, seed {seed}"
            by_trace[str(model) + (apart if len(traces) > 1 else "")] = part
    return by_trace


def _commonest(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each layer and step: the position that most heads have, NaN without a sink."""
    cell = ["model", "trace", "seed", "layer", "step"]
    counts = rows[rows["sink"]].groupby([*cell, "position"]).size().rename("heads").reset_index()
    counts = counts.sort_values("heads", ascending=False, kind="stable").drop_duplicates(cell)
    every = rows[cell].drop_duplicates()
    joined = every.merge(counts, on=cell, how="left").rename(columns={"position": "value"})
    return joined.assign(heads=joined["heads"].fillna(0).astype(int))


def _chosen_heads(
    table: pd.DataFrame, heads: Sequence[tuple[int, int]] | None
) -> list[tuple[int, int]]:
    known = set(zip(table["layer"].tolist(), table["head"].tolist(), strict=True))
    if heads is None:
        sinks = table.assign(share=table["share"].where(table["sink"], 0.0).fillna(0.0))
        order = sinks.groupby(["layer", "head"])[["sink", "share"]].mean()
        order = order.sort_values(["sink", "share"], ascending=False, kind="stable")
        return sorted((int(layer), int(head)) for layer, head in order.index[:MOST_PATHS])
    if len(heads) > len(PALETTE) or not heads:
        raise SpecError(f"{len(heads)} heads cannot be told apart: name 1 to {len(PALETTE)}")
    chosen = [(int(layer), int(head)) for layer, head in heads]
    if lost := [pair for pair in chosen if pair not in known]:
        raise SpecError(
            f"heads={lost}: not in the table, which has (layer, head) from (0, 0) to {max(known)}"
        )
    return chosen


def _scene(ax: Axes, trace: Trace) -> list[Artist]:
    """Tokens, the prompt, commits, the frontier and where blocks open; the legend's entries."""
    length = trace.canvas.shape[1]
    given = np.setdiff1d(np.arange(length), trace.answer)
    ink = ROLE_COLOURS["prompt"]
    ax.set_ylim(-0.5, length - 0.5)
    for stretch in np.split(given, np.flatnonzero(np.diff(given) > 1) + 1):
        if len(stretch):
            ax.axhspan(stretch[0] - 0.5, stretch[-1] + 0.5, color=ink, alpha=0.10, linewidth=0)
    entries: list[Artist] = [Patch(facecolor=ink, alpha=0.10, label="prompt")]
    position = np.flatnonzero(trace.committed_at >= 0)
    entries += ax.plot(trace.committed_at[position], position, linestyle="none", marker="s",
                       markersize=2.4, markerfacecolor=ROLE_COLOURS["fresh"],
                       markeredgecolor="#9a7d00", markeredgewidth=0.3, label="commit")  # fmt: skip
    edge, _, _ = mask_frontier(trace)
    if not np.isnan(edge).all():
        entries += ax.step(np.arange(len(edge)), edge, where="mid", color="black", linewidth=0.6,
                           linestyle=(0, (1, 1)), label="rightmost masked")  # fmt: skip
    opens = np.flatnonzero(np.diff(current_block(trace)) > 0)
    for step in opens:
        ax.axvline(step + 0.5, color=NULL, linewidth=0.5)
    if len(opens):
        entries.append(Line2D([], [], color=NULL, linewidth=0.5, label="a block opens"))
    label_axis(ax, token_labels(trace), along="y", name="token in the end")
    return entries


def _type_grid(ax: Axes, rows: pd.DataFrame) -> None:
    counts = rows.groupby(["layer", "head", "type"], sort=False).size().rename("traces")
    top = counts.reset_index().sort_values("traces", ascending=False, kind="stable")
    top = top.drop_duplicates(["layer", "head"])
    shape = int(rows["layer"].max()) + 1, int(rows["head"].max()) + 1
    shown = np.full((*shape, 3), to_rgb(ABSENT_FACE))
    known = np.full(shape, np.nan)
    for layer, head, kind in zip(top["layer"], top["head"], top["type"], strict=True):
        if kind in TYPE_COLOURS:
            shown[layer, head], known[layer, head] = to_rgb(TYPE_COLOURS[kind]), 0.0
    mesh = heat(ax, known, limits=(0.0, 1.0), unit=None)
    mesh.set_array(None)
    faces = np.concatenate([shown, ~np.isnan(known)[..., None]], axis=-1).reshape(-1, 4)
    mesh.set(facecolor=faces, edgecolor="white", linewidth=0.4)
    whole_ticks(ax)
    ax.set(xlabel="head", ylabel="layer")


def _type_bars(ax: Axes, rows: pd.DataFrame) -> None:
    shares = pd.crosstab(rows["layer"], rows["type"], normalize="index")
    left = np.zeros(len(shares))
    for kind in TYPES:
        if kind in shares:
            width = shares[kind].to_numpy()
            ax.barh(shares.index, width, 0.86, left=left, color=TYPE_COLOURS[kind])
            left += width
    ax.set(xlim=(0, 1), ylim=(int(rows["layer"].max()) + 0.5, -0.5), xlabel="share of heads")
    ax.set_ylabel("layer")
    whole_ticks(ax, x=False)
