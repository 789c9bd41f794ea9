"""Traces as metrics read them: one layer's `received` at a time, so that memory stays small.

A slab is all steps, heads and keys of one layer. What several metrics need of it (labels, the
greatest key) is found once and kept while the slab is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import xarray as xr

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics.nulls import Null, by_kind, indifferent
from anchorwatch.metrics.sink_rules import Rule, check_rule
from anchorwatch.trace.trace import Trace

Traces = Trace | Sequence[Trace]
"""One trace or several."""

AT_ONCE_BYTES = 128_000_000
"""Read as many layers together as fit into this: a stored chunk may hold several."""

_PROBES = {
    "received": "received()",
    "queries": "received()",
    "entropy": "entropy()",
    "diagonal": "diagonal()",
    "distance_mass": "distance()",
    "commit_top_key": "top_keys()",
    "commit_top_mass": "top_keys()",
    "commit_region_mass": "commit_regions()",
    "row_top_key": "top_keys(every_row=True)",
    "row_top_mass": "top_keys(every_row=True)",
    "region_flow": "region_flow()",
    "region_rollout": "region_rollout()",
    "residual_norm": "norms(residual=True)",
    "massive_value": "massive()",
    "state_cosine": "mixing()",
    "effective_rank": "mixing()",
    "pattern": "pattern(layers=[...], heads=[...], steps=[...])",
}
_SUMMARIES = {
    **dict.fromkeys(("cosine", "norm_product", "logit", "query_norm"), "qk_geometry"),
    **dict.fromkeys(("key_norm", "value_norm"), "norms"),
    "contribution_norm": "norms(contribution=True)",
}


def check_traces(traces: Traces) -> list[Trace]:
    """One trace or several, as a list; anything else is refused."""
    one = isinstance(traces, Trace) or not isinstance(traces, Iterable)
    found: list[Trace] = [traces] if one else list(traces)  # type: ignore[list-item, arg-type]
    for trace in found:
        if not isinstance(trace, Trace):
            raise SpecError(
                f"a metric reads traces, not {type(trace).__name__}: aw.read(path) opens one"
            )
    if not found:
        raise SpecError("a metric needs at least one trace: there is none in the list")
    return found


def require_field(trace: Trace, name: str) -> xr.DataArray:
    """A field of the trace; where it was not captured, the error says how to measure it now."""
    if name in trace.fields:
        return trace[name] if name == "received" else as_stored(trace[name])
    raise TraceError(
        f"{_trace_label(trace)} has no {name!r}: measure it afterwards with "
        f"aw.replay(model, trace, probes=[aw.probes.{_probe(name)}])"
    )


def as_stored(field: xr.DataArray) -> xr.DataArray:
    """A field rounded as it is on disk: a run says the same before it is written and after."""
    stored = field.encoding.get("dtype", field.dtype)
    return field if stored == field.dtype else field.astype(stored).astype(field.dtype)


class LayerSlice:
    """`received` of one layer of one trace."""

    def __init__(
        self, trace: Trace, layer: int, received: np.ndarray, groups: tuple[str, ...], null: Null
    ) -> None:
        self.trace, self.layer, self.groups = trace, layer, groups
        self._received = received  # [step, head, group, key]
        self._null = null
        self._labels: dict[tuple[Rule, str], np.ndarray] = {}
        self._tops: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def shares(self, group: str = "all") -> np.ndarray:
        """[step, head, key] of one query group, NaN where absent."""
        return self._received[:, :, self._index(group)]

    def null(self, group: str = "all") -> np.ndarray:
        """[step, 1, key] what indifferent attention gives each key."""
        return self._null.shares[:, None, self._index(group)]

    def seen(self, group: str = "all") -> np.ndarray:
        """[step, 1, key] share of the group's queries that may look at each key."""
        return self._null.seen[:, None, self._index(group)]

    def measured(self, group: str = "all") -> np.ndarray:
        """[step, head] bool: whether there is anything to read."""
        return ~np.isnan(self.shares(group)[..., 0])

    def labels(self, rule: Rule, group: str = "all") -> np.ndarray:
        """[step, head, key] bool: which keys are sinks."""
        if (rule, group) not in self._labels:
            labels = check_rule(rule).labels(self.shares(group), self.seen(group))
            self._labels[rule, group] = labels
        return self._labels[rule, group]

    def null_labels(self, rule: Rule, group: str = "all") -> np.ndarray:
        """[step, 1, key] bool: which keys the rule would call sinks of indifferent attention."""
        return rule.labels(self.null(group), self.seen(group))

    def top(self, group: str = "all") -> tuple[np.ndarray, np.ndarray]:
        """(position, share), [step, head] each, of the greatest key; -1 and NaN where absent."""
        if group not in self._tops:
            shares = self.shares(group)
            there = self.measured(group)
            place = np.where(np.isnan(shares), -1.0, shares).argmax(axis=-1)
            most = np.take_along_axis(shares, place[..., None], axis=-1)[..., 0]
            self._tops[group] = np.where(there, place, -1), np.where(there, most, np.nan)
        return self._tops[group]

    def sink_top(self, rule: Rule, group: str = "all") -> np.ndarray:
        """[step, head] position of the greatest key where the rule calls it a sink, else -1."""
        place, _ = self.top(group)
        labelled = np.take_along_axis(
            self.labels(rule, group), np.maximum(place, 0)[..., None], axis=-1
        )[..., 0]
        return np.where((place >= 0) & labelled, place, -1)

    def _index(self, group: str) -> int:
        if group not in self.groups:
            groups = [*self.groups, group]
            raise TraceError(
                f"{_trace_label(self.trace)} holds `received` of the groups "
                f"{', '.join(self.groups)}, not of {group!r}: measure it afterwards with "
                f"aw.replay(model, trace, probes=[aw.probes.received(groups={groups})])"
            )
        return self.groups.index(group)


def slabs(trace: Trace) -> Iterator[LayerSlice]:
    """The layers of a trace, first to last, a few of them in memory at a time."""
    received = require_field(trace, "received")
    groups = tuple(str(name) for name in received.coords["group"].values)
    layers, stored = received.sizes["layer"], received.encoding.get("dtype", received.dtype)
    each = received.size // max(layers, 1) * 4
    together = max(1, AT_ONCE_BYTES // max(each, 1))
    nulls = by_kind(trace, lambda window, added: indifferent(trace, groups, window, added))
    for first in range(0, layers, together):
        values = received[:, first : first + together].values
        values = values.astype(stored, copy=False).astype(np.float32, copy=False)
        for offset in range(values.shape[1]):
            layer = first + offset
            yield LayerSlice(trace, layer, values[:, offset], groups, nulls[layer])


def _probe(name: str) -> str:
    bare = name.removeprefix("blind_")
    if bare in _PROBES:
        return _PROBES[bare]
    every = bare.startswith("each_")
    bare = bare.removeprefix("each_").removeprefix("peak_")
    before = bare.endswith("_before_rotary")
    kind = _SUMMARIES.get(bare.removesuffix("_before_rotary"), "norms")
    options = [kind.partition("(")[2].rstrip(")")] if "(" in kind else []
    options += ["keys=True"] if every else []
    options += ["rotary='before'"] if before else []
    return f"{kind.partition('(')[0]}({', '.join(options)})"


def _trace_label(trace: Trace) -> str:
    return f"the trace {trace.digest()[:12]} of {trace.manifest['model']['source']}"
