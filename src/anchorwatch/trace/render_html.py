"""A trace in a notebook: the film strip as HTML, one line a frame, coloured by role.

Token text is foreign text: it is escaped, its invisible characters are marked, and each stretch is
isolated so that a right-to-left token turns nothing but itself. No script, no outside request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from anchorwatch.trace.escape import visible

MOST_FRAMES = 24
_STYLE = """
<style>
.aw-strip { font: 13px/1.7 ui-monospace, monospace; max-width: 100%; overflow-x: auto }
.aw-strip ol { list-style: none; margin: 0; padding: 0 } .aw-strip li { white-space: pre-wrap }
.aw-strip span { unicode-bidi: isolate } .aw-strip .n { color: #767676; user-select: none }
.aw-strip .prompt, .aw-strip .special { color: #6b6b6b } .aw-strip .special { font-style: italic }
.aw-strip .masked { color: #767676 } .aw-strip .written { color: #00606b }
.aw-strip .fresh { background: #ffd84d; color: #000; font-weight: 600 }
@media (prefers-color-scheme: dark) {
  .aw-strip .prompt, .aw-strip .special, .aw-strip .masked, .aw-strip .n { color: #a0a0a0 }
  .aw-strip .written { color: #6fd3de }
}
</style>
"""


def choose_frames(frames: int) -> list[int]:
    """Which frames a strip shows: all of them, or so many evenly, first and last among them."""
    count = min(frames, MOST_FRAMES)
    return sorted({round(i * (frames - 1) / max(count - 1, 1)) for i in range(count)})


def film_strip(head: str, rows: Mapping[int, Sequence[tuple[str, str]]], frames: int) -> str:
    """HTML of some frames, each a list of (role, text); says so when frames are left out."""
    lines = "".join(
        f'<li><span class="n">{i:>4} </span>'
        + "".join(f'<span class="{role}">{escape(visible(text))}</span>' for role, text in row)
        + "</li>"
        for i, row in rows.items()
    )
    note = f"<p>{len(rows)} of {frames} frames shown</p>" if len(rows) < frames else ""
    title = escape(visible(head))
    return f'{_STYLE}<div class="aw-strip"><p>{title}</p><ol>{lines}</ol>{note}</div>'
