"""Traces as metrics read them: `received` of one layer at a time, so that memory stays small.

A layer slice holds all steps, heads, query groups and keys of one layer. What several metrics need
of it (sink labels, the top key) is computed once and kept as long as the slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
import xarray as xr

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics.null import Null, for_each_layer, uniform_attention
from anchorwatch.metrics.sink_rules import Rule, check_rule
from anchorwatch.probes.spec import find_probe
from anchorwatch.trace.progress_bar import Progress
from anchorwatch.trace.trace import Trace

Traces = Trace | Sequence[Trace]
"""One trace or several."""

READ_BYTES = 128_000_000
"""Read as many layers together as fit into this: a stored chunk may hold several."""

_PROBES = {
    "received": "received()",
    "queries": "received()",
    "sink_received": "received()",
    "sink_value_norm": "norms(sink=True)",
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
    "expert_count": "experts()",
    "expert_choice": "experts()",
    "pattern": "pattern(layers=[...], heads=[...], steps=[...])",
    "qk_logit": "qk_maps(layers=[...], heads=[...], steps=[...])",
}
_SUMMARIES = {
    **dict.fromkeys(("cosine", "norm_product", "logit", "query_norm"), "qk_geometry"),
    **dict.fromkeys(("key_norm", "value_norm"), "norms"),
    "contribution_norm": "norms(contribution=True)",
}


def check_traces(traces: Traces) -> list[Trace]:
    """One trace or several, as a list; anything else is refused."""
    single = isinstance(traces, Trace) or not isinstance(traces, Iterable)
    checked: list[Trace] = [traces] if single else list(traces)  # type: ignore[list-item, arg-type]
    for trace in checked:
        if not isinstance(trace, Trace):
            raise SpecError(
                f"a metric reads traces, not {type(trace).__name__}: aw.read(path) opens one"
            )
    if not checked:
        raise SpecError("a metric needs at least one trace: there is none in the list")
    return checked


def require_field(trace: Trace, name: str) -> xr.DataArray:
    """A field of the trace; where it was not captured, the error says how to measure it now."""
    if name in trace.fields:
        return trace[name] if name == "received" else as_stored(trace[name])
    probe = _probe(name)
    raise TraceError(
        f"{_trace_label(trace)} has no {name!r}: measure it afterwards with "
        f"aw.replay(model, trace, probes=[aw.probes.{probe}]), "
        f"or anchorwatch replay TRACE --probes default,{_as_word(probe)} -o OUT"
    )


def as_stored(field: xr.DataArray) -> xr.DataArray:
    """A field rounded as it is on disk: a run says the same before it is written and after."""
    stored = field.encoding.get("dtype", field.dtype)
    return field if stored == field.dtype else field.astype(stored).astype(field.dtype)


def find_top_key(shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(position, share) of the key that receives most of [..., key]; -1 and NaN if all are absent.

    Of equal shares the first position is the top key.
    """
    filled = np.where(np.isnan(shares), shares.dtype.type(-1), shares)  # absent: below every share
    position = filled.argmax(axis=-1)
    share = np.take_along_axis(filled, position[..., None], axis=-1)[..., 0]
    measured = share >= 0
    return np.where(measured, position, -1), np.where(measured, share, np.nan)


def mean_over_heads(values: np.ndarray) -> np.ndarray:
    """[step, ...] the mean of [step, head, ...] over the heads that were measured, in float64."""
    count = (~np.isnan(values)).sum(axis=1)
    total = np.nansum(values, axis=1, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)


class LayerSlice:
    """`received` of one layer of one trace, its null, and what both say of sinks."""

    def __init__(
        self, trace: Trace, index: int, received: np.ndarray, groups: tuple[str, ...], null: Null
    ) -> None:
        self.trace, self.index, self.groups = trace, index, groups
        self._received = received  # [step, head, group, key]
        self._null = null
        self._labels: dict[tuple[Rule, str], np.ndarray] = {}
        self._top_keys: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def head_mean(self) -> LayerSlice:
        """The same layer with a single head: the mean over those that were measured."""
        values = mean_over_heads(self._received)[:, None]
        return LayerSlice(self.trace, self.index, values, self.groups, self._null)

    def shares(self, group: str = "all") -> np.ndarray:
        """[step, head, key] of one query group, NaN where absent."""
        return self._received[:, :, self._group_index(group)]

    def null(self, group: str = "all") -> np.ndarray:
        """[step, 1, key] what uniform attention gives each key."""
        return self._null.shares[:, None, self._group_index(group)]

    def visible_share(self, group: str = "all") -> np.ndarray:
        """[step, 1, key] share of the group's queries that may look at each key."""
        return self._null.visible[:, None, self._group_index(group)]

    def is_measured(self, group: str = "all") -> np.ndarray:
        """[step, head] bool: whether there is anything to read."""
        return ~np.isnan(self.shares(group)[..., 0])

    def labels(self, rule: Rule, group: str = "all") -> np.ndarray:
        """[step, head, key] bool: which keys are sinks."""
        if (rule, group) not in self._labels:
            labels = check_rule(rule).labels(self.shares(group), self.visible_share(group))
            self._labels[rule, group] = labels
        return self._labels[rule, group]

    def null_labels(self, rule: Rule, group: str = "all") -> np.ndarray:
        """[step, 1, key] bool: which keys the rule would call sinks of uniform attention."""
        return rule.labels(self.null(group), self.visible_share(group))

    def top_key(self, group: str = "all") -> tuple[np.ndarray, np.ndarray]:
        """(position, share) of the top key, [step, head] each; -1 and NaN if not measured."""
        if group not in self._top_keys:
            self._top_keys[group] = find_top_key(self.shares(group))
        return self._top_keys[group]

    def top_sink(self, rule: Rule, group: str = "all") -> np.ndarray:
        """[step, head] position of the top key where the rule calls it a sink, else -1."""
        position, _ = self.top_key(group)
        labelled = np.take_along_axis(
            self.labels(rule, group), np.maximum(position, 0)[..., None], axis=-1
        )[..., 0]
        return np.where((position >= 0) & labelled, position, -1)

    def top_key_path(self, group: str = "all") -> np.ndarray:
        """[head, step] position of the top key, sink or not; NaN where nothing was measured."""
        position = self.top_key(group)[0].T
        return np.where(position >= 0, position, np.nan)

    def sink_path(self, rule: Rule, group: str = "all") -> np.ndarray:
        """[head, step] position of the top key where the rule calls it a sink, else NaN."""
        position = self.top_sink(rule, group).T
        return np.where(position >= 0, position, np.nan)

    def _group_index(self, group: str) -> int:
        if group not in self.groups:
            groups = [*self.groups, group]
            raise TraceError(
                f"{_trace_label(self.trace)} holds `received` of the groups "
                f"{', '.join(self.groups)}, not of {group!r}: measure it afterwards with "
                f"aw.replay(model, trace, probes=[aw.probes.received(groups={groups})])"
            )
        return self.groups.index(group)


