"""The null of attention: uniform over the keys that a query may look at.

Under causal visibility early keys are seen by more queries, so even uniform attention "sinks"
there. A row may look at a span of neighbouring keys under every visibility there is, so both
arrays follow from where the spans begin and end, without a T x T map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from anchorwatch.edits.spec import additions_among, from_dict
from anchorwatch.trace.trace import ABSENT, FRESH, MASKED, PROMPT, SPECIAL, WRITTEN, Trace

T = TypeVar("T")

_ROLES = {
    "masked": (MASKED,),
    "written": (FRESH, WRITTEN),
    "prompt": (PROMPT, SPECIAL),
}


@dataclass(frozen=True, eq=False)
class Null:
    """Both [step, group, key], NaN where the key is absent or the group has no query."""

    shares: np.ndarray
    """What each key receives from uniform queries; with what parts added, it sums to one."""
    visible: np.ndarray
    """Share of the group's queries that may look at the key."""


def uniform_attention(
    trace: Trace,
    groups: Sequence[str],
    window: int | None = None,
    added: np.ndarray | None = None,
) -> Null:
    """The null of every step and query group of a trace, for layers with this window.

    `added` [step] are keys that parts added there; without it, those they added to every layer.
    """
    steps, positions = trace.num_steps, trace.canvas.shape[1]
    shares = np.full((steps, len(groups), positions), np.nan)
    visible = shares.copy()
    added = count_extra_keys(trace) if added is None else added
    # 1. Rows of a step are alike but for the span of keys they may look at.
    for step in range(steps):
        first, last = visible_spans(trace, step, window)
        length = len(first)
        # A row gives each key of its span, and each added key, the same share.
        weight = 1.0 / (last - first + added[step])
        # 2. A key receives the mean over the group's rows of what each gives it.
        for g, group in enumerate(groups):
            queries = group_queries(trace, step, group)[:length]
            if queries.any():
                count = queries.sum()
                able = _sum_weights(first, last, queries.astype(float)) / count
                even = _sum_weights(first, last, weight * queries) / count
                visible[step, g, :length] = able  # whole numbers, so that what nobody sees is zero
                shares[step, g, :length] = np.where(able > 0, even, 0.0)
    return Null(shares, visible)


def count_extra_keys(trace: Trace, layer: int | None = None) -> np.ndarray:
    """[step] keys that parts add before the canvas: at a layer, or those that every layer has.

    Only what all heads of a layer see is counted; a null is for all of them.
    """
    model, steps = trace.manifest["model"], trace.num_steps
    own = [from_dict(fields) for fields in model.get("parts", ())]
    layers = range(model["layers"]) if layer is None else [layer]
    counts = np.zeros(steps, dtype=int)
    clock = _progress(trace)
    # A part counts at a step if it acts then, at every layer asked for, on all heads.
    for part in additions_among([*own, *trace.edits]):
        everyone = all(
            len(part.heads_at(index, model["heads"])) == model["heads"] for index in layers
        )
        on = [part.acts_at(step, clock[step]) for step in range(steps)]
        counts += part.columns * everyone * np.array(on, dtype=int)
    return counts


def _progress(trace: Trace) -> np.ndarray:
    """[step] share of the answer written before it."""
    return 1 - np.isin(trace.role[:-1, trace.answer], (MASKED, ABSENT)).mean(axis=1)


def for_each_layer(trace: Trace, make: Callable[[int | None, np.ndarray], T]) -> list[T]:
    """What `make` gives for each layer's window and added keys, made once for layers alike."""
    known: dict[tuple[int | None, bytes], T] = {}
    results = []
    for layer in range(trace.manifest["model"]["layers"]):
        window, added = layer_window(trace, layer), count_extra_keys(trace, layer)
        # Most layers are alike, and a null is dear: one for each kind.
        kind = (window, added.tobytes())
        if kind not in known:
            known[kind] = make(window, added)
        results.append(known[kind])
    return results


def group_queries(trace: Trace, step: int, group: str) -> np.ndarray:
    """[position] bool: the queries of a group at a step; only rows that it computed."""
    of = _members(trace.role[step], trace["region"].values, trace.manifest["regions"], group)
    if "first_row" in trace:
        of[: int(trace["first_row"].values[step])] = False
        of[int(trace["end_row"].values[step]) :] = False
    if "row_computed" in trace:
        of &= trace["row_computed"].values[step] == 1
    return of


def _members(role: np.ndarray, region: np.ndarray, names: Sequence[str], group: str) -> np.ndarray:
    # `all`, a role, or else the name of a region.
    if group == "all":
        return role != ABSENT
    if group in _ROLES:
        return np.isin(role, _ROLES[group])
    return (region == names.index(group)) & (role != ABSENT)


def layer_window(trace: Trace, layer: int) -> int | None:
    """How far a layer sees, where it does not see everything it may."""
    windows: list[int | None] | None = trace.manifest["model"].get("windows")
    return windows[layer] if windows else None


def visible_spans(
    trace: Trace, step: int, window: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(first, one past the last) key that each existing row of a step may look at."""
    length, model = int(np.count_nonzero(trace.role[step] != ABSENT)), trace.manifest["model"]
    if "end_row" in trace:  # decoded in blocks, whose size is the decoding's
        length = int(trace["end_row"].values[step])
        model = {**model, "block": trace.manifest["decoding"]["block"]}
    return _spans(model, length, window)


def _spans(
    model: Mapping[str, Any], length: int, window: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """(first, one past the last) key that each row may look at."""
    rows = np.arange(length)
    first, last = np.zeros(length, dtype=int), np.full(length, length)
    # Without a window: everything, up to itself, or up to the end of its own block.
    if model["visibility"] == "causal":
        last = rows + 1
    elif model["visibility"] == "block-causal":
        last = np.minimum((rows // model["block"] + 1) * model["block"], length)
    if window is not None:  # as transformers counts: itself among them, or so many on either side
        causal = model["visibility"] == "causal"
        first = np.maximum(rows - window + causal, 0)
        last = last if causal else np.minimum(rows + window + 1, last)
    return first, last


def _sum_weights(first: np.ndarray, last: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """[key] sum of the weights of the rows whose span holds the key."""
    # +weight where a span begins, -weight behind its end: the running sum is the key's total.
    edges = np.zeros(len(first) + 1)
    np.add.at(edges, first, weight)
    np.add.at(edges, last, -weight)
    return np.cumsum(edges)[:-1]
