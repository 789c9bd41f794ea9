"""What the page needs of one layer, read a few steps at a time: never the whole field.

Shares are read as they are stored, so a run looks the same before it is written and after. A mean
over heads is over those that were measured, in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import xarray as xr

from anchorwatch.errors import SpecError
from anchorwatch.explorer.encode import bin_maxima, codes, pack
from anchorwatch.metrics.layer_slices import find_top_key, mean_over_heads, require_field
from anchorwatch.metrics.null import Null, for_each_layer, uniform_attention
from anchorwatch.metrics.sink_rules import Rule
from anchorwatch.trace.trace import ROLES, Trace

DIMS = ("step", "layer", "head", "group", "key")
AT_ONCE_BYTES = 64_000_000
"""Shares held at a time, as float32."""
MOST_SINKS = 64
"""Sinks of a step whose exact shares are sent, greatest first; the page says how many were not."""


@dataclass(frozen=True, eq=False)
class Sinks:
    """The keys a rule calls sinks, one row each, in the order of steps and keys."""

    step: np.ndarray
    key: np.ndarray
    share: np.ndarray
    left_out: int


class Received:
    """`received` of a trace, by layer; nulls are worked out once for each window."""

    def __init__(self, trace: Trace, rule: Rule) -> None:
        self.trace, self.rule = trace, rule
        self._field = require_field(trace, "received")
        if wrong := _wrong(self._field, trace):
            raise SpecError(wrong)
        self._stored = self._field.encoding.get("dtype", self._field.dtype)
        self.groups = tuple(str(name) for name in self._field.coords["group"].values)
        self.first = self.groups.index("all") if "all" in self.groups else 0
        self._kinds: list[tuple[int | None, np.ndarray]] = []
        self.null_of = for_each_layer(trace, self._kind)
        """By layer, which null: layers alike in window and added keys share one."""
        self._nulls: dict[int, Null] = {}
        self._one_hot = _one_hot(trace)
        self._sink = trace["sink_received"] if has_sink(trace) else None

    def _kind(self, window: int | None, added: np.ndarray) -> int:
        self._kinds.append((window, added))
        return len(self._kinds) - 1

    def null(self, kind: int) -> Null:
        """What uniform attention gives, under one kind of visibility."""
        if kind not in self._nulls:
            window, added = self._kinds[kind]
            self._nulls[kind] = uniform_attention(self.trace, self.groups, window, added)
        return self._nulls[kind]

    def null_at(self, layer: int) -> Null:
        """The same, for a layer."""
        return self.null(self.null_of[layer])

    def blocks(self, layer: int) -> Iterator[tuple[slice, np.ndarray]]:
        """(steps, shares [step, head, group, key]) of a layer."""
        steps, _, heads, groups, keys = self._field.shape
        together = max(8, AT_ONCE_BYTES // max(4 * heads * groups * keys, 1))
        for first in range(0, steps, together):
            chunk = slice(first, min(first + together, steps))
            values = self._field[chunk, layer].values
            yield chunk, values.astype(self._stored, copy=False).astype(np.float32, copy=False)

    def row(self, step: int, layer: int, head: int | None) -> np.ndarray:
        """[group, key] exact shares of one head, or the mean over heads."""
        values = self._field[step, layer].values.astype(self._stored, copy=False)
        return _select_head(values.astype(np.float32)[None], head)[0]

    def part(self, layer: int, head: int | None, group: int, keys: slice) -> bytes:
        """[step, key] exact shares of neighbouring keys, and what uniform attention gives."""
        shares = [
            _select_head(values[..., keys], head)[:, group] for _, values in self.blocks(layer)
        ]
        null = self.null_at(layer).shares[:, group, keys].astype(np.float32)
        return pack({"shares": np.concatenate(shares).astype(np.float32), "null": null})

    def tile(self, layer: int, head: int | None, group: int, width: int) -> bytes:
        """[step, bin] codes of one head or the mean, with the sinks among what is drawn."""
        shares = np.concatenate([_select_head(v, head)[:, group] for _, v in self.blocks(layer)])
        return pack(*self._draw_tile(shares, layer, group, width))

    def layer(self, layer: int, width: int) -> bytes:
        """All that is sent of a layer at once: the mean tile, every head's greatest and sinks."""
        means, heads, flows = [], [], []
        seen = self.null_at(layer).visible[:, self.first]
        for steps, values in self.blocks(layer):
            mean = _select_head(values, None)
            means.append(mean[:, self.first])
            heads.append(self._heads(values[:, :, self.first], seen[steps]))
            flows.append(self._flow(mean, steps))
        shares = np.concatenate(means)
        arrays, meta = self._draw_tile(shares, layer, self.first, width)
        arrays["top_key"], arrays["top_share"] = _top(shares)
        for name in heads[0]:
            arrays[name] = np.concatenate([block[name] for block in heads])
        arrays["flow"] = self._with_sink(np.concatenate(flows), layer)
        return pack(arrays, meta)

    def _draw_tile(
        self, shares: np.ndarray, layer: int, group: int, width: int
    ) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        coded, most = codes(bin_maxima(shares, width))
        marked = sinks(shares, self.rule, self.null_at(layer).visible[:, group])
        arrays = {
            "codes": coded,
            "sink_step": marked.step,
            "sink_key": marked.key,
            "sink_share": marked.share,
        }
        return arrays, {"most": most, "sinks_left_out": marked.left_out}

    def _heads(self, shares: np.ndarray, seen: np.ndarray) -> dict[str, np.ndarray]:
        """Of every head and step: its greatest key and share, its sinks and what they take."""
        key, share = _top(shares)
        labels = self.rule.labels(shares, seen[:, None])
        measured = ~np.isnan(share)
        taken = np.where(labels, shares, 0.0).sum(axis=-1, dtype=np.float64)
        return {
            "head_top_key": key,
            "head_top_share": share,
            "head_sink_share": np.where(measured, taken, np.nan).astype(np.float32),
            "head_sinks": np.where(measured, labels.sum(axis=-1), -1).astype(np.int32),
        }

    def _flow(self, mean: np.ndarray, steps: slice) -> np.ndarray:
        """[step, group, class] what queries of a group give to keys of a class, mean over heads."""
        filled = np.nan_to_num(mean, nan=0.0)
        if self._one_hot is not None:
            flow = filled @ self._one_hot
        else:
            role = self.trace.role[steps, None]
            each = [(filled * (role == kind)).sum(axis=-1) for kind in range(len(ROLES))]
            flow = np.stack(each, axis=-1)
        empty = np.isnan(mean).all(axis=-1)
        return np.where(empty[..., None], np.nan, flow).astype(np.float32)

    def _with_sink(self, flow: np.ndarray, layer: int) -> np.ndarray:
        """The same with what goes to keys that parts added, which are no positions, last."""
        if self._sink is None:
            return flow
        taken = self._sink[:, layer].mean("head").values[..., None]
        return np.concatenate([flow, taken.astype(np.float32)], axis=-1)