def iter_layers(trace: Trace) -> Iterator[LayerSlice]:
    """The layers of a trace, first to last, a few of them in memory at a time."""
    received = require_field(trace, "received")
    groups = tuple(str(name) for name in received.coords["group"].values)
    layers, stored = received.sizes["layer"], received.encoding.get("dtype", received.dtype)
    layer_bytes = received.size // max(layers, 1) * 4  # as float32
    together = max(1, READ_BYTES // max(layer_bytes, 1))
    nulls = for_each_layer(
        trace, lambda window, added: uniform_attention(trace, groups, window, added)
    )
    for first in range(0, layers, together):
        values = received[:, first : first + together].values
        # A trace in memory is rounded as it would be on disk, so both give the same numbers.
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
    bare = bare.removesuffix("_before_rotary")
    kind = _SUMMARIES.get(bare) or find_probe(bare) or "norms"
    options = [kind.partition("(")[2].rstrip(")")] if "(" in kind else []
    options += ["keys=True"] if every else []
    options += ["rotary='before'"] if before else []
    return f"{kind.partition('(')[0]}({', '.join(options)})"


def _as_word(call: str) -> str:
    """A probe as the command line spells it.

    >>> _as_word("norms(contribution=True, keys=True)"), _as_word("pattern(layers=[...])")
    ('norms:contribution=true,keys=true', 'pattern:layers=0+1')
    """
    name, _, settings = call.removesuffix(")").partition("(")
    for python, word in ((" ", ""), ("'", ""), ("True", "true"), ("[...]", "0+1")):
        settings = settings.replace(python, word)
    return f"{name}:{settings}" if settings else name


def _trace_label(trace: Trace) -> str:
    return f"the trace {trace.digest()[:12]} of {trace.manifest['model']['source']}"


Kernel = Callable[[LayerSlice], Any]
"""A function of one layer."""
Layers = list[tuple[Trace, list[Any]]]
"""What a kernel returned for each layer of each trace."""

THREADS = 2
"""Layers at work at a time: numpy releases the interpreter, and each layer takes memory."""


def map_layers(traces: Traces, kernel: Kernel) -> Layers:
    """Apply `kernel` to every layer of every trace."""
    (result,) = map_kernels(check_traces(traces), [kernel])
    if isinstance(result, TraceError):
        raise result
    return result


def map_kernels(traces: Sequence[Trace], kernels: Sequence[Kernel]) -> list[Layers | TraceError]:
    """Apply many kernels in one pass over the layers.

    A field that a trace lacks is a result too: the TraceError that says so, instead of the layers.
    """
    results: list[Layers] = [[(trace, []) for trace in traces] for _ in kernels]
    errors: dict[int, TraceError] = {}

    def run_all(layer: LayerSlice) -> list[Any]:
        return [
            None if i in errors else _run_kernel(kernel, layer) for i, kernel in enumerate(kernels)
        ]

    total = sum(trace.manifest["model"]["layers"] for trace in traces)
    with Progress("reading", total) as bar, ThreadPoolExecutor(THREADS) as pool:
        for number, trace in enumerate(traces):
            layers = iter_layers(trace)
            while few := list(islice(layers, THREADS)):
                for answers in pool.map(run_all, few):
                    for i, answer in enumerate(answers):
                        results[i][number][1].append(answer)
                        if isinstance(answer, TraceError):
                            errors.setdefault(i, answer)
                    bar.advance()
    return [errors.get(i, layers) for i, layers in enumerate(results)]


def _run_kernel(kernel: Kernel, layer: LayerSlice) -> Any:
    try:
        return kernel(layer)
    except TraceError as error:
        return error
