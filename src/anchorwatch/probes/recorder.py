"""Probes at work: sees every attention call of a run and keeps what was asked for, nothing more.

It lives for one group of jobs. Before each forward pass it is told which rows of the batch belong
to which sequence; hooks for what attention calls do not carry exist only during that pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from anchorwatch.errors import SpecError
from anchorwatch.models.attention import AttentionEditor, Call, observe
from anchorwatch.models.families import layer_modules, output_rows, sites_of
from anchorwatch.models.model import Model
from anchorwatch.probes import accumulate as measures
from anchorwatch.probes import spec as kinds
from anchorwatch.probes.accumulate import RowSums, TraceBuffer, View
from anchorwatch.probes.reduce import AttentionStats, StatRequest, reduce_attention
from anchorwatch.probes.spec import Probe
from anchorwatch.trace.regions import Regions


class Recorder:
    """All probes of a group of jobs."""

    def __init__(
        self,
        model: Model,
        probes: Sequence[Probe],
        records: Sequence[TraceBuffer],
        regions: Sequence[Regions],
    ) -> None:
        self.model, self.probes = model, tuple(probes)
        self.records, self.regions = list(records), list(regions)
        self.groups = _groups(self.probes, regions[0].names if regions else ())
        self._views: list[View] = []
        self._weights = torch.zeros(0)
        self._open = torch.zeros(0)
        self._mixed: torch.Tensor | None = None
        self._before: dict[str, torch.Tensor] = {}
        self._tallies: dict[tuple[int, str, int], RowSums] = {}
        self._rows: dict[tuple[int, str, int], dict[str, torch.Tensor]] = {}
        self._grams: dict[int, torch.Tensor] = {}
        self._states: dict[tuple[int, int], torch.Tensor] = {}
        self.cached = False
        """Whether calls bring only new rows, to be added to those before."""

    @contextmanager
    def over(
        self,
        views: list[View],
        members: list[np.ndarray],
        opens: list[np.ndarray],
        size: tuple[int, ...],
        changer: AttentionEditor | None = None,
    ) -> Iterator[None]:
        """Watch one forward pass over `size` (rows of the batch, query rows), as edits make it.

        `members` are [group, position] bool of each view, `opens` [position] bool: whose row may
        be committed now.
        """
        device = self.model.device
        self._views = views
        weights = torch.zeros(size[0], len(self.groups), size[1])
        opened = torch.zeros(size[0], size[1], dtype=torch.bool)
        for view, member, row in zip(views, members, opens, strict=True):
            recent = slice(view.length - view.queries, view.length)
            weights[view.row, :, view.query_slice] = torch.from_numpy(member[:, recent]).float()
            opened[view.row, view.query_slice] = torch.from_numpy(row[recent])
        self._weights, self._open = weights.to(device), opened.to(device)
        self._mixed = None
        with ExitStack() as stack:
            for hook in self._hooks():
                stack.callback(hook.remove)
            stack.enter_context(observe(self, changer))
            yield
        self._before.clear()

    def is_active(self, step: int) -> bool:
        """Whether any probe needs to see this step; a cache shows each row once, so all then."""
        return self.cached or any(probe.at_step(step) for probe in self.probes)

    def wants(self, layer: int) -> bool:
        step = self._views[0].step
        return any(self.cached or probe.reads(layer, step) for probe in self.probes)

    def on_attention(self, call: Call) -> None:
        step = self._views[0].step
        reading = [p for p in self.probes if p.reads(call.layer, step)]
        active = [p for p in reading if p.looks_at(call.layer, step)]
        if not self.cached and not any(probe.needs_map for probe in reading):
            return
        found = reduce_attention(call, self._want(call, reading))
        for view in self._views:
            b = view.row
            now = measures.tally(call, found, view, b, self._weights[b])
            total = self._total(now, view, call.layer)
            if active:
                self._keep(call, found, active, view, b, total)
            if found.spans is not None:
                rows = found.spans[b, :, view.query_slice]
                self._hold("commit_region_mass", rows, view, call.layer)
        if found.mixed is not None and self._mixed is not None:
            first = self._mixed.shape[1] - found.mixed.shape[1]  # added keys keep what they are
            self._mixed[:, first:] = (self._mixed[:, first:] + found.mixed) / 2
            if any(isinstance(probe, kinds.region_rollout) for probe in active):
                self._keep_rollout(call.layer)

    def committed(self, job: int, positions: np.ndarray) -> None:
        """Keep what was held of the rows that predicted what was just committed."""
        rows = np.maximum(positions - int(self.model.family.shift), 0)
        for place in [place for place in self._rows if place[0] == job]:
            _, branch, layer = place
            for name, held in self._rows.pop(place).items():  # the next step has its own
                index = (layer, slice(None), positions)
                self.records[job].put(branch + name, index, held[:, rows])

    def _want(self, call: Call, active: list[Probe]) -> StatRequest:
        want = StatRequest(weights=self._weights, before=self._views[0].before)
        for probe in self.probes if self.cached else active:
            want.entropy |= isinstance(probe, kinds.entropy)
            want.diagonal |= isinstance(probe, kinds.diagonal)
            want.distance |= isinstance(probe, kinds.distance)
        tops = [probe for probe in active if isinstance(probe, kinds.top_keys)]
        want.top = max((probe.k for probe in tops), default=0)
        if not any(probe.every_row for probe in tops):
            want.top_rows = self._predictors()
        for probe in active:
            if isinstance(probe, kinds.commit_regions):
                want.spans = measures.onto(call, self._views, self.regions)
            if isinstance(probe, kinds.pattern):
                want.maps = probe.heads or tuple(range(self.model.num_heads))
            if isinstance(probe, kinds.region_rollout):
                want.mixed, want.hidden = self._start_rollout(call, probe)
        return want

    def _predictors(self) -> torch.Tensor:
        """[B, Q] rows whose prediction may be committed: row p, or p-1 in a shifted family."""
        if not self.model.family.shift or self.model.family.kind == "arm":
            return self._open
        moved = torch.roll(self._open, -1, dims=1)
        moved[:, -1] = False
        first = torch.tensor([view.query_start for view in self._views], device=moved.device)
        at = torch.tensor([view.row for view in self._views], device=moved.device)
        moved[at, first] |= self._open[at, first]  # a first token keeps its own row
        return moved

    def _total(self, now: RowSums, view: View, layer: int) -> RowSums:
        if not self.cached:
            return now
        place = (view.job, view.branch, layer)
        before = self._tallies.get(place)
        self._tallies[place] = now if before is None else before.plus(now)
        return self._tallies[place]

    def _keep(
        self,
        call: Call,
        found: AttentionStats,
        active: list[Probe],
        view: View,
        b: int,
        total: RowSums,
    ) -> None:
        record, at = self.records[view.job], (view.step, call.layer)
        everyone = slice(None)

        def put(name: str, value: Any, *more: Any) -> None:
            record.put(view.branch + name, (*at, everyone, *more), value)

        rows, keys = slice(view.length - view.queries, view.length), slice(0, view.length)
        top, mass = measures.peaks(total)
        put("peak_key", top)
        put("peak_received", mass)
        live_rows = total.rows.where(total.rows > 0, torch.nan)
        for probe in active:
            if isinstance(probe, kinds.received):
                chosen = [self.groups.index(group) for group in probe.groups]
                put("received", measures.shares(total)[:, chosen], everyone, keys)
                sink = total.sink / total.counts.where(total.counts > 0, torch.nan)
                put("sink_received", sink[:, chosen])
                record.put(f"{view.branch}queries", (view.step,), total.counts[chosen])
                dead = view.queries - int(found.live[b, view.query_slice].sum())
                record.put(f"{view.branch}hidden_rows", at, dead)
            elif isinstance(probe, kinds.entropy):
                put("entropy", total.entropy / live_rows)
                put("row_entropy", found.entropy[b][:, view.query_slice], rows)  # type: ignore[index]
            elif isinstance(probe, kinds.diagonal):
                put("diagonal", total.diagonal / live_rows)
                put("row_diagonal", found.diagonal[b][:, view.query_slice], rows)  # type: ignore[index]
            elif isinstance(probe, kinds.distance):
                put("distance_mass", total.distance / live_rows, keys)
            elif isinstance(probe, kinds.top_keys):
                self._keep_top(probe, call.layer, found, view, b, put)
            elif isinstance(probe, kinds.region_flow):
                put("region_flow", self._flow(total, view))
            elif isinstance(probe, kinds.qk_geometry):
                self._keep_geometry(probe, call, view, b, total, top, put)
            elif isinstance(probe, kinds.norms):
                self._keep_norms(probe, call, view, b, top, put)
            elif isinstance(probe, kinds.pattern):
                self._keep_maps(probe, call.layer, found, view, b)

    def _keep_top(
        self, probe: kinds.top_keys, layer: int, found: AttentionStats, view: View, b: int, put: Any
    ) -> None:
        assert found.top_key is not None and found.top_mass is not None
        columns = found.top_key[b, :, view.query_slice, : probe.k]
        keys = columns - view.key_start
        keys = torch.where(keys < 0, -2, keys).where(columns >= 0, -1)  # what parts add
        mass = found.top_mass[b, :, view.query_slice, : probe.k]
        if probe.every_row:
            place = slice(view.length - view.queries, view.length)
            put("row_top_key", keys, place)
            put("row_top_mass", mass, place)
            return
        self._hold("commit_top_key", keys, view, layer)
        self._hold("commit_top_mass", mass, view, layer)

    def _hold(self, name: str, rows: torch.Tensor, view: View, layer: int) -> None:
        """Rows of this pass, [H, queries, n], until it is known which of them are committed."""
        missing = torch.nan if rows.is_floating_point() else -1
        whole = rows.new_full((rows.shape[0], view.length, rows.shape[2]), missing, device="cpu")
        whole[:, view.length - view.queries :] = rows.cpu()
        self._rows.setdefault((view.job, view.branch, layer), {})[name] = whole

    def _keep_geometry(
        self,
        probe: kinds.qk_geometry,
        call: Call,
        view: View,
        b: int,
        total: RowSums,
        top: torch.Tensor,
        put: Any,
    ) -> None:
        suffix, key = "", call.key[b, :, view.key_slice]
        if probe.rotary == "before":
            suffix = "_before_rotary"
            query, key = self._before["query"][b], self._before["key"][b]
            query, key = query[:, view.query_slice], key[:, view.token_slice]
            total = RowSums(**vars(total))
            length = query.norm(dim=-1)
            total.query, total.query_norm = query.sum(dim=1), length.sum(dim=1)
            total.unit_query = (query / length.clamp(min=1e-30)[..., None]).sum(dim=1)
        put(f"query_norm{suffix}", total.query_norm / total.rows.where(total.rows > 0, torch.nan))
        for name, values in measures.geometry(total, key, call.scale).items():
            _put_summary(f"{name}{suffix}", values, view, top, put)

    def _keep_norms(
        self, probe: kinds.norms, call: Call, view: View, b: int, top: torch.Tensor, put: Any
    ) -> None:
        keys = view.key_slice
        gram = self._gram(call.layer) if probe.contribution else None
        value, key = call.value[b, :, keys], call.key[b, :, keys]
        for name, values in measures.value_norms(value, key, call.query.shape[1], gram).items():
            _put_summary(name, values, view, top, put)

    def _keep_maps(
        self, probe: kinds.pattern, layer: int, found: AttentionStats, view: View, b: int
    ) -> None:
        assert found.maps is not None
        record = self.records[view.job]
        picks = {pick: i for i, pick in enumerate(probe.picks(record.shape))}
        heads = probe.heads or tuple(range(self.model.num_heads))
        rows = slice(view.length - view.queries, view.length)
        for place, head in enumerate(heads):
            pick = picks.get((view.step, layer, head))
            if pick is not None:
                kept = found.maps[b, place, view.query_slice, view.key_slice]
                record.put(f"{view.branch}pattern", (pick, rows, slice(0, view.length)), kept)
                of = {"step": view.step, "layer": layer, "head": head}
                for name, value in of.items():
                    record.put(f"{view.branch}pick_{name}", (pick,), value)

    def _flow(self, total: RowSums, view: View) -> torch.Tensor:
        """[H, region, region] from the tallies of the region groups."""
        names = self.regions[view.job].names
        of = torch.from_numpy(self.regions[view.job].of[: view.length].astype(np.int64))
        onto = (
            torch.stack([of == r for r in range(len(names))], dim=1).float().to(total.sums.device)
        )
        chosen = [self.groups.index(name) for name in names]
        return measures.shares(total)[:, chosen] @ onto

    def _start_rollout(
        self, call: Call, probe: kinds.region_rollout
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        batch, keys = call.query.shape[0], call.key.shape[2]
        if self._mixed is None:
            self._mixed = measures.onto(call, self._views, self.regions)
        hidden = torch.zeros(batch, keys, dtype=torch.bool, device=call.query.device)
        for view in self._views:
            for position in probe.hidden:
                if position < view.length:  # autoregression has yet to write the others
                    hidden[view.row, view.key_start + position] = True
        return self._mixed, hidden

    def _keep_rollout(self, layer: int) -> None:
        assert self._mixed is not None
        for view in self._views:
            of = torch.from_numpy(self.regions[view.job].of[: view.length].astype(np.int64))
            states = self._mixed[view.row, view.key_slice]
            for region in range(len(self.regions[view.job].names)):
                inside = (of == region).to(states.device)
                mean = states[inside].mean(dim=0) if bool(inside.any()) else states[0] * torch.nan
                place = (view.step, layer, region)
                self.records[view.job].put(f"{view.branch}region_rollout", place, mean)

    def _gram(self, layer: int) -> torch.Tensor:
        """[H, D, D] of the output projection: W^T W for each head's channels."""
        if layer not in self._grams:
            rows = output_rows(self.model.network, layer).float()
            per_head = rows.view(self.model.num_heads, -1, rows.shape[-1])
            self._grams[layer] = per_head @ per_head.transpose(1, 2)
        return self._grams[layer]

    def _hooks(self) -> Iterator[Any]:
        """Hooks for residual streams and for queries and keys before rotary, if anyone asks."""
        states = [
            probe
            for probe in self.probes
            if isinstance(probe, kinds.massive | kinds.mixing) or getattr(probe, "residual", False)
        ]
        if states:
            yield from self._residual_hooks(states)
        for probe in self.probes:
            if isinstance(probe, kinds.qk_geometry) and probe.rotary == "before":
                yield from self._rotary_hooks()

    def _residual_hooks(self, states: list[Probe]) -> Iterator[Any]:
        seen = [0]

        def look(_: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
            layer, seen[0] = seen[0], seen[0] + 1
            hidden = args[0] if args else given["hidden_states"]
            for view in self._views:
                self._keep_states(states, layer, view, hidden[view.row, view.query_slice])

        for module in dict.fromkeys(layer_modules(self.model.network)):
            yield module.register_forward_pre_hook(look, with_kwargs=True)

    def _keep_states(self, states: list[Probe], layer: int, view: View, hidden: Any) -> None:
        record, at, whole = self.records[view.job], (view.step, layer), hidden
        if self.cached and not all(isinstance(probe, kinds.norms) for probe in states):
            if (before := self._states.get((view.job, layer))) is not None:
                whole = torch.cat([before, hidden])
            self._states[view.job, layer] = whole
        for probe in states:
            if not probe.looks_at(layer, view.step):
                continue
            if isinstance(probe, kinds.norms):
                rows = slice(view.length - view.queries, view.length)
                record.put(f"{view.branch}residual_norm", (*at, rows), hidden.float().norm(dim=-1))
                continue
            massive = isinstance(probe, kinds.massive)
            found = measures.largest(whole, probe.k) if massive else measures.likeness(whole)  # type: ignore[attr-defined]
            for name, value in found.items():
                record.put(view.branch + name, at, value)

    def _rotary_hooks(self) -> Iterator[Any]:
        sites = sites_of(self.model.network)
        if sites.before_rotary is None:
            kind = self.model.network.config.model_type
            why = (
                "has no rotary positions" if not sites.has_rotary else "computes q, k and v in one"
            )
            raise SpecError(f"{kind} {why}: use qk_geometry(rotary='after')")
        size = self.model.network.model.layers[0].self_attn.head_dim
        for module in layer_modules(self.model.network):
            for name, path in zip(("query", "key"), sites.before_rotary, strict=True):

                def keep(_: Any, __: Any, out: torch.Tensor, name: str = name) -> None:
                    whole = out.view(out.shape[0], out.shape[1], -1, size)
                    self._before[name] = whole.transpose(1, 2).float()

                yield module.get_submodule(path).register_forward_hook(keep)


def _put_summary(name: str, values: torch.Tensor, view: View, top: torch.Tensor, put: Any) -> None:
    put(name, values.mean(dim=-1))
    put(f"peak_{name}", measures.at_peaks(values, top))
    put(f"each_{name}", values, slice(0, view.length))


def _groups(probes: Sequence[Probe], regions: tuple[str, ...]) -> tuple[str, ...]:
    """Every query group that some probe asks for; `all` first."""
    asked = [g for probe in probes if isinstance(probe, kinds.received) for g in probe.groups]
    flows = any(isinstance(probe, kinds.region_flow) for probe in probes)
    return tuple(dict.fromkeys(["all", *asked, *(regions if flows else ())]))
