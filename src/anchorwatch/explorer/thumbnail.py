"""A small picture of a run: who receives attention at each step, and when tokens are written.

Steps go down, positions across. The darker a point, the more attention its position receives, in
times an even share; the mean over heads of a few layers. Orange marks where a token is written.
"""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np

from anchorwatch.trace.trace import ABSENT, MASKED, MISSING, Trace

MOST_STEPS, MOST_LAYERS, MOST_COLUMNS = 48, 8, 512
"""What a picture shows at most: evenly chosen steps and layers, positions put together."""
_DARKEST = 3.0
"""Where the scale ends: 2 ** 3 = 8 times an even share."""
_PAPER, _INK = np.array([250, 250, 252]), np.array([16, 44, 110])
_NOTHING, _WRITTEN = np.array([214, 214, 220]), np.array([213, 94, 0])


def draw_thumbnail(trace: Trace) -> bytes:
    """The picture as PNG, a pixel for each step and position."""
    steps = _choose(trace.num_steps, MOST_STEPS)
    # 1. Darkness between 0 and 1, and where there is nothing to show.
    if "received" in trace:
        lift = _lift(trace, steps)
        nothing = np.isnan(lift)
        with np.errstate(divide="ignore", invalid="ignore"):
            dark = np.clip(np.log2(lift) / _DARKEST, 0, 1)
    else:
        nothing = np.isin(trace.role[steps], (MASKED, ABSENT))
        dark = np.zeros(nothing.shape)
    dark = np.where(nothing, 0.0, dark)[..., None]
    # 2. Colours; a written token is marked in the last row that is shown before the next choice.
    colours = _PAPER + dark * (_INK - _PAPER)
    colours[nothing] = _NOTHING
    rows = np.searchsorted(steps, trace.committed_at, side="right") - 1
    written = np.flatnonzero(trace.committed_at != MISSING)
    colours[rows[written], written] = _WRITTEN
    return _encode(_narrow(colours).astype(np.uint8))


def _lift(trace: Trace, steps: np.ndarray) -> np.ndarray:
    """[step, position]: attention received over an even share, mean over heads of some layers."""
    received = trace["received"]
    layers = _choose(received.sizes["layer"], MOST_LAYERS)
    shares = np.asarray(received.isel(step=steps, layer=layers).sel(group="all").values, np.float32)
    seen = ~np.isnan(shares)
    with np.errstate(invalid="ignore"):
        total = np.where(seen, shares, 0).sum(axis=(1, 2))
        mean = np.where(seen.any(axis=(1, 2)), total / seen.sum(axis=(1, 2)), np.nan)
    return mean * (~np.isnan(mean)).sum(axis=1, keepdims=True)


def _choose(count: int, most: int) -> np.ndarray:
    """Evenly chosen numbers below `count`, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def _narrow(colours: np.ndarray) -> np.ndarray:
    """At most MOST_COLUMNS columns: of positions put together the darkest is shown."""
    width = colours.shape[1]
    if width <= MOST_COLUMNS:
        return colours
    edges = np.linspace(0, width, MOST_COLUMNS + 1).round().astype(int)
    parts = [colours[:, begin:end] for begin, end in pairwise(edges)]
    darkest = [part.sum(axis=2).argmin(axis=1) for part in parts]
    every = np.arange(len(colours))
    return np.stack([part[every, at] for part, at in zip(parts, darkest, strict=True)], axis=1)


def _encode(pixels: np.ndarray) -> bytes:
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, pixels, format="png")
    return buffer.getvalue()
