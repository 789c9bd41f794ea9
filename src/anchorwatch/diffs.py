"""Where two runs part: the first step and position at which their canvases differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorwatch.errors import TraceError
from anchorwatch.trace import MISSING, Trace


@dataclass(frozen=True)
class Difference:
    """The first step after which two canvases differ, and where; all None where they never do."""

    step: int | None
    position: int | None
    tokens: tuple[str, str] | None
    """What each run has there afterwards."""
    differing: int
    """Positions that differ in the end."""

    def __bool__(self) -> bool:
        return self.step is not None

    def __str__(self) -> str:
        if self.step is None:
            return "the runs wrote the same canvas at every step"
        assert self.tokens is not None
        one, two = self.tokens
        return (
            f"the runs part at step {self.step}, position {self.position}: {one!r} and {two!r}; "
            f"{self.differing} positions differ in the end"
        )


def diff(one: Trace, two: Trace) -> Difference:
    """The first step and position at which two runs of one canvas part."""
    if one.canvas.shape[1] != two.canvas.shape[1]:
        raise TraceError(
            f"the canvases have {one.canvas.shape[1]} and {two.canvas.shape[1]} positions: "
            "compare runs of the same prompt and length"
        )
    steps = max(one.num_steps, two.num_steps)
    a, b = _stretched(one.canvas, steps), _stretched(two.canvas, steps)
    apart = a != b
    if not apart.any():
        return Difference(None, None, None, 0)
    frame = int(np.flatnonzero(apart.any(axis=1))[0])
    position = int(np.flatnonzero(apart[frame])[0])
    tokens = (_text(one, a[frame, position]), _text(two, b[frame, position]))
    return Difference(max(frame - 1, 0), position, tokens, int(apart[-1].sum()))


def _stretched(canvas: np.ndarray, steps: int) -> np.ndarray:
    """A run that stopped earlier stays as it was."""
    rest = np.repeat(canvas[-1:], steps + 1 - len(canvas), axis=0)
    return np.concatenate([canvas, rest])


def _text(trace: Trace, token_id: int) -> str:
    return "nothing" if token_id == MISSING else trace.token(int(token_id))
