"""What indifferent attention would give: every key that may be looked at gets an equal share.

Under causal visibility early keys are seen by more queries, so even indifferent attention "sinks"
there. A row may look at a span of neighbouring keys under every visibility there is, so both
arrays follow from where the spans begin and end, without a T x T map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorwatch.trace import ABSENT, FRESH, MASKED, PROMPT, SPECIAL, WRITTEN, Trace

_ROLES = {
    "masked": (MASKED,),
    "written": (FRESH, WRITTEN),
    "prompt": (PROMPT, SPECIAL),
}


@dataclass(frozen=True, eq=False)
class Null:
    """Both [step, group, key], NaN where the key is absent or the group has no query."""

    shares: np.ndarray
    """What each key receives from indifferent queries; with the sink token's, it sums to one."""
    seen: np.ndarray
    """Share of the group's queries that may look at the key."""


def indifferent(trace: Trace, groups: Sequence[str], window: int | None = None) -> Null:
    """The null of every step and query group of a trace, for layers with this window."""
    manifest, region = trace.manifest, trace["region"].values
    model, names = manifest["model"], manifest["regions"]
    steps, positions = trace.num_steps, trace.canvas.shape[1]
    shares = np.full((steps, len(groups), positions), np.nan)
    seen = shares.copy()
    roles = trace.role
    for step in range(steps):
        there = int(np.count_nonzero(roles[step] != ABSENT))
        first, last = _spans(model, there, window)
        looks = 1.0 / (last - first + (model.get("sink_id") is not None))
        for g, group in enumerate(groups):
            asks = _members(roles[step], region, names, group)[:there]
            if asks.any():
                count = asks.sum()
                able = _covered(first, last, asks.astype(float)) / count
                even = _covered(first, last, looks * asks) / count
                seen[step, g, :there] = able  # whole numbers, so that what nobody sees is zero
                shares[step, g, :there] = np.where(able > 0, even, 0.0)
    return Null(shares, seen)


def members(trace: Trace, step: int, group: str) -> np.ndarray:
    """[position] bool: the queries of a group at a step."""
    return _members(trace.role[step], trace["region"].values, trace.manifest["regions"], group)


def _members(role: np.ndarray, region: np.ndarray, names: Sequence[str], group: str) -> np.ndarray:
    if group == "all":
        return role != ABSENT
    if group in _ROLES:
        return np.isin(role, _ROLES[group])
    return (region == names.index(group)) & (role != ABSENT)


def window_of(trace: Trace, layer: int) -> int | None:
    """How far a layer sees, where it does not see everything it may."""
    windows: list[int | None] | None = trace.manifest["model"].get("windows")
    return windows[layer] if windows else None


def spans(trace: Trace, step: int, window: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(first, one past the last) key that each existing row of a step may look at."""
    there = int(np.count_nonzero(trace.role[step] != ABSENT))
    return _spans(trace.manifest["model"], there, window)


def _spans(
    model: Mapping[str, Any], there: int, window: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """(first, one past the last) key that each row may look at."""
    rows = np.arange(there)
    first, last = np.zeros(there, dtype=int), np.full(there, there)
    if model["visibility"] == "causal":
        last = rows + 1
    elif model["visibility"] == "block-causal":
        last = np.minimum((rows // model["block"] + 1) * model["block"], there)
    if window is not None:  # as transformers counts: itself among them, or so many on either side
        causal = model["visibility"] == "causal"
        first = np.maximum(rows - window + causal, 0)
        last = last if causal else np.minimum(rows + window + 1, last)
    return first, last


def _covered(first: np.ndarray, last: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """[key] sum of the weights of the rows whose span holds the key."""
    edges = np.zeros(len(first) + 1)
    np.add.at(edges, first, weight)
    np.add.at(edges, last, -weight)
    return np.cumsum(edges)[:-1]
