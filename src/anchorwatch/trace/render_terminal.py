"""A trace in the terminal: the canvas coloured by role, one frame or the film of the run.

Token text is foreign text: control characters are shown as marks and never reach the terminal,
and nothing in it is taken for markup. Without colour, fresh tokens stand between marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.rule import Rule
from rich.text import Text

from anchorwatch.errors import SpecError
from anchorwatch.trace.escape import visible
from anchorwatch.trace.trace import (
    ABSENT,
    FRESH,
    MASK_MARK,
    MASKED,
    MISSING,
    PROMPT,
    ROLES,
    SPECIAL,
    WRITTEN,
    Trace,
)

STYLES = {
    PROMPT: "dim",
    SPECIAL: "dim italic",
    MASKED: "bright_black",
    FRESH: "bold black on bright_yellow",
    WRITTEN: "bright_cyan",
    ABSENT: "",
}


def show(
    trace: Trace,
    step: int | None = None,
    *,
    every: bool = False,
    console: Console | None = None,
) -> None:
    """Print one frame (`step=8`: the canvas before step 8), or the film: `every` frame of it."""
    drawn = frame(trace, step) if step is not None else film(trace, None if every else 24)
    (console or Console()).print(drawn)


def frame(trace: Trace, index: int) -> RenderableType:
    """The canvas before step `index`; the last one is the result. Negative counts from the end."""
    index = _check_frame(trace, index)
    done = f"{trace.progress[index]:.0%} written"
    header = Text(f"frame {index} of {len(trace.canvas) - 1}, {done}", style="dim")
    return Group(header, _Canvas(trace, index, range(trace.canvas.shape[1])), _Legend())


def film(trace: Trace, most: int | None = 24) -> RenderableType:
    """The prompt once, then the answer frame by frame; a canvas with gaps is shown whole each time.

    Where there are more than `most` frames, says which are shown; first and last always are.
    """
    frames, positions = trace.canvas.shape
    count = frames if most is None else min(frames, max(most, 2))
    shown = sorted({round(i * (frames - 1) / max(count - 1, 1)) for i in range(count)})
    every = range(positions)
    moving = every if trace.is_infill else trace.answer.tolist()
    parts: list[RenderableType] = []
    if not trace.is_infill:
        given = np.setdiff1d(every, trace.answer).tolist()
        parts = [_Canvas(trace, 0, given), _Edge()]
    width = max(4, len(str(frames - 1)))
    parts += [_Canvas(trace, index, moving, label=f"{index:>{width}} ") for index in shown]
    parts.append(_Legend())
    if len(shown) < frames:
        note = f"{len(shown)} of {frames} frames shown: {', '.join(map(str, shown))}"
        parts.append(Text(f"{note}; --all shows every frame, --step K one", style="dim"))
    return Group(*parts)


def frames_json(trace: Trace, step: int | None = None) -> list[dict[str, Any]]:
    """One frame as data, or all of them."""
    canvas, role, progress = trace.canvas, trace.role, trace.progress
    split = trace.manifest.get("token_bytes", {})
    tokens: dict[int, dict[str, Any]] = {}
    for i in np.unique(canvas[canvas != MISSING]).tolist():
        raw = {"bytes": split[str(i)]} if str(i) in split else {}
        tokens[i] = {"id": i, "text": trace.token(i)} | raw
    frames = range(len(canvas)) if step is None else [_check_frame(trace, step)]
    return [
        {
            "frame": index,
            "progress": float(progress[index]),
            "positions": [
                {"position": p, **tokens[i], "role": ROLES[r]}
                for p, (i, r) in enumerate(
                    zip(canvas[index].tolist(), role[index].tolist(), strict=True)
                )
                if i != MISSING
            ],
        }
        for index in frames
    ]


@dataclass(frozen=True)
class _Canvas:
    """Some positions of a frame, wrapped to the right of their label."""

    trace: Trace
    index: int
    positions: Sequence[int]
    label: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        mask, before, after = _marks(console, options)
        line = Text()
        for kind, text in self.trace.stretches(self.index, self.positions):
            if kind == MASKED:
                line.append(mask * len(text), style=STYLES[kind])
            elif kind == FRESH:
                for part, style in _mark_fresh(before, visible(text), after):
                    line.append(part, style=style)
            else:
                line.append(visible(text), style=STYLES[kind])
        width = max(options.max_width - len(self.label), 1)
        label = self.label
        for row in line.wrap(console, width, overflow="fold"):
            yield Text.assemble((label, "bright_black"), row)
            label = " " * len(label)


class _Edge:
    """A line between what was given and what is written."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(characters="-" if options.ascii_only else "─", style="bright_black")


class _Legend:
    """What the colours and marks mean."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        mask, before, after = _marks(console, options)
        line = Text()
        for role in (PROMPT, SPECIAL, MASKED, FRESH, WRITTEN):
            word = {MASKED: f"{mask} masked", FRESH: f"{before}fresh{after}"}.get(role, ROLES[role])
            line.append(f" {word} ", style=STYLES[role])
            line.append(" ")
        line.rstrip()
        yield line


def _marks(console: Console, options: ConsoleOptions) -> tuple[str, str, str]:
    """The mask's mark, and what stands before and after fresh tokens where colour cannot."""
    mask, before, after = ("_", "<", ">") if options.ascii_only else (MASK_MARK, "‹", "›")
    coloured = console.color_system is not None and not console.no_color
    return (mask, "", "") if coloured else (mask, before, after)


def _mark_fresh(before: str, text: str, after: str) -> list[tuple[str, str]]:
    """(part, style): space around the text stays outside of the marks."""
    fresh, inner = STYLES[FRESH], text.strip()
    if not before or not inner:
        return [(f"{before}{text}{after}", fresh)]
    lead, rest = text.split(inner, 1)
    return [(lead, ""), (f"{before}{inner}{after}", fresh), (rest, "")]


def _check_frame(trace: Trace, index: int) -> int:
    frames = len(trace.canvas)
    if not -frames <= index < frames:
        raise SpecError(f"step {index} is not in the trace: it has frames 0 to {frames - 1}")
    return index % frames
