"""Figures of what an edit did: outcomes over the dose, and hidden states over the layers.

Both show differences from the null (0, dashed), the edit beside its control, and intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from anchorwatch.errors import SpecError
from anchorwatch.figures.cells import require
from anchorwatch.figures.figure import Figure
from anchorwatch.figures.labels import printable
from anchorwatch.figures.series import key, lines
from anchorwatch.figures.style import COLUMN, PAGE, look, sheet

SHOWN = ("argmax_agreement", "kl", "perturbation", "answer_changed", "edit_distance", "order_tau")
_ARMS = {
    "control": ("control_difference", "control_low", "control_high"),
    "edited": ("difference", "low", "high"),
}


@look()
def effect_doses(table: pd.DataFrame, *, outcomes: Sequence[str] = SHOWN) -> Figure:
    """A panel for each outcome over the dose, the edit beside its control: `effect.doses`."""
    require(table, "k", "outcome", "unit", "difference", "control_difference")
    known = list(table["outcome"].drop_duplicates())
    if lost := [name for name in outcomes if name not in known]:
        raise SpecError(f"the table has no outcome {lost[0]!r}: it has {', '.join(known)}")
    there = table[table["difference"].notna()]["outcome"].unique()
    chosen = [name for name in outcomes if name in there]
    if not chosen:
        raise SpecError(f"none of {', '.join(outcomes)} exists in this effect: name another")
    return _panels(table, "k", chosen, "effect_doses")


@look()
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
        made = lines(ax, part, x=x, unit=printable(part["unit"].iloc[0], 40), colour_by="arm")
        entries = made if len(made) > len(entries) else entries
        ax.set_title(printable(f"{outcome.replace('_', ' ')}, difference", 40))
    for ax in axes[len(outcomes) :]:
        ax.set_visible(False)
    key(drawn, entries)
    return Figure.of_table(drawn, data, name, {"outcomes": list(outcomes)}, table)


def _by_arm(table: pd.DataFrame, x: str) -> pd.DataFrame:
    """One row for each arm; an arm that there is none of is left out."""
    parts = []
    for arm, (value, low, high) in _ARMS.items():
        held = table[[x, "outcome", "unit", "n"]].assign(
            arm=arm, value=table[value], low=table[low], high=table[high], null=0.0
        )
        parts.append(held if held["value"].notna().any() else held.iloc[:0])
    return pd.concat([part for part in parts if len(part)], ignore_index=True)
