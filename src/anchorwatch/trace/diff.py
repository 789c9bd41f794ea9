"""Where two runs part: the first step and position at which their canvases differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorwatch.errors import TraceError
from anchorwatch.trace.trace import MISSING, Trace, checked_trace


@dataclass(frozen=True)
class Difference:
    """Where two canvases first differ, and the step that parted them; false where they never do."""

    step: int | None
    """The step after which they differ; None where they began differently, or never differ."""
    position: int | None
    """The first position that differs then; None where they never differ."""
    tokens: tuple[str, str] | None
    """What each run has there."""
    differing: int
    """Positions that differ in the end."""

    def __bool__(self) -> bool:
        return self.position is not None

    def __str__(self) -> str:
        if self.tokens is None:
            return "the runs wrote the same canvas at every step"
        one, two = self.tokens
        how = "begin differently at" if self.step is None else f"part at step {self.step},"
        return (
            f"the runs {how} position {self.position}: {one!r} and {two!r}; "
            f"{self.differing} positions differ in the end"
        )


def diff(one: Trace, two: Trace) -> Difference:
    """The first step and position at which two runs part; runs of one prompt, length and tokenizer.

    Of runs whose first canvases differ already it says so: `step` is None then.
    """
    _comparable(checked_trace(one), checked_trace(two))
    steps = max(one.num_steps, two.num_steps)
    a, b = _extend_canvas(one.canvas, steps), _extend_canvas(two.canvas, steps)
    apart = a != b
    if not apart.any():
        return Difference(None, None, None, 0)
    frame = int(np.flatnonzero(apart.any(axis=1))[0])
    position = int(np.flatnonzero(apart[frame])[0])
    tokens = (_text(one, a[frame, position]), _text(two, b[frame, position]))
    return Difference(frame - 1 if frame else None, position, tokens, int(apart[-1].sum()))


def _comparable(one: Trace, two: Trace) -> None:
    """Refuse canvases in which a position or an id of the one is not the same in the other."""
    a, b = one.canvas[0], two.canvas[0]
    for token_id in np.intersect1d(one.canvas, two.canvas).tolist():
        if (first := one.token(token_id)) != (second := two.token(token_id)):
            raise TraceError(
                f"the token {token_id} is {first!r} in one run and {second!r} in the other: "
                "compare runs of models with the same tokenizer"
            )
    if len(a) != len(b):
        both = min(len(a), len(b))
        where = ""
        if len(apart := np.flatnonzero(a[:both] != b[:both])):
            first, second = _text(one, a[apart[0]]), _text(two, b[apart[0]])
            where = f" and begin differently at position {apart[0]}, {first!r} and {second!r}"
        raise TraceError(
            f"the canvases have {len(a)} and {len(b)} positions{where}: "
            "compare runs of the same prompt and length"
        )


def _extend_canvas(canvas: np.ndarray, steps: int) -> np.ndarray:
    """A run that stopped earlier stays as it was."""
    rest = np.repeat(canvas[-1:], steps + 1 - len(canvas), axis=0)
    return np.concatenate([canvas, rest])


def _text(trace: Trace, token_id: int) -> str:
    return "nothing" if token_id == MISSING else trace.token(int(token_id))
