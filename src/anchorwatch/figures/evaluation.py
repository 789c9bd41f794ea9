"""Figures of an evaluation: accuracy by context, and a curve for each stress test.

Tables are those of `aw.evaluation.tables`; a line or a bar for each model, under each edit. Beside
the null stands what a guesser among the names in the passages would score, where it is known.

Effects of an edit are differences from the null (0, dashed): the edit beside its control, each with
its interval, over the dose or over the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from anchorwatch.errors import SpecError
from anchorwatch.figures.figure import Figure
from anchorwatch.figures.marks import bars, key, lines, no_interval, require, whole_ticks
from anchorwatch.figures.registry import figure
from anchorwatch.figures.style import COLUMN, NULL, PAGE, colours, printable, sheet

_WORDS = {
    "exact_match": "exact match",
    "token_f1": "token F1",
    "containment": "share of answers that are right",
    "substring_containment": "share right, by letters",
    "rouge1_recall": "ROUGE-1 recall",
}
_MOST_BARS = 20
_TURNED = 5
"""Bars on an axis beyond which their names are turned."""
_GUESSER: dict[str, Any] = {"color": "black", "linestyle": (0, (1, 1.2)), "linewidth": 1.0}
"""How the score of a guesser is drawn."""


@figure()
def accuracy_bars(table: pd.DataFrame, *, quantity: str = "containment") -> Figure:
    """A bar for each context and model, with its interval and its null."""
    require(table, "model", "context", "edit", "quantity", "value", "null", "low", "high")
    return _bars(table[table["quantity"] == quantity], table, "accuracy_bars", quantity)


@figure()
def gain_bars(table: pd.DataFrame, *, quantity: str = "gain") -> Figure:
    """What passages add, for each context and model; a table of `gains`."""
    require(table, "model", "context", "edit", "quantity", "value", "low", "high")
    unit = {"gain": "gain over the closed book", "share_of_room": "share of what was left to gain"}
    return _bars(table[table["quantity"] == quantity], table, "gain_bars", quantity, unit)


@figure()
def layout_bars(table: pd.DataFrame) -> Figure:
    """Accuracy by how the two passages of the evidence lie; the `curve` of layout."""
    require(table, "model", "context", "edit", "quantity", "value", "shown")
    return _bars(table, table, "layout_bars", _only(table))


@figure()
def wording_bars(table: pd.DataFrame) -> Figure:
    """Accuracy with misspelt words or the question in others; the `curve` of wording."""
    require(table, "model", "context", "edit", "quantity", "value", "shown")
    return _bars(table, table, "wording_bars", _only(table))


@figure()
def position_curve(table: pd.DataFrame) -> Figure:
    """Accuracy over the place of the gold passage, a panel for each number of passages."""
    require(table, "place", "total", "kind")
    panels = [
        (f"of {total} passages, {kind} others", part)
        for (total, kind), part in table.groupby(["total", "kind"], sort=True)
    ]
    return _curves(table, panels, "place", "place of the gold passage", "position_curve")


@figure()
def noise_curve(table: pd.DataFrame) -> Figure:
    """Accuracy over the number of distractors, doubling by doubling, a panel for each kind."""
    require(table, "distractors", "kind")
    none = table[table["distractors"] == 0]
    kinds = [kind for kind in dict.fromkeys(table["kind"]) if (table["kind"] == kind).any()]
    panels = []
    for kind in kinds:
        part = table[(table["kind"] == kind) & (table["distractors"] > 0)]
        if len(part):
            whole = pd.concat([none, part])
            panels.append(
                (f"{kind} distractors", whole.assign(x=np.log2(1 + whole["distractors"])))
            )
    if not panels:
        raise SpecError("the table has no distractors: ask for contexts such as gold+1 and gold+4")
    return _curves(table, panels, "x", "distractors", "noise_curve", ticks="distractors")


@figure()
def irrelevant_curve(table: pd.DataFrame) -> Figure:
    """Accuracy over the share of passages that are about something else."""
    require(table, "share")
    return _curves(table, [("", table)], "share", "share that is irrelevant", "irrelevant_curve")


@figure()
def mask_curve(table: pd.DataFrame) -> Figure:
    """Accuracy over the number of masked positions after those of the answer."""
    require(table, "masks")
    return _curves(table, [("", table)], "masks", "masks after the answer", "mask_curve")


@figure()
def effect_intervals(table: pd.DataFrame, *, test: str | None = None) -> Figure:
    """Every effect with its interval, and its null as a dash; of `effects` or `interactions`."""
    require(table, "effect", "test", "value", "null", "low", "high")
    part = table if test is None else table[table["test"] == test]
    if part.empty:
        raise SpecError(f"no effect belongs to {test!r}: {', '.join(dict.fromkeys(table['test']))}")
    data = part.assign(who=_who(part))
    names, whos = list(dict.fromkeys(data["effect"])), list(dict.fromkeys(data["who"]))
    shades, step = colours(whos), 0.7 / len(whos)
    drawn, (ax,) = sheet(PAGE, 0.6 + 0.2 * len(names) * max(1, len(whos) / 2))
    for row in data.itertuples():
        y = names.index(row.effect) + (whos.index(row.who) - (len(whos) - 1) / 2) * step
        ax.plot([row.low, row.high], [y, y], color=shades[row.who], linewidth=1.0)
        ax.plot([row.value], [y], marker="o", color=shades[row.who], linestyle="none")
        ax.plot([row.null], [y], marker="|", color=NULL, linestyle="none", markersize=5)
    ax.axvline(0, color="black", linewidth=0.5)
    ax.set_yticks(range(len(names)), labels=[printable(name, 60) for name in names])
    ax.set(xlabel="difference in score", ylim=(len(names) - 0.5, -0.5))
    entries: list[Any] = []
    for who in whos:
        entries += ax.plot([], [], marker="o", color=shades[who], label=printable(who, 40))
    entries += ax.plot([], [], marker="|", color=NULL, linestyle="none", label="null")
    key(drawn, [*entries, *no_interval(data, of="items")])
    return Figure.of_table(drawn, data, "effect_intervals", {"of": test}, table)


def _bars(
    part: pd.DataFrame,
    table: pd.DataFrame,
    name: str,
    quantity: str,
    units: dict[str, str] | None = None,
) -> Figure:
    if part.empty:
        known = ", ".join(dict.fromkeys(table["quantity"]))
        raise SpecError(f"the table has no quantity {quantity!r}: it has {known}")
    # 1. Contexts in the order of the table, a group of bars each.
    order = list(dict.fromkeys(part["context"]))
    if len(order) > _MOST_BARS:
        raise SpecError(f"{len(order)} contexts are too many bars: show {_MOST_BARS} or fewer")
    data = part.assign(who=_who(part))
    data["shown"] = pd.Categorical(data["context"], order, ordered=True)
    drawn, (ax,) = sheet(COLUMN if len(order) <= _TURNED else PAGE, 2.3)
    unit = (units or _WORDS).get(quantity, quantity.replace("_", " "))
    entries = bars(ax, data, x="shown", unit=unit, colour_by="who", of="items")
    # 2. A guesser's score across the bars of its context, where it is known.
    chances = _guesser_means(data, "shown")
    if len(chances):
        at = np.array([order.index(shown) for shown in chances.index])
        ax.hlines(chances, at - 0.45, at + 0.45, **_GUESSER)
        entries = [*entries, _guesser_entry()]
    ax.set_xlabel("")
    if len(order) > _TURNED:
        ax.tick_params(axis="x", rotation=60)
    key(drawn, entries)
    plain = data.assign(shown=data["shown"].astype(str))
    return Figure.of_table(drawn, plain, name, {"quantity": quantity}, table)


def _curves(
    table: pd.DataFrame,
    panels: Sequence[tuple[str, pd.DataFrame]],
    x: str,
    label: str,
    name: str,
    ticks: str | None = None,
) -> Figure:
    require(table, "model", "edit", "quantity", "value", "low", "high")
    unit = _WORDS.get(_only(table), "score")
    wide = COLUMN if len(panels) == 1 else PAGE
    drawn, axes = sheet(wide, 2.2, columns=len(panels))
    entries: list[Any] = []
    for ax, (title, part) in zip(axes, panels, strict=True):
        data = part.assign(who=_who(part))
        drawn_lines = lines(ax, data, x=x, unit=unit, colour_by="who", of="items")
        chances = _guesser_means(data, x)
        if len(chances):
            ax.plot(chances.index, chances, **_GUESSER)
            drawn_lines = [*drawn_lines, _guesser_entry()]
        entries = drawn_lines if len(drawn_lines) > len(entries) else entries
        ax.set_title(printable(title, 40))
        ax.set(xlabel=label, ylim=(0, 1))
        _places(ax, data, x, ticks)
    key(drawn, entries)
    data = pd.concat([part for _, part in panels], ignore_index=True)
    return Figure.of_table(drawn, data, name, {}, table)


def _guesser_means(data: pd.DataFrame, x: str) -> pd.Series:
    """What a guesser among the names in the passages scores at each x; empty where unknown."""
    if "guesser" not in data:
        return pd.Series(dtype=float)
    return data.groupby(x, observed=True)["guesser"].mean().dropna()


def _guesser_entry() -> Line2D:
    return Line2D([], [], label="guesser", **_GUESSER)


def _places(ax: Axes, data: pd.DataFrame, x: str, ticks: str | None) -> None:
    """Ticks where there are values, under the numbers that were varied."""
    if ticks is None and pd.api.types.is_integer_dtype(data[x]):
        whole_ticks(ax, y=False)
    if ticks is not None:
        points = data.drop_duplicates(x).sort_values(x)
        ax.set_xticks(list(points[x]), labels=[str(label) for label in points[ticks]])


def _who(part: pd.DataFrame) -> list[str]:
    """A model, or a pair of models, and its edit where there are several."""
    names = part["model"] if "model" in part else part["mdm"] + " minus " + part["arm"]
    if part["edit"].nunique() == 1:
        return [str(name) for name in names]
    return [f"{name}, {edit}" for name, edit in zip(names, part["edit"], strict=True)]


def _only(table: pd.DataFrame) -> str:
    quantities = list(dict.fromkeys(table["quantity"]))
    if len(quantities) != 1:
        raise SpecError(f"a curve is of one score: the table has {', '.join(quantities)}")
    return str(quantities[0])


SHOWN = ("argmax_agreement", "kl", "perturbation", "answer_changed", "edit_distance", "order_tau")
_ARMS = {
    "control": ("control_difference", "control_low", "control_high"),
    "edited": ("difference", "low", "high"),
}


@figure()
def effect_doses(table: pd.DataFrame, *, outcomes: Sequence[str] = SHOWN) -> Figure:
    """A panel for each outcome over the dose, the edit beside its control: `effect.doses`."""
    require(table, "k", "outcome", "unit", "difference", "control_difference")
    known = list(table["outcome"].drop_duplicates())
    if lost := [name for name in outcomes if name not in known]:
        raise SpecError(f"the table has no outcome {lost[0]!r}: it has {', '.join(known)}")
    measured = table[table["difference"].notna()]["outcome"].unique()
    chosen = [name for name in outcomes if name in measured]
    if not chosen:
        raise SpecError(f"none of {', '.join(outcomes)} exists in this effect: name another")
    return _panels(table, "k", chosen, "effect_doses")


@figure()
def effect_layers(table: pd.DataFrame) -> Figure:
    """How far hidden states moved after each layer, the edit beside its control: `effect.layers`.

    Of positions that the edit does not name.
    """
    require(table, "layer", "outcome", "unit", "difference", "control_difference")
    if table["difference"].isna().all():
        raise SpecError("hidden states were not compared: there is nothing to draw")
    return _panels(table, "layer", list(table["outcome"].drop_duplicates()), "effect_layers")


def _panels(table: pd.DataFrame, x: str, outcomes: Sequence[str], name: str) -> Figure:
    columns = min(len(outcomes), 3 if len(outcomes) not in (2, 4) else 2)
    rows = -(-len(outcomes) // columns)
    width = COLUMN if columns == 1 else PAGE
    drawn, axes = sheet(width, 0.45 + 1.65 * rows, rows=rows, columns=columns)
    data = _by_arm(table[table["outcome"].isin(outcomes)], x)
    entries: list[Any] = []
    for ax, outcome in zip(axes, outcomes, strict=False):
        part = data[data["outcome"] == outcome]
        drawn_lines = lines(
            ax, part, x=x, unit=printable(part["unit"].iloc[0], 40), colour_by="arm"
        )
        entries = drawn_lines if len(drawn_lines) > len(entries) else entries
        ax.set_title(printable(f"{outcome.replace('_', ' ')}, difference", 40))
    for ax in axes[len(outcomes) :]:
        ax.set_visible(False)
    key(drawn, entries)
    return Figure.of_table(drawn, data, name, {"outcomes": list(outcomes)}, table)


def _by_arm(table: pd.DataFrame, x: str) -> pd.DataFrame:
    """One row for each arm; an arm that there is none of is left out."""
    parts = []
    for arm, (value, low, high) in _ARMS.items():
        arm_rows = table[[x, "outcome", "unit", "n"]].assign(
            arm=arm, value=table[value], low=table[low], high=table[high], null=0.0
        )
        parts.append(arm_rows if arm_rows["value"].notna().any() else arm_rows.iloc[:0])
    return pd.concat([part for part in parts if len(part)], ignore_index=True)
