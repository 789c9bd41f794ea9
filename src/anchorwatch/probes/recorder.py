"""Calls the probes during forward passes: what they read of a call, and where they write.

A recorder lives for one group of runs. Before each forward pass it is given which rows of the batch
belong to which run; hooks for what attention calls do not carry exist only during that pass.
Shapes: B rows of the batch, H heads, Q queries, K keys, L canvas positions, D channels, R regions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from anchorwatch.errors import SpecError
from anchorwatch.models.attention import AttentionEditor, Call, observe
from anchorwatch.models.model import Model
from anchorwatch.models.sites import layer_modules, output_rows, router_modules, sites_of
from anchorwatch.probes.accumulate import RowSums, TraceBuffer, View, sum_rows
from anchorwatch.probes.reduce import AttentionStats, StatRequest, reduce_attention
from anchorwatch.probes.spec import Probe
from anchorwatch.trace.regions import Regions
from anchorwatch.trace.schema import RunShape


class Recorder:
    """All probes of a group of runs."""

    def __init__(
        self,
        model: Model,
        probes: Sequence[Probe],
        buffers: Sequence[TraceBuffer],
        regions: Sequence[Regions],
    ) -> None:
        # 1. What is recorded, and of whom.
        self.model, self.probes = model, tuple(probes)
        self.buffers, self.regions = list(buffers), list(regions)
        # Runs that share a pass have the same region names.
        names = regions[0].names if regions else ()
        groups = [group for probe in self.probes for group in probe.query_groups(names)]
        self.groups = tuple(dict.fromkeys(["all", *groups]))
        """Every query group that some probe needs; `all` first."""
        self._needs_query_sums = any(probe.needs_query_sums for probe in self.probes)
        self.cached = False
        """Whether calls bring only new rows, to be added to those before."""
        self.rows_before_rotary: dict[str, torch.Tensor] = {}
        """Queries and keys [B, H, tokens, D] of the layer that is computed now."""
        self.recalled: dict[tuple[int, str, int, str], torch.Tensor] = {}
        """By run, branch, layer and name: what a probe compares the next pass with."""
        # 2. Of the pass that runs now: who its rows are, and what probes keep between layers.
        self._views: list[View] = []
        self._weights = torch.zeros(0)
        self._reachable = torch.zeros(0)
        self._memory: dict[str, Any] = {}
        # 3. By run, branch and layer: sums and rows from earlier passes; weights and states.
        self._sums: dict[tuple[int, str, int], RowSums] = {}
        self._rows: dict[tuple[int, str, int], dict[str, torch.Tensor]] = {}
        self._grams: dict[int, torch.Tensor] = {}
        self._states: dict[tuple[int, int], torch.Tensor] = {}

    @contextmanager
    def record_pass(
        self,
        views: list[View],
        members: list[np.ndarray],
        reachable: list[np.ndarray],
        size: tuple[int, ...],
        editor: AttentionEditor | None = None,
    ) -> Iterator[None]:
        """Record one forward pass over `size` (rows of the batch, query rows), as edits make it.

        `members` are [group, position] bool of each view, `reachable` [position] bool: whose row
        may be committed now.
        """
        # 1. From canvas positions to rows of the pass.
        device = self.model.device
        self._views = views
        weights = torch.zeros(size[0], len(self.groups), size[1])
        rows = torch.zeros(size[0], size[1], dtype=torch.bool)
        for view, member, able in zip(views, members, reachable, strict=True):
            recent = view.query_positions
            weights[view.row, :, view.query_slice] = torch.from_numpy(member[:, recent]).float()
            if view.positions is not None and self.model.family.shift:
                able = np.append(able[1:], False) | (able & (np.arange(len(able)) == 0))
            rows[view.row, view.query_slice] = torch.from_numpy(able[recent])
        self._weights, self._reachable = weights.to(device), rows.to(device)
        # 2. The pass, with hooks for what attention calls do not carry.
        self._memory = {}
        with ExitStack() as stack:
            for hook in self._hooks():
                stack.callback(hook.remove)
            stack.enter_context(observe(self, editor))
            yield
        self.rows_before_rotary.clear()

    def is_active(self, step: int) -> bool:
        """Whether any probe needs to see this step; a cache shows each row once, so all then."""
        return self.cached or any(probe.at_step(step) for probe in self.probes)

    def wants(self, layer: int) -> bool:
        """Whether any probe needs the attention call of this layer."""
        step = self._views[0].step
        return any(self.cached or probe.reads(layer, step) for probe in self.probes)

    def on_attention(self, call: Call) -> None:
        """Reduce one attention call, and let every probe that reads it keep what it measures."""
        # 1. Who reads this call, and which statistics they request.
        step = self._views[0].step
        readers = [probe for probe in self.probes if probe.reads(call.layer, step)]
        for probe in (probe for probe in readers if probe.reads_keys):
            for view in self._views:
                probe.collect_keys(KeyReading(self, view, call.layer, call))
        if not self.cached and not any(probe.needs_map for probe in readers):
            return
        reading = CallReading(self, call, self._views, self._memory)
        wanted = StatRequest(
            weights=self._weights, before=self._views[0].before, top_rows=self._predictors()
        )
        if (positions := self._views[0].positions) is not None:
            wanted.own_keys = torch.tensor(positions, device=call.query.device)
        for probe in self.probes:
            if probe in readers or (self.cached and probe.adds_up):
                probe.request(wanted, reading)
        # 2. One pass over the map, then the sums of each sequence.
        reading.stats = reduce_attention(call, wanted)
        for view in self._views:
            now = sum_rows(
                call,
                reading.stats,
                view,
                self._weights[view.row],
                queries=self._needs_query_sums,
            )
            sums = self._add_to_cached(now, view, call.layer)
            reading.sequences.append(SequenceReading(self, view, call.layer, reading, sums))
        # 3. What each probe keeps.
        if any(probe.looks_at(call.layer, step) for probe in readers):
            for sequence in reading.sequences:
                sequence.put_peaks()
        for probe in readers:
            probe.observe(reading)

    def on_commit(self, run: int, positions: np.ndarray) -> None:
        """Write what was kept of the rows that predicted what was just committed."""
        # In a shifted family row p - 1 predicts position p; the first position has its own row.
        rows = np.maximum(positions - int(self.model.family.shift), 0)
        for key in [key for key in self._rows if key[0] == run]:
            _, branch, layer = key
            for name, kept in self._rows.pop(key).items():  # the next step has its own
                index = (layer, slice(None), positions)
                self.buffers[run].put(branch + name, index, kept[:, rows])

    def keep_for_commit(self, name: str, rows: torch.Tensor, view: View, layer: int) -> None:
        """Keep rows of this pass, [H, queries, n], until it is known which are committed."""
        # Rows that this pass did not compute (with a cache: all earlier ones) stay absent.
        missing = torch.nan if rows.is_floating_point() else -1
        whole = rows.new_full((rows.shape[0], view.length, rows.shape[2]), missing, device="cpu")
        whole[:, view.query_positions] = rows.cpu()
        self._rows.setdefault((view.run, view.branch, layer), {})[name] = whole

    def output_gram(self, layer: int) -> torch.Tensor:
        """[H, D, D] of the output projection: W^T W for each head's channels."""
        if layer not in self._grams:
            # Weights do not change during a run: one product for each layer.
            rows = output_rows(self.model.network, layer).float()
            per_head = rows.view(self.model.num_heads, -1, rows.shape[-1])
            self._grams[layer] = per_head @ per_head.transpose(1, 2)
        return self._grams[layer]

    def _predictors(self) -> torch.Tensor:
        """[B, Q] rows whose prediction may be committed: row p, or p - 1 in a shifted family."""
        partial = self._views[0].positions is not None  # then they were moved before
        if partial or not self.model.family.shift or self.model.family.kind == "arm":
            return self._reachable
        # Position p is predicted by row p - 1: each mark moves one row back.
        shifted = torch.roll(self._reachable, -1, dims=1)
        shifted[:, -1] = False
        first = torch.tensor([view.query_start for view in self._views], device=shifted.device)
        row = torch.tensor([view.row for view in self._views], device=shifted.device)
        shifted[row, first] |= self._reachable[row, first]  # a first token keeps its own row
        return shifted

    def _add_to_cached(self, now: RowSums, view: View, layer: int) -> RowSums:
        """The sums of this pass; with a cache, of all passes so far."""
        if not self.cached:
            return now
        key = (view.run, view.branch, layer)
        before = self._sums.get(key)
        self._sums[key] = now if before is None else before.plus(now)
        return self._sums[key]

    def _hooks(self) -> Iterator[Any]:
        """Hooks for residual streams and for queries and keys before rotary, where needed."""
        if readers := [probe for probe in self.probes if probe.reads_states]:
            yield from self._state_hooks(readers)
        if readers := [probe for probe in self.probes if probe.reads_experts]:
            yield from self._expert_hooks(readers)
        for probe in self.probes:
            if probe.reads_before_rotary:
                yield from self._rotary_hooks()

    def _state_hooks(self, readers: list[Probe]) -> Iterator[Any]:
        # The count of calls is the layer: one module may serve several layers.
        layers_done = [0]

        def on_layer(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            layer, layers_done[0] = layers_done[0], layers_done[0] + 1
            hidden = args[0] if args else kwargs["hidden_states"]
            for view in self._views:
                self._on_states(readers, layer, view, hidden[view.row, view.query_slice])

        for module in dict.fromkeys(layer_modules(self.model.network)):
            yield module.register_forward_pre_hook(on_layer, with_kwargs=True)

    def _on_states(
        self, readers: list[Probe], layer: int, view: View, states: torch.Tensor
    ) -> None:
        """Let probes read the residual states [queries, width] of one sequence before a layer."""
        every = states
        if self.cached and any(probe.needs_all_states for probe in readers):
            # Earlier rows never change under a causal mask: their states are kept.
            if (before := self._states.get((view.run, layer))) is not None:
                every = torch.cat([before, states])
            self._states[view.run, layer] = every
        reading = StateReading(self, view, layer, states, every)
        for probe in readers:
            if probe.looks_at(layer, view.step):
                probe.collect_states(reading)

    def _expert_hooks(self, readers: list[Probe]) -> Iterator[Any]:
        for layer, module in router_modules(self.model.network).items():

            def on_router(_: Any, __: Any, out: tuple[Any, ...], layer: int = layer) -> None:
                # [B * tokens, k] as routers give them: one row for each token of the batch.
                batch, tokens = self._weights.shape[0], self._weights.shape[2]
                chosen = out[2].view(batch, tokens, -1)
                for view in self._views:
                    rows = chosen[view.row, view.query_slice]
                    weights = self._weights[view.row, :, view.query_slice]
                    used = torch.nn.functional.one_hot(rows, self.model.num_experts).sum(dim=1)
                    counts = weights @ used.to(weights.dtype)
                    reading = ExpertReading(self, view, layer, rows, counts)
                    for probe in readers:
                        if probe.looks_at(layer, view.step):
                            probe.collect_experts(reading)

            yield module.register_forward_hook(on_router)

    def _rotary_hooks(self) -> Iterator[Any]:
        sites = sites_of(self.model.network)
        if sites.before_rotary is None:
            kind = self.model.network.config.model_type
            why = (
                "has no rotary positions" if not sites.has_rotary else "computes q, k and v in one"
            )
            raise SpecError(f"{kind} {why}: use qk_geometry(rotary='after')")
        # Projections give [B, tokens, heads * D]: split into heads.
        size = self.model.network.model.layers[0].self_attn.head_dim
        for module in layer_modules(self.model.network):
            for name, path in zip(("query", "key"), sites.before_rotary, strict=True):

                def keep(_: Any, __: Any, out: torch.Tensor, name: str = name) -> None:
                    whole = out.view(out.shape[0], out.shape[1], -1, size)
                    self.rows_before_rotary[name] = whole.transpose(1, 2).float()

                yield module.get_submodule(path).register_forward_hook(keep)


@dataclass
class CallReading:
    """One attention call as probes see it: all rows of the batch."""

    recorder: Recorder
    call: Call
    views: list[View]
    memory: dict[str, Any]
    """What probes keep from layer to layer of one forward pass."""
    stats: AttentionStats = field(init=False)
    """What was reduced from the map; not there yet while probes make their requests."""
    sequences: list[SequenceReading] = field(default_factory=list)

    @property
    def layer(self) -> int:
        return self.call.layer

    @property
    def step(self) -> int:
        return self.views[0].step

    @property
    def num_heads(self) -> int:
        return self.recorder.model.num_heads

    def region_columns(self) -> torch.Tensor:
        """[B, K, R] 1 where a key belongs to a region."""
        regions = self.recorder.regions
        batch, keys = self.call.query.shape[0], self.call.key.shape[2]
        count = len(regions[0].names)
        columns = torch.zeros(batch, keys, count, device=self.call.query.device)
        for view in self.views:
            of = regions[view.run].of[: view.length]
            # Positions of a region, moved by what stands before the canvas in this row.
            for region in range(count):
                keys_inside = torch.from_numpy(np.flatnonzero(of == region)) + view.key_start
                columns[view.row, keys_inside, region] = 1.0
        return columns

    def columns_at(self, positions: Sequence[int]) -> torch.Tensor:
        """[B, K] bool: the columns of some canvas positions."""
        batch, keys = self.call.query.shape[0], self.call.key.shape[2]
        columns = torch.zeros(batch, keys, dtype=torch.bool, device=self.call.query.device)
        for view in self.views:
            for position in positions:
                if position < view.length:  # autoregression has yet to write the others
                    columns[view.row, view.key_start + position] = True
        return columns


@dataclass
class _Reading:
    """One sequence at one layer of one forward pass, and the arrays of its trace."""

    recorder: Recorder
    view: View
    layer: int

    @property
    def new_rows(self) -> slice | np.ndarray:
        """Canvas positions whose rows this pass computed, as an index; with a cache some."""
        return self.view.query_positions

    @property
    def shape(self) -> RunShape:
        return self.recorder.buffers[self.view.run].shape

    @property
    def regions(self) -> Regions:
        return self.recorder.regions[self.view.run]

    def keeps(self, name: str) -> bool:
        """Whether the run keeps a field."""
        return self.view.branch + name in self.recorder.buffers[self.view.run].arrays

    def put_at(self, name: str, index: tuple[Any, ...], value: Any) -> None:
        """Keep a value of a field at a whole index, if the run keeps the field."""
        self.recorder.buffers[self.view.run].put(self.view.branch + name, index, value)


@dataclass
class StateReading(_Reading):
    """The residual stream of one sequence before one layer."""

    states: torch.Tensor
    """[queries, width] of the rows of this pass."""
    all_states: torch.Tensor
    """[L, width] of all rows so far, if some probe `needs_all_states`."""

    def put(self, name: str, value: Any, *index: Any) -> None:
        """Keep a value at [step, layer, *index]."""
        self.put_at(name, (self.view.step, self.layer, *index), value)

    def singular_values(self, states: torch.Tensor) -> torch.Tensor:
        """Singular values of [L, width] states, the largest first."""
        return torch.linalg.svdvals(states)


@dataclass
class KeyReading(_Reading):
    """Keys and values of one sequence in one attention call."""

    call: Call

    @property
    def key(self) -> torch.Tensor:
        """[key heads, L, D], rotary applied."""
        return self.call.key[self.view.row, :, self.view.key_slice].float()

    @property
    def value(self) -> torch.Tensor:
        """[key heads, L, D]; the first head of a group where an edit changed values."""
        value = self.call.value[self.view.row, :, self.view.key_slice].float()
        return value[:: value.shape[0] // self.call.key.shape[1]]

    @property
    def computed(self) -> torch.Tensor:
        """[L] bool: positions whose keys are of this pass, or would be the same in it."""
        if self.view.positions is None:
            return self.call.key.new_ones(self.view.length, dtype=torch.bool)
        computed = self.call.key.new_zeros(self.view.length, dtype=torch.bool)
        computed[list(self.view.positions)] = True
        return computed

    def recall(self, name: str, now: torch.Tensor) -> torch.Tensor | None:
        """What was given under this name at the layer's last call; `now` takes its place."""
        key = (self.view.run, self.view.branch, self.layer, name)
        then = self.recorder.recalled.get(key)
        self.recorder.recalled[key] = now.clone()
        return then

    def put(self, name: str, value: torch.Tensor, count: int) -> None:
        """Keep [key heads, count] of the first positions at [step, layer]."""
        index = (self.view.step, self.layer, slice(None), slice(0, count))
        self.put_at(name, index, value)


@dataclass
class ExpertReading(_Reading):
    """The experts that one sequence chose at one layer."""

    chosen: torch.Tensor
    """[queries, k] experts of each row of this pass."""
    counts: torch.Tensor
    """[group, expert] rows of each group that chose an expert."""

    @property
    def groups(self) -> tuple[str, ...]:
        """Names along the group axis of `counts`."""
        return self.recorder.groups

    def put(self, name: str, value: Any, *index: Any) -> None:
        """Keep a value at [step, layer, *index]."""
        self.put_at(name, (self.view.step, self.layer, *index), value)


@dataclass
class SequenceReading(_Reading):
    """One sequence in one attention call: tensors, statistics, and where to keep numbers."""

    call_reading: CallReading
    sums: RowSums
    """Sums over its query rows, with a cache over those of earlier steps too."""

    @property
    def call(self) -> Call:
        return self.call_reading.call

    @property
    def stats(self) -> AttentionStats:
        """Statistics of all rows of the batch; `view.row` is this sequence's."""
        return self.call_reading.stats

    @property
    def groups(self) -> tuple[str, ...]:
        """Names along the group axis of `sums`."""
        return self.recorder.groups

    @property
    def keys(self) -> slice:
        """Canvas positions that are keys: all that exist."""
        return slice(0, self.view.length)

    @property
    def query(self) -> torch.Tensor:
        """[H, Q, D] of the rows of this pass."""
        return self.call.query[self.view.row, :, self.view.query_slice]

    @property
    def key(self) -> torch.Tensor:
        """[key heads, L, D]."""
        return self.call.key[self.view.row, :, self.view.key_slice]

    @property
    def value(self) -> torch.Tensor:
        """[key heads, or heads where an edit changed values, L, D]."""
        return self.call.value[self.view.row, :, self.view.key_slice]

    @property
    def added_values(self) -> torch.Tensor:
        """[key heads, n, D] values of the keys that additions put before the canvas."""
        return self.call.value[self.view.row, :, : self.call.num_extra_keys]

    @cached_property
    def live_rows(self) -> torch.Tensor:
        """[] rows over which `sums` were added up; NaN instead of none."""
        return self.sums.rows.where(self.sums.rows > 0, torch.nan)

    @cached_property
    def peaks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """([H, 8] the keys that receive most, what they receive)."""
        return self.sums.find_peaks()

    def put(self, name: str, value: Any, *index: Any) -> None:
        """Keep a value of every head at [step, layer, head, *index]."""
        self.put_at(name, (self.view.step, self.layer, slice(None), *index), value)

    def put_peaks(self) -> None:
        """Keep the peak keys, if the run has the field."""
        if self.keeps("peak_key"):
            keys, mass = self.peaks
            self.put("peak_key", keys)
            self.put("peak_received", mass)

    @cached_property
    def _peak_index(self) -> tuple[torch.Tensor, torch.Tensor]:
        """([H, 8] the peak keys, 0 where there is none; [H, 8] bool whether there is one)."""
        keys = self.peaks[0]
        return keys.clamp(min=0), keys >= 0

    @cached_property
    def key_norm(self) -> torch.Tensor:
        """[H, L] norm of every key, for the heads that it serves."""
        norm = self.key.float().norm(dim=-1)
        repeats = self.query.shape[0] // norm.shape[0]
        return norm if repeats == 1 else norm.repeat_interleave(repeats, dim=0)

    def put_summary(self, name: str, values: torch.Tensor) -> None:
        """Keep [H, L] values as a mean over keys, at the peak keys, and at every key."""
        self.put_summaries({name: values})

    def put_summaries(self, measured: Mapping[str, torch.Tensor]) -> None:
        """Keep [H, L] values by name: their mean over keys, at the peak keys, and at every key."""
        # All names at once: a call for each would be most of what a small model's probes cost.
        values = torch.stack(list(measured.values()))
        index, exists = self._peak_index
        # A peak that does not exist was read at 0 and is made NaN.
        at_peaks = values.gather(-1, index.expand(len(values), -1, -1)).where(exists, torch.nan)
        means = values.mean(dim=-1)
        for number, name in enumerate(measured):
            self.put(name, means[number])
            self.put(f"peak_{name}", at_peaks[number])
            if self.keeps(f"each_{name}"):
                self.put(f"each_{name}", values[number], self.keys)

    def keep_for_commit(self, name: str, rows: torch.Tensor) -> None:
        """Keep rows [H, Q, n] of those positions that this step turns out to commit."""
        self.recorder.keep_for_commit(name, rows, self.view, self.layer)

    def region_members(self) -> torch.Tensor:
        """[L, R] bool: which region each position belongs to."""
        of = torch.from_numpy(self.regions.of[: self.view.length].astype(np.int64))
        members = [of == region for region in range(len(self.regions.names))]
        return torch.stack(members, dim=1).to(self.call.query.device)

    def before_rotary(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(queries, keys) before rotary positions, of a probe that `reads_before_rotary`."""
        rows, view = self.recorder.rows_before_rotary, self.view
        query, key = rows["query"][view.row], rows["key"][view.row]
        return query[:, view.query_slice], key[:, view.token_slice]

    def contribution_norm(self, value: torch.Tensor) -> torch.Tensor:
        """[H, L] norm of values [H, L, D] carried through the output projection W."""
        gram = self.recorder.output_gram(self.layer)  # |W v|^2 = v (W^T W) v, and W^T W is small
        squared = torch.einsum("hld,hde,hle->hl", value, gram, value)
        return squared.clamp(min=0).sqrt()