def _wrong(field: xr.DataArray, trace: Trace) -> str | None:
    """How shares are not those of every step, layer, head and position, in words."""
    if field.dims != DIMS or field.dtype.kind != "f":
        return f"it is {field.dtype} over {', '.join(map(str, field.dims))}"
    model = trace.manifest["model"]
    steps, positions = trace.num_steps, trace.canvas.shape[1]
    wanted = (steps, model["layers"], model["heads"], field.shape[3], positions)
    if field.shape != wanted:
        return f"it is of {field.shape} {', '.join(DIMS)}, the run of {wanted}"
    return None if "group" in field.coords else "its query groups have lost their names"


def class_names(trace: Trace) -> tuple[str, ...]:
    """What keys are told apart by: named regions and the rest, or roles; and added keys."""
    return (*(regions_of(trace) or ROLES), *(["added keys"] if has_sink(trace) else []))


def has_sink(trace: Trace) -> bool:
    """Whether the share of keys that parts added, such as a sink token, was measured."""
    return "sink_received" in trace and trace["sink_received"].dims == DIMS[:4]


def regions_of(trace: Trace) -> tuple[str, ...]:
    """Named regions and the rest; () where no position is in any."""
    names = tuple(trace.manifest["regions"]) if (trace["region"].values >= 0).any() else ()
    return (*names, "elsewhere") if names else ()


def sinks(shares: np.ndarray, rule: Rule, seen: np.ndarray) -> Sinks:
    """The sinks among [step, key] shares, at most `MOST_SINKS` of a step."""
    labels = rule.labels(shares, seen)
    left_out = 0
    for step in np.flatnonzero(labels.sum(axis=-1) > MOST_SINKS).tolist():
        marked = np.flatnonzero(labels[step])
        weakest = marked[np.argsort(-shares[step, marked], kind="stable")[MOST_SINKS:]]
        labels[step, weakest] = False
        left_out += len(weakest)
    steps, keys = np.nonzero(labels)
    share = shares[steps, keys].astype(np.float32)
    return Sinks(steps.astype(np.int32), keys.astype(np.int32), share, left_out)


def _select_head(values: np.ndarray, head: int | None) -> np.ndarray:
    """[step, group, key] of one head, or the mean over the heads that were measured."""
    return mean_over_heads(values) if head is None else values[:, head]


def _one_hot(trace: Trace) -> np.ndarray | None:
    """[key, class] which region a key is in, the last being none; None where classes are roles."""
    names = regions_of(trace)
    if not names:
        return None
    region = trace["region"].values
    of = np.where(region < 0, len(names) - 1, region)
    return (of[:, None] == np.arange(len(names))).astype(np.float64)


def _top(shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(position, share) of the top key of [..., key], as packets hold them."""
    key, share = find_top_key(shares)
    return key.astype(np.int32), share.astype(np.float32)
