"""One step of a run as boxes: what it saw, what it wrote, and which row predicted what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from anchorwatch.errors import SpecError
from anchorwatch.figures.figure import Figure
from anchorwatch.figures.marks import key
from anchorwatch.figures.registry import figure
from anchorwatch.figures.style import PAGE, ROLE_COLOURS, SMALL, printable, sheet, token_labels
from anchorwatch.trace.trace import ABSENT, FRESH, ROLES, Trace

SHOWN = 14
"""Positions around what the step committed."""
_DARK = ("prompt", "written")
"""Roles whose box is dark."""


@figure()
def step_frames(traces: Sequence[Trace], *, step: int) -> Figure:
    """A step of each run: the canvas it saw, the canvas after it, arrows from the row that says.

    An arrow goes from the row whose prediction was taken to the position that it wrote: straight up
    where row p predicts position p, one to the right where row p - 1 does. A run with fewer steps
    shows its last one.
    """
    if not traces:
        raise SpecError("step_frames needs a trace: step_frames([trace], step=4)")
    drawn, axes = sheet(PAGE, 0.35 + 1.15 * len(traces), rows=len(traces))
    rows = []
    for ax, trace in zip(axes, traces, strict=True):
        rows += _draw_step(ax, trace, min(step, trace.num_steps - 1))
    kinds = sorted({str(row["role"]) for row in rows}, key=ROLES.index)
    entries: list[Artist] = [
        Patch(facecolor=ROLE_COLOURS[kind], edgecolor="#8c8c8c", linewidth=0.4, label=kind)
        for kind in kinds
        if kind != "absent"
    ]
    key(drawn, entries)
    settings = {"step": step}
    return Figure(
        drawn, pd.DataFrame(rows), name="step_frames", settings=settings, traces=list(traces)
    )


def _draw_step(ax: Axes, trace: Trace, step: int) -> list[dict[str, object]]:
    """Two rows of boxes, and the arrows; returns what was drawn."""
    # 1. A window of positions around what the step committed.
    committed = np.flatnonzero(trace.committed_at == step)
    middle = int(committed.mean()) if len(committed) else int(trace.answer[0])
    size = trace.canvas.shape[1]
    first = max(0, min(middle - SHOWN // 2, size - SHOWN))
    window = range(first, min(first + SHOWN, size))
    # 2. The canvas before the step below, after it above.
    rows: list[dict[str, object]] = []
    for height, frame in ((0.0, step), (1.5, step + 1)):
        labels = token_labels(trace, frame)
        for position in window:
            role = ROLES[trace.role[frame, position]]
            rows.append(
                {
                    "model": trace.manifest["model"]["source"],
                    "frame": frame,
                    "position": position,
                    "token": labels[position],
                    "role": role,
                }
            )
            if trace.role[frame, position] == ABSENT:
                continue
            ax.add_patch(
                Rectangle(
                    (position - 0.46, height),
                    0.92,
                    0.62,
                    facecolor=ROLE_COLOURS[role],
                    edgecolor="#8c8c8c",
                    linewidth=0.4,
                )
            )
            ink = "white" if role in _DARK else "black"
            text = printable(labels[position], 8)
            ax.text(position, height + 0.3, text, ha="center", va="center", color=ink, fontsize=5)
    # 3. From the row that predicted to what it wrote.
    shift = int(bool(trace.manifest["model"].get("shift")))
    for position in committed.tolist():
        if position in window:
            start = (max(position - shift, 0), 0.66)
            arrow = FancyArrowPatch(
                start, (position, 1.46), arrowstyle="-|>", mutation_scale=6, linewidth=0.8
            )
            arrow.set_color("#d55e00")
            ax.add_patch(arrow)
    # 4. Names.
    ax.set(xlim=(first - 0.6, window[-1] + 0.6), ylim=(-0.25, 2.3))
    ax.set_yticks([0.31, 1.81], labels=[f"step {step} saw", "and wrote"])
    ax.tick_params(length=0, labelsize=SMALL)
    ax.set_xticks(list(window)[::2])
    for spine in ax.spines.values():
        spine.set_visible(False)
    row = "row p - 1 predicts p" if shift else "row p predicts p"
    ax.set_title(f"{printable(trace.manifest['model']['source'], 30)}: {row}")
    if FRESH in trace.role[step + 1] and ax is ax.figure.axes[-1]:
        ax.set_xlabel("position")
    return rows
