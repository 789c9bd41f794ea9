"""A trace in the terminal: the canvas coloured by role, one frame or the film of the run.

Token text is foreign text: control characters are shown as marks and never reach the terminal,
and nothing in it is taken for markup.
"""

from __future__ import annotations

import unicodedata
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from anchorwatch.errors import SpecError
from anchorwatch.trace import ABSENT, FRESH, MASKED, MISSING, PROMPT, ROLES, SPECIAL, WRITTEN, Trace

STYLES = {
    PROMPT: "dim",
    SPECIAL: "dim italic",
    MASKED: "bright_black",
    FRESH: "bold black on bright_yellow",
    WRITTEN: "bright_cyan",
    ABSENT: "",
}
MASK_MARK = "░"


def show(trace: Trace, step: int | None = None, *, console: Console | None = None) -> None:
    """Print one frame (`step=8`: the canvas before step 8), or the whole film."""
    (console or Console()).print(film(trace) if step is None else frame(trace, step))


def frame(trace: Trace, index: int) -> RenderableType:
    """The canvas before step `index`; the last one is the result. Negative counts from the end."""
    frames = len(trace.canvas)
    if not -frames <= index < frames:
        raise SpecError(f"step {index} is not in the trace: it has frames 0 to {frames - 1}")
    index %= frames
    return Group(
        _header(trace, index), _tokens(trace, index, range(trace.canvas.shape[1])), legend()
    )


def film(trace: Trace, most: int = 24) -> RenderableType:
    """The prompt once, then the answer frame by frame; says so when frames are left out."""
    frames = len(trace.canvas)
    answer = [int(p) for p in trace.answer]
    given = [p for p in range(trace.canvas.shape[1]) if p not in set(answer)]
    count = min(frames, most)
    shown = sorted({round(i * (frames - 1) / max(count - 1, 1)) for i in range(count)})
    parts: list[RenderableType] = [_tokens(trace, 0, given), Rule(style="bright_black")]
    for index in shown:
        line = Text(f"{index:>4} ", style="bright_black")
        line.append_text(_tokens(trace, index, answer))
        parts.append(line)
    parts.append(legend())
    if len(shown) < frames:
        parts.append(
            Text(f"{len(shown)} of {frames} frames shown; --step K shows one", style="dim")
        )
    return Group(*parts)


def legend() -> Text:
    """What the colours mean."""
    line = Text()
    for role in (PROMPT, MASKED, FRESH, WRITTEN):
        line.append(f" {MASK_MARK if role == MASKED else ROLES[role]} ", style=STYLES[role])
        line.append("masked  " if role == MASKED else " ")
    return line


def frame_json(trace: Trace, index: int) -> dict[str, Any]:
    """One frame as data."""
    canvas, role = trace.canvas[index], trace.role[index]
    return {
        "frame": index % len(trace.canvas),
        "progress": float(trace.progress[index]),
        "positions": [
            {"position": p, "id": int(i), "text": trace.token(int(i)), "role": ROLES[int(r)]}
            for p, (i, r) in enumerate(zip(canvas, role, strict=True))
            if i != MISSING
        ],
    }


def visible(text: str) -> str:
    """Foreign text made safe and visible: controls and other invisible characters become marks."""
    marks = {"\n": "⏎\n", "\t": "⇥", "\r": "␍"}
    return "".join(marks.get(c, c if unicodedata.category(c)[0] != "C" else "·") for c in text)


def _header(trace: Trace, index: int) -> Text:
    done = f"{trace.progress[index]:.0%} written"
    return Text(f"frame {index} of {len(trace.canvas) - 1}, {done}", style="dim")


def _tokens(trace: Trace, index: int, positions: Any) -> Text:
    line = Text()
    canvas, role = trace.canvas[index], trace.role[index]
    for position in positions:
        kind = int(role[position])
        if kind == ABSENT:
            continue
        if kind == MASKED:
            line.append(MASK_MARK, style=STYLES[MASKED])
        else:
            line.append(visible(trace.token(int(canvas[position]))), style=STYLES[kind])
    return line
