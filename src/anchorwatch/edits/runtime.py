"""Edits during forward passes: what each attention call loses, and what edits remember of it.

An editor lives for one group of runs. Before each forward pass it is given which rows of the batch
belong to which run. Both branches of guidance lose the same keys: those the prompted one decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from anchorwatch.edits.ablation import AttentionPatch, PatchedCall, apply_patch, unpatched_call
from anchorwatch.edits.spec import (
    Addition,
    Candidates,
    Detecting,
    Edit,
    Hiding,
    Oracle,
    ReceivedSums,
    additions_among,
    mean_shares,
    slots,
)
from anchorwatch.edits.verify import (
    EditCheck,
    verify_edit,
    verify_gates,
    verify_registers,
    verify_zero_value,
)
from anchorwatch.errors import ModelError
from anchorwatch.metrics.token_classes import token_class
from anchorwatch.models.additions import PassAdditions
from anchorwatch.models.attention import Call, visible
from anchorwatch.models.model import Model
from anchorwatch.models.sites import output_modules
from anchorwatch.probes.accumulate import TraceBuffer, View
from anchorwatch.probes.reduce import StatRequest, reduce_attention
from anchorwatch.trace.schema import MISSING

ALL_ROWS, LAST_ROW = range(2)


@dataclass(frozen=True)
class StepContext:
    """What edits need to know of one run before a pass."""

    progress: float
    members: Mapping[str, np.ndarray]
    """[position] bool of each group that some edit calls eligible."""
    classes: np.ndarray
    """[position] kinds of token."""
    seed: int
    known_keys: np.ndarray | None
    """[layer, head, rank] what a trace says was hidden; None where it is to be decided."""
    all_known: bool = False
    """Whether that is known of all steps to come."""


def active_additions(
    model: Model,
    edits: Sequence[Edit],
    clocks: Sequence[tuple[int, float]],
    ends: Sequence[int],
) -> PassAdditions | None:
    """Additions of a pass, each in the rows whose (step, progress) is one of its times."""
    parts: list[Addition] = []
    rows: list[torch.Tensor | None] = []
    for part in additions_among(edits):
        # None is every row: the usual case needs no selection by row.
        active = torch.tensor([part.acts_at(*clock) for clock in clocks])
        if bool(active.any()):
            parts.append(part)
            rows.append(None if bool(active.all()) else active.to(model.device))
    return model.active_additions(parts, ends, rows)


class Editor:
    """All edits of attention of a group of runs."""

    def __init__(
        self,
        model: Model,
        edits: Sequence[Edit],
        buffers: Sequence[TraceBuffer],
        verified: set[tuple[int | Addition, int]] | None = None,
    ) -> None:
        """`verified` holds which edits an editor before this one verified, and is added to."""
        # 1. What is edited, and of whom.
        self.model, self.edits, self.buffers = model, tuple(edits), list(buffers)
        groups = [group for edit in self.edits for group in edit.query_groups]
        self.groups = tuple({"all", *groups})
        self.cached = False
        """Whether calls bring only new rows."""
        self.slots = slots(self.edits)
        """Where on the last axis of `hidden_keys` each edit writes."""
        self.contexts: Mapping[int, StepContext] = {}
        """What is known of each run before the pass."""
        # 2. Of the pass that runs now, and of the step before.
        self._views: list[View] = []
        self._received: dict[tuple[int, int, str, int], ReceivedSums] = {}
        self._received_before: dict[tuple[int, int, str, int], ReceivedSums] = {}
        """(run, layer, which map, which rows): what keys received, now and before the pass."""
        self._keys: dict[tuple[int, int, int], np.ndarray] = {}
        """(run, layer, edit): what was decided in this pass."""
        # 3. By layer: outputs of earlier rows, and what has been verified.
        self._outputs: dict[int, torch.Tensor] = {}
        self._layers_seen: set[int] = set()
        self._verified: set[tuple[int | Addition, int]] = set() if verified is None else verified
        """Edits by their number, additions by themselves, each at a layer."""
        self._additions: PassAdditions | None = None
        self._patch: AttentionPatch | None = None
        self._patched: PatchedCall | None = None
        self._classes: dict[int, int] = {}

    @contextmanager
    def edit_pass(
        self,
        views: list[View],
        contexts: Mapping[int, StepContext],
        additions: PassAdditions | None = None,
    ) -> Iterator[None]:
        """Edit one forward pass, in which the network has these additions."""
        self._views, self.contexts, self._additions = views, contexts, additions
        # Edits that remember decide by the step before, while this pass is read for the next one.
        self._received_before = dict(self._received)
        self._keys.clear()
        self._layers_seen.clear()
        with self._verifying_gates():
            yield
        # A kernel that bypasses the registered attention function would leave the run unedited.
        wanted = {layer for layer in range(self.model.num_layers) if self.wants(layer)}
        if missing := sorted(wanted - self._layers_seen):
            raise ModelError(
                f"layer {missing[0]} of {self.model.source} never came to anchorwatch's attention, "
                "so nothing can be edited there: aw.load the model afresh"
            )

    def token_classes(self, canvas: np.ndarray) -> np.ndarray:
        """[position] kind of token, where an edit needs kinds; else all alike."""
        if not any(edit.needs_token_classes for edit in self.edits):
            return np.zeros(len(canvas), dtype=np.int8)
        special = self.model.specials
        known = {
            "mask_id": special.mask_id,
            "end_ids": list(special.end_ids),
            "special_ids": sorted(special.special_ids),
        }
        for token in {int(number) for number in canvas} - self._classes.keys():
            text = "" if token == MISSING else self.model.text_of(token)
            self._classes[token] = token_class(token, text, known)
        return np.array([self._classes[int(token)] for token in canvas])

    def wants(self, layer: int) -> bool:
        """Whether any edit or addition needs the attention call of this layer."""
        heads = self.model.num_heads
        if any(part.heads_at(layer, heads) for part in self._parts_to_verify(layer)):
            return True
        for edit in self.edits:
            if isinstance(edit, Addition) or not edit.heads_at(layer, heads):
                continue
            if edit.remembers or (self.cached and edit.needs_earlier_rows):
                return True
            if any(self._acts(edit, view) for view in self._views):
                return True
        return False

    def attend(self, call: Call) -> tuple[torch.Tensor, Call] | None:
        """The call's output and the call as edits make it; None where they leave it alone."""
        # 1. What all edits that act now do to this call, together.
        self._layers_seen.add(call.layer)
        self._patch = patch = self._build_patch(call)
        # 2. Outputs of earlier rows, for heads that are replaced by a mean over all rows.
        before = self._outputs.get(call.layer)
        self._patched = patched = None if patch.is_empty else apply_patch(call, patch, before)
        if patched is not None:
            self._record_rescued(call.layer, patched)
        # 3. With a cache later calls bring new rows only: keep these for the mean to come.
        if self.cached and any(edit.needs_earlier_rows for edit in self.edits):
            rows = patched or apply_patch(call, patch, before)
            self._outputs[call.layer] = rows.before_heads
        return None if patched is None else (patched.out, patched.call)

    def verify_call(self, plain: Call, call: Call, out: torch.Tensor) -> None:
        """Verify what is new, and keep what keys receive here for edits that decide later."""
        # A replay of a finished trace knows every hidden key: nothing is read for later steps.
        self._verify(plain, call, out)
        contexts = self.contexts.values()
        if all(context.all_known and context.known_keys is not None for context in contexts):
            return  # nothing is left to decide
        # Where nothing was edited the kernel's own sums serve for the map without edits too.
        unedited = call.bias is None and call.dropped is None and call.query is plain.query
        shadow = call if unedited else plain
        for kind in self._maps_remembered(call.layer):
            self._read_received(call if kind == "edited" else shadow, kind)

    def _build_patch(self, call: Call, without: int | None = None) -> AttentionPatch:
        """What all edits do to a call, or all but one."""
        # Rows of the batch are runs: each is patched by the edits that act at its own step.
        patch = AttentionPatch.empty(call)
        for index, edit in enumerate(self.edits):
            heads = edit.heads_at(call.layer, self.model.num_heads)
            for view in self._views:
                if heads and index != without and self._acts(edit, view):
                    edit.fill_patch(patch, EditedRow(self, index, call, view, heads))
        return patch

    def _parts_to_verify(self, layer: int) -> list[Addition]:
        """Additions of this pass with keys or tokens that are not verified here yet."""
        active = () if self._additions is None else self._additions.on
        parts = [addition.fit.part for addition in active]
        return [part for part in parts if part.columns and (part, layer) not in self._verified]

    def _verify(self, plain: Call, call: Call, out: torch.Tensor) -> None:
        """Verify each edit and addition that is new at this layer."""
        patch = self._patch
        assert patch is not None
        patched = self._patched or unpatched_call(call, out)
        check = EditCheck(plain, patch, patched, self._views)
        for index, edit in enumerate(self.edits if self._patched is not None else ()):
            heads = edit.heads_at(plain.layer, self.model.num_heads)
            acts = any(self._acts(edit, view) for view in self._views)
            done = (index, plain.layer) in self._verified
            if isinstance(edit, Addition) or done or not heads or not acts:
                continue
            # Verified once at each layer, where leaving the edit out would have made a difference.
            if verify_edit(check, edit, heads, plain, self._build_patch(plain, without=index)):
                self._verified.add((index, plain.layer))
        self._verify_parts(check)

    def _verify_parts(self, check: EditCheck) -> None:
        plain = check.plain
        new, additions = self._parts_to_verify(plain.layer), self._additions
        if additions is None or not new:
            return
        for addition, columns in zip(additions.on, additions.slices(), strict=True):
            part = addition.fit.part
            heads = part.heads_at(plain.layer, self.model.num_heads)
            if part not in new or not heads:
                continue
            if part.is_query:
                differs = verify_registers(check, addition)
            else:
                assert plain.extra_logits is not None
                verify_zero_value(check, part, columns)
                # Without the addition: its columns get the logit -inf.
                fewer = plain.extra_logits.clone()
                fewer[..., columns] = -torch.inf
                without = replace(plain, extra_logits=fewer)
                differs = verify_edit(check, part, heads, without, check.patch)
            if differs:
                self._verified.add((part, plain.layer))

    @contextmanager
    def _verifying_gates(self) -> Iterator[None]:
        """Compare what output projections read with what gates should leave, once, everywhere."""
        additions = self._additions
        gates = () if additions is None else additions.gates
        new = [gate.fit.part for gate in gates if (gate.fit.part, 0) not in self._verified]
        if additions is None or not new:
            yield
            return
        layers, views = [0], self._views

        def on_projection(_: object, args: tuple[torch.Tensor, ...]) -> None:
            verify_gates(additions, layers[0], args[0], views)
            layers[0] += 1

        modules = dict.fromkeys(output_modules(self.model.network))
        hooks = [module.register_forward_pre_hook(on_projection) for module in modules]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        every = range(self.model.num_layers)
        self._verified |= {(part, layer) for part in new for layer in every}

    def _acts(self, edit: Edit, view: View) -> bool:
        return edit.acts_at(view.step, self.contexts[view.run].progress)

    def _maps_remembered(self, layer: int) -> set[str]:
        """Maps that edits of this layer will read at the next step: shadow, edited, or both."""
        kinds = set()
        for edit in self.edits:
            acts_here = edit.heads_at(layer, self.model.num_heads)
            if acts_here and isinstance(edit, Detecting) and edit.remembers:
                kinds.add(edit.detect.removeprefix("previous_"))
        return kinds

    def hidden_keys(self, row: EditedRow, edit: Hiding) -> np.ndarray:
        """[head, rank] positions that an edit hides at a layer; every branch has the same."""
        view, layer, slot = row.view, row.call.layer, self.slots[row.index]
        key = (view.run, layer, row.index)
        if key not in self._keys:
            keys = np.full((self.model.num_heads, edit.ranks), MISSING, dtype=np.int32)
            # A replay hides what the trace says; it does not look for keys again.
            known = self.contexts[view.run].known_keys
            if known is not None:
                keys[:] = known[layer, :, slot]
            else:
                keys[list(row.heads)] = edit.select_keys(row)
            self._keys[key] = keys
        keys = self._keys[key]
        index = (view.step, layer, slice(None), slot)
        self.buffers[view.run].put("hidden_keys", index, keys)
        return keys

    def received_by(self, edit: Detecting, row: EditedRow) -> tuple[list[ReceivedSums], list[int]]:
        """What the edit decides by, of this layer or of all its layers, and those layers."""
        view, layers = row.view, [row.call.layer]
        if edit.scope == "model":
            every = range(self.model.num_layers)
            layers = [layer for layer in every if edit.heads_at(layer, self.model.num_heads)]
        if isinstance(edit.unedited, Oracle):
            assert edit.unedited.shares is not None
            # An oracle: shares of the unedited trace at this step, as if one row had been read.
            shares = edit.unedited.shares[view.step, :, :, : view.length]
            ones = np.ones(shares.shape[-1])
            return [
                ReceivedSums(view.step, np.nan_to_num(shares[layer]), 1, ones) for layer in layers
            ], layers
        same = edit.detect == "same_shadow"
        if same and not self._is_read(row.call.layer, view, "same"):
            self._read_received(row.call, "same")
        received = self._received if same else self._received_before
        kind = "same" if same else edit.detect.removeprefix("previous_")
        when = view.step if same else view.step - 1
        rows = LAST_ROW if edit.last_row else ALL_ROWS
        by_layer = [received.get((view.run, layer, kind, rows)) for layer in layers]
        return [shares for shares in by_layer if shares is not None and shares.step == when], layers

    def _is_read(self, layer: int, view: View, kind: str) -> bool:
        shares = self._received.get((view.run, layer, kind, ALL_ROWS))
        return shares is not None and shares.step == view.step

    def _read_received(self, call: Call, kind: str) -> None:
        """What keys receive in a call, of all rows and of the last one, for every run."""
        # 1. Two query groups: all rows of the canvas, and its last row.
        batch, queries = call.query.shape[0], call.query.shape[2]
        weights = torch.zeros(batch, 2, queries, device=call.query.device)
        # Under guidance the prompted branch decides for both.
        prompted = [view for view in self._views if not view.branch]
        for view in prompted:
            weights[view.row, ALL_ROWS, view.query_slice] = 1.0
            weights[view.row, LAST_ROW, view.query_slice.stop - 1] = 1.0
        # 2. Sums of attention, and how many rows may look at each key.
        stats, sees = reduce_attention(call, StatRequest(weights=weights)), visible(call)
        for view in prompted:
            for rows in (ALL_ROWS, LAST_ROW):
                counted = weights[view.row, rows] * stats.live[view.row]
                sums = stats.sums[view.row, :, rows, view.key_slice].cpu().numpy()
                lookers = np.full(view.length, float(counted.sum()))
                if sees is not None:
                    pairs = sees[view.row if sees.shape[0] > 1 else 0, 0, :, view.key_slice]
                    lookers = (counted @ pairs.float()).cpu().numpy()
                now = ReceivedSums(
                    view.step, sums.astype(np.float64), float(counted.sum()), lookers
                )
                # 3. With a cache, rows of earlier steps count too.
                key = (view.run, call.layer, kind, rows)
                if self.cached and rows == ALL_ROWS and key in self._received:
                    now = self._received[key].plus(now)
                self._received[key] = now

    def _record_rescued(self, layer: int, patched: PatchedCall) -> None:
        for view in self._views:
            if not view.branch:
                count = patched.rescued.count(view.row, view.query_slice)
                self.buffers[view.run].put("spared_rows", (view.step, layer), count)


