"""Figures of claims for a paper: the criteria as intervals, and what a claim draws itself; PDF."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.axes import Axes

from anchorwatch.errors import AnchorwatchError
from anchorwatch.figures.figure import Figure
from anchorwatch.figures.style import COLUMN, NULL, PALETTE, SMALL, look, printable, sheet
from anchorwatch.studies.report.marks import Marks, marks
from anchorwatch.studies.report.sentences import number
from anchorwatch.studies.verdict import REFUTED, SUPPORTED, UNDECIDED

if TYPE_CHECKING:
    from anchorwatch.studies.study_record import Study
    from anchorwatch.studies.verdict import JudgedClaim

_LETTERS = 66
"""Of a title that is as wide as a column."""
COLOURS = {SUPPORTED: PALETTE[0], REFUTED: PALETTE[1], UNDECIDED: NULL}
_OURS = re.compile(r"((floating|sinks|sink_token)-H[1-9][0-9]?|compared)(-[a-z0-9-]+)?\.pdf")


@look()
def claim_figure(one: JudgedClaim) -> Figure:
    """A panel for each criterion of a claim that was run: effect, interval, margin, null, units."""
    criteria = one.claim.criteria
    titles = [textwrap.wrap(printable(f"{c.name}: {c.statistic}"), _LETTERS) for c in criteria]
    height = 0.35 + sum(0.75 + 0.1 * len(lines) for lines in titles)
    drawn, axes = sheet(COLUMN, height, rows=len(criteria))
    for ax, criterion, lines in zip(axes, criteria, titles, strict=True):
        _panel(ax, marks(one, criterion))
        ax.set_title("\n".join(lines), fontsize=SMALL)
    said = f"{one.claim.id}: {one.says} (shaded: where the claim holds)"
    drawn.suptitle(said, fontsize=SMALL, x=0.01, ha="left")
    table = pd.DataFrame([one.criterion_row(criterion) for criterion in criteria])
    settings = {"claim": one.claim.id, "verdict": one.says}
    return Figure(drawn, table, name="claim", settings=settings, traces=[])


def _panel(ax: Axes, found: Marks) -> None:
    colour = COLOURS[found.lies]
    ax.axvspan(*found.region, color=PALETTE[2], alpha=0.14, linewidth=0)
    for limit in found.limits:
        ax.axvline(limit, color=PALETTE[2], linewidth=0.8)
    low, high = found.interval
    if math.isfinite(low):
        ax.errorbar(
            found.effect,
            0.0,
            xerr=[[max(found.effect - low, 0.0)], [max(high - found.effect, 0.0)]],
            color=colour,
            capsize=2,
            linewidth=1.2,
        )
    ax.plot([found.effect], [0.0], "o", color=colour, markersize=3.5)
    if found.values:
        ax.plot(
            found.values, [-0.55] * len(found.values), "|", color=colour, markersize=4, alpha=0.6
        )
    for at, (name, value) in enumerate(found.named):
        style = (0, (4, 2)) if name == "null" else (0, (1, 1.5))
        ax.axvline(value, color=NULL, linestyle=style, linewidth=0.7)
        words = printable(f"{name} {number(value)}", 30)
        spot, left = (value, 0.78 - 0.3 * (at % 3)), found.at(value) < 0.6
        ax.annotate(
            words,
            spot,
            (2 if left else -2, 0),
            textcoords="offset points",
            fontsize=SMALL - 1,
            ha="left" if left else "right",
            va="center",
            color=NULL,
        )
    ax.set(xlim=(found.low, found.high), ylim=(-0.8, 1.0), yticks=[])
    ax.spines["left"].set_visible(False)


def own_figure(study: Study, one: JudgedClaim) -> Figure | str | None:
    """What a claim draws of its evidence; in words why it could not; None where it draws none."""
    try:
        return study.draw(one.claim.id)
    except AnchorwatchError as error:  # a picture less: the numbers stand
        return f"its picture could not be drawn: {error}"


def name_of(claim: str) -> str:
    """A claim's id as the name of a file, and of a place in the page."""
    return claim.replace("/", "-")


def save_figures(drawn: Iterable[tuple[str, Figure]], folder: Path) -> None:
    """Figures by name as PDF; those of an earlier study in this folder that are not made go."""
    folder.mkdir(parents=True, exist_ok=True)
    names = set()
    for name, figure in drawn:
        figure.save(folder / f"{name}.pdf")
        names.add(name)
    for path in folder.glob("*.pdf"):
        if _OURS.fullmatch(path.name) and path.stem not in names:
            path.unlink()
