"""Edits at work: decides what each call of a run loses, changes it, and remembers what it must.

It lives for one group of jobs. Before each forward pass it is told which rows of the batch belong
to which sequence. Both branches of guidance lose the same keys: those the prompted one decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from anchorwatch.edits import spec as kinds
from anchorwatch.edits.ablation import AttentionPatch, PatchedCall, apply_patch, unpatched_call
from anchorwatch.edits.select_keys import (
    MISSING,
    Candidates,
    ReceivedShares,
    select_keys,
    shares_of,
)
from anchorwatch.edits.spec import Detecting, Edit, Hiding, Part, parts_among
from anchorwatch.edits.verify import Proof, prove, prove_gates, prove_registers, prove_value
from anchorwatch.errors import ModelError
from anchorwatch.metrics.token_classes import token_class
from anchorwatch.models.additions import PassAdditions
from anchorwatch.models.attention import Call, visible
from anchorwatch.models.families import output_modules
from anchorwatch.models.model import Model
from anchorwatch.probes.accumulate import TraceBuffer, View
from anchorwatch.probes.reduce import StatRequest, reduce_attention

ALL_ROWS, LAST_ROW = range(2)


@dataclass(frozen=True)
class StepContext:
    """Where one job stands before a pass."""

    progress: float
    members: Mapping[str, np.ndarray]
    """[position] bool of each group that some edit calls eligible."""
    classes: np.ndarray
    """[position] kinds of token."""
    seed: int
    decided: np.ndarray | None
    """[layer, head, rank] what a trace says was hidden; None where it is to be decided."""
    settled: bool = False
    """Whether that is known of all steps to come."""


def worn_by(
    model: Model,
    edits: Sequence[Edit],
    clocks: Sequence[tuple[int, float]],
    ends: Sequence[int],
) -> PassAdditions | None:
    """Parts that are on in a pass, in each row where its (step, progress) is one of theirs."""
    parts: list[Part] = []
    rows: list[torch.Tensor | None] = []
    for part in parts_among(edits):
        here = torch.tensor([part.acts_at(*clock) for clock in clocks])
        if bool(here.any()):
            parts.append(part)
            rows.append(None if bool(here.all()) else here.to(model.device))
    return model.worn(parts, ends, rows)


class Editor:
    """All edits of a group of jobs."""

    def __init__(
        self,
        model: Model,
        edits: Sequence[Edit],
        records: Sequence[TraceBuffer],
        proven: set[tuple[int | Part, int]] | None = None,
    ) -> None:
        """`proven` holds which edits an editor before this one saw alive, and is added to."""
        self.model, self.edits, self.records = model, tuple(edits), list(records)
        self.groups = tuple({"all", *(e.eligible for e in self.edits if isinstance(e, Detecting))})
        self.cached = False
        """Whether calls bring only new rows."""
        self._slots = kinds.slots(self.edits)
        self._views: list[View] = []
        self._standing: Mapping[int, StepContext] = {}
        self._seen: dict[tuple[int, int, str, int], ReceivedShares] = {}
        self._held: dict[tuple[int, int, str, int], ReceivedShares] = {}
        self._decided: dict[tuple[int, int, int], np.ndarray] = {}
        self._outputs: dict[int, torch.Tensor] = {}
        self._came: set[int] = set()
        self._proven: set[tuple[int | Part, int]] = set() if proven is None else proven
        """Edits by their number, parts by themselves, each at a layer."""
        self._dress: PassAdditions | None = None
        self._change: AttentionPatch | None = None
        self._made: PatchedCall | None = None
        self._classes: dict[int, int] = {}

    @contextmanager
    def over(
        self,
        views: list[View],
        standing: Mapping[int, StepContext],
        dress: PassAdditions | None = None,
    ) -> Iterator[None]:
        """Edit one forward pass, in which the network wears parts."""
        self._views, self._standing, self._dress = views, standing, dress
        self._held = dict(self._seen)
        self._decided.clear()
        self._came.clear()
        with self._gates_proven():
            yield
        wanted = {layer for layer in range(self.model.num_layers) if self.wants(layer)}
        if missing := sorted(wanted - self._came):
            raise ModelError(
                f"layer {missing[0]} of {self.model.source} never came to anchorwatch's attention, "
                "so nothing can be edited there: aw.load the model afresh"
            )

    def classes(self, canvas: np.ndarray) -> np.ndarray:
        """[position] kind of token, where an edit is matched to kinds; else all alike."""
        if not any(getattr(edit, "matched_to", "") == "class" for edit in self.edits):
            return np.zeros(len(canvas), dtype=np.int8)
        special = self.model.specials
        known = {
            "mask_id": special.mask_id,
            "end_ids": list(special.end_ids),
            "special_ids": sorted(special.special_ids),
        }
        for token in {int(one) for one in canvas} - self._classes.keys():
            text = "" if token == MISSING else self.model.text_of(token)
            self._classes[token] = token_class(token, text, known)
        return np.array([self._classes[int(one)] for one in canvas])

    def wants(self, layer: int) -> bool:
        heads = self.model.num_heads
        if any(part.heads_at(layer, heads) for part in self._parts_to_verify(layer)):
            return True
        for edit in self.edits:
            if isinstance(edit, Part) or not edit.heads_at(layer, heads):
                continue
            if isinstance(edit, Detecting) and edit.remembers:
                return True
            if self.cached and getattr(edit, "form", "") == "mean":
                return True  # a mean is over earlier rows too
            if any(self._lives(edit, view) for view in self._views):
                return True
        return False

    def attend(self, call: Call) -> tuple[torch.Tensor, Call] | None:
        self._came.add(call.layer)
        self._change = change = self._build_patch(call)
        before = self._outputs.get(call.layer)
        self._made = made = None if change.is_nothing else apply_patch(call, change, before)
        if made is not None:
            self._count(call.layer, made)
        if self.cached and any(getattr(edit, "form", "") == "mean" for edit in self.edits):
            rows = made or apply_patch(call, change, before)
            self._outputs[call.layer] = rows.before_heads
        return None if made is None else (made.out, made.call)

    def look(self, plain: Call, call: Call, out: torch.Tensor) -> None:
        """Prove what is new, and keep what keys receive here for edits that decide later."""
        self._prove(plain, call, out)
        if all(one.settled and one.decided is not None for one in self._standing.values()):
            return  # nothing is left to decide
        untouched = call.bias is None and call.dropped is None and call.query is plain.query
        shadow = call if untouched else plain  # where nothing was edited the kernel's sums serve
        for kind in self._kinds(call.layer):
            self._read(call if kind == "edited" else shadow, kind)

    def _build_patch(self, call: Call, without: int | None = None) -> AttentionPatch:
        """What all edits do to a call, or all but one."""
        change = AttentionPatch.nothing(call)
        for index, edit in enumerate(self.edits):
            heads = edit.heads_at(call.layer, self.model.num_heads)
            for view in self._views:
                if heads and index != without and self._lives(edit, view):
                    self._fill(change, index, call, view, heads)
        return change

    def _parts_to_verify(self, layer: int) -> list[Part]:
        """Parts of this pass with added keys or tokens that have yet to show themselves here."""
        on = () if self._dress is None else self._dress.on
        parts = [one.fit.part for one in on]
        return [part for part in parts if part.columns and (part, layer) not in self._proven]

    def _prove(self, plain: Call, call: Call, out: torch.Tensor) -> None:
        """Let each edit and part that is new at this layer show that it is alive."""
        change = self._change
        assert change is not None
        made = self._made or unpatched_call(call, out)
        proof = Proof(plain, change, made, self._views)
        for index, edit in enumerate(self.edits if self._made is not None else ()):
            heads = edit.heads_at(plain.layer, self.model.num_heads)
            lives = any(self._lives(edit, view) for view in self._views)
            done = (index, plain.layer) in self._proven
            if isinstance(edit, Part) or done or not heads or not lives:
                continue
            if prove(proof, edit, heads, plain, self._build_patch(plain, without=index)):
                self._proven.add((index, plain.layer))
        self._prove_parts(proof)

    def _prove_parts(self, proof: Proof) -> None:
        plain = proof.plain
        new, dress = self._parts_to_verify(plain.layer), self._dress
        for one, columns in zip(dress.on, dress.slices(), strict=True) if dress and new else ():
            part = one.fit.part
            heads = part.heads_at(plain.layer, self.model.num_heads)
            if part not in new or not heads:
                continue
            if isinstance(part, kinds.register):
                told = prove_registers(proof, one)
            else:
                assert plain.added is not None
                prove_value(proof, part, columns)
                less = plain.added.clone()
                less[..., columns] = -torch.inf
                told = prove(proof, part, heads, replace(plain, added=less), proof.change)
            if told:
                self._proven.add((part, plain.layer))

    @contextmanager
    def _gates_proven(self) -> Iterator[None]:
        """Compare what output projections read with what gates should leave, once, everywhere."""
        dress = self._dress
        gates = () if dress is None else dress.gates
        new = [gate.fit.part for gate in gates if (gate.fit.part, 0) not in self._proven]
        if dress is None or not new:
            yield
            return
        layers, views = [0], self._views

        def look(_: object, args: tuple[torch.Tensor, ...]) -> None:
            prove_gates(dress, layers[0], args[0], views)
            layers[0] += 1

        modules = dict.fromkeys(output_modules(self.model.network))
        hooks = [module.register_forward_pre_hook(look) for module in modules]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        every = range(self.model.num_layers)
        self._proven |= {(part, layer) for part in new for layer in every}

    def _lives(self, edit: Edit, view: View) -> bool:
        return edit.acts_at(view.step, self._standing[view.job].progress)

    def _kinds(self, layer: int) -> set[str]:
        """Maps that edits of this layer will read at the next step."""
        found = set()
        for edit in self.edits:
            there = edit.heads_at(layer, self.model.num_heads)
            if there and isinstance(edit, Detecting) and edit.remembers:
                found.add(edit.detect.removeprefix("previous_"))
        return found

    def _fill(
        self, change: AttentionPatch, index: int, call: Call, view: View, heads: tuple[int, ...]
    ) -> None:
        """Write what one edit does to one row of the batch into the change."""
        edit, mine = self.edits[index], torch.tensor(heads)
        if isinstance(edit, kinds.knock_out):
            getattr(change, edit.form)[view.row, mine] = True
        if not isinstance(edit, Hiding):
            return
        keys = self._keys(index, call, view, heads)
        at = (view.step, call.layer, slice(None), self._slots[index])
        self.records[view.job].put("hidden_keys", at, keys)
        head, rank = np.nonzero(keys != MISSING)
        places = torch.from_numpy(keys[head, rank].astype(np.int64)) + view.key_start
        target = getattr(change, edit.form)
        target[view.row, torch.from_numpy(head), places] = edit.penalty or True

    def _keys(self, index: int, call: Call, view: View, heads: tuple[int, ...]) -> np.ndarray:
        """[head, rank] positions that an edit hides at a layer; every branch has the same."""
        place = (view.job, call.layer, index)
        if place in self._decided:
            return self._decided[place]
        edit, standing = self.edits[index], self._standing[view.job]
        keys = np.full((self.model.num_heads, edit.ranks), MISSING, dtype=np.int32)
        if standing.decided is not None:
            keys[:] = standing.decided[call.layer, :, self._slots[index]]
        elif isinstance(edit, kinds.hide_keys):
            there = [p if p < view.length else MISSING for p in edit.positions]
            keys[list(heads)] = there
        elif isinstance(edit, Detecting):
            keys[list(heads)] = self._detect_sinks(index, edit, call, view, heads)
        self._decided[place] = keys
        return keys

    def _detect_sinks(
        self, index: int, edit: Detecting, call: Call, view: View, heads: tuple[int, ...]
    ) -> np.ndarray:
        """[place, k], one place for each head or one for all."""
        if edit.detect == "same_shadow" and not self._is_read(call.layer, view, "same"):
            self._read(call, "same")
        seen, layers = self._evidence(edit, view, call.layer)
        if not seen:
            return np.full((1, edit.k), MISSING, dtype=np.int32)
        total = self.model.num_heads
        shares = shares_of(seen, [edit.heads_at(at, total) for at in layers], edit.scope)
        looked = seen[0].lookers / max(seen[0].rows, 1)
        standing = self._standing[view.job]
        where = {"head": (call.layer,), "layer": (call.layer,), "model": ()}[edit.scope]
        chance = (getattr(edit, "seed", 0), standing.seed, index, view.step, *where)
        eligible = standing.members[edit.eligible][: view.length]
        pool = Candidates(eligible, standing.classes[: view.length], chance)
        return select_keys(edit, shares, looked, pool)

    def _evidence(
        self, edit: Detecting, view: View, layer: int
    ) -> tuple[list[ReceivedShares], list[int]]:
        """What the edit decides by: of this layer, or of all its layers."""
        layers = [layer]
        if edit.scope == "model":
            every = range(self.model.num_layers)
            layers = [at for at in every if edit.heads_at(at, self.model.num_heads)]
        if isinstance(edit.unedited, kinds.Oracle):
            assert edit.unedited.shares is not None
            shares = edit.unedited.shares[view.step, :, :, : view.length]
            ones = np.ones(shares.shape[-1])
            return [
                ReceivedShares(view.step, np.nan_to_num(shares[at]), 1, ones) for at in layers
            ], layers
        held = self._seen if edit.detect == "same_shadow" else self._held
        kind = "same" if edit.detect == "same_shadow" else edit.detect.removeprefix("previous_")
        when = view.step if kind == "same" else view.step - 1
        rows = LAST_ROW if edit.last_row else ALL_ROWS
        found = [held.get((view.job, at, kind, rows)) for at in layers]
        return [one for one in found if one is not None and one.step == when], layers

    def _is_read(self, layer: int, view: View, kind: str) -> bool:
        found = self._seen.get((view.job, layer, kind, ALL_ROWS))
        return found is not None and found.step == view.step

    def _read(self, call: Call, kind: str) -> None:
        """What keys receive in a call, of all rows and of the last one, for every job."""
        batch, queries = call.query.shape[0], call.query.shape[2]
        weights = torch.zeros(batch, 2, queries, device=call.query.device)
        mine = [view for view in self._views if not view.branch]
        for view in mine:
            weights[view.row, ALL_ROWS, view.query_slice] = 1.0
            weights[view.row, LAST_ROW, view.query_slice.stop - 1] = 1.0
        found, looks = reduce_attention(call, StatRequest(weights=weights)), visible(call)
        for view in mine:
            for rows in (ALL_ROWS, LAST_ROW):
                wanted = weights[view.row, rows] * found.live[view.row]
                sums = found.sums[view.row, :, rows, view.key_slice].cpu().numpy()
                lookers = np.full(view.length, float(wanted.sum()))
                if looks is not None:
                    pairs = looks[view.row if looks.shape[0] > 1 else 0, 0, :, view.key_slice]
                    lookers = (wanted @ pairs.float()).cpu().numpy()
                now = ReceivedShares(
                    view.step, sums.astype(np.float64), float(wanted.sum()), lookers
                )
                place = (view.job, call.layer, kind, rows)
                if self.cached and rows == ALL_ROWS and place in self._seen:
                    now = self._seen[place].plus(now)
                self._seen[place] = now

    def _count(self, layer: int, made: PatchedCall) -> None:
        for view in self._views:
            if not view.branch:
                spared = made.spared.count(view.row, view.query_slice)
                self.records[view.job].put("spared_rows", (view.step, layer), spared)