@dataclass(frozen=True)
class EditedRow:
    """One row of the batch in one attention call, as an edit sees it that acts there."""

    editor: Editor
    index: int
    """Which of the run's edits it is."""
    call: Call
    view: View
    heads: tuple[int, ...]
    """Heads of this layer on which it acts."""

    @property
    def layer(self) -> int:
        return self.call.layer

    def hidden_keys(self, edit: Hiding) -> np.ndarray:
        """[head, rank] positions it hides here: as the trace knows, or as it selects them."""
        return self.editor.hidden_keys(self, edit)

    def received_shares(self, edit: Detecting) -> tuple[np.ndarray, np.ndarray] | None:
        """([unit, key] mean shares, [key] share of rows that may look); None where unknown."""
        seen, layers = self.editor.received_by(edit, self)
        if not seen:
            return None
        total = self.editor.model.num_heads
        shares = mean_shares(seen, [edit.heads_at(layer, total) for layer in layers], edit.scope)
        return shares, seen[0].lookers / max(seen[0].rows, 1)

    def candidates(self, edit: Detecting) -> Candidates:
        """What the edit may choose from, and the seed of its draws."""
        context, length = self.editor.contexts[self.view.run], self.view.length
        # The draw depends on edit, run, step and layer, and not on the batch: a replay repeats it.
        where = () if edit.scope == "model" else (self.call.layer,)
        seed = (getattr(edit, "seed", 0), context.seed, self.index, self.view.step, *where)
        eligible = context.members[edit.eligible][:length]
        return Candidates(eligible, context.classes[:length], seed)
