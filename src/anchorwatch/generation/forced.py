"""Jobs whose first steps are known: they write what a trace wrote, and may be measured doing so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers

from anchorwatch.edits.spec import (
    Edit,
    check_canvas,
    delay_commit,
    force_commit,
    given_again,
    limit_to_steps,
    parts_among,
    slots,
)
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.generation.canvas_edits import run_limits
from anchorwatch.generation.loop import RunState, Step, shape_of
from anchorwatch.generation.plan import check_edits, edit_list
from anchorwatch.generation.schedules import SequenceState, StepPlan
from anchorwatch.models.additions import check_parts
from anchorwatch.models.model import Model
from anchorwatch.probes.accumulate import TraceBuffer
from anchorwatch.probes.spec import Probe
from anchorwatch.trace.model_identity import difference
from anchorwatch.trace.regions import Regions
from anchorwatch.trace.trace import MISSING, Trace

DISAGREES = 1e-2
"""A committed token's log-probability that differs by more was not given by this model."""


def other_model(
    model: Model, held: Mapping[str, Any], versions: Mapping[str, Any] | None = None
) -> str | None:
    """How `model` is not the one that a manifest describes, in words; None where it is.

    `versions` are the manifest's: a digest of settings alone, without their fields, can only be
    compared under the transformers that made it, as each has other fields.
    """
    then = (versions or {}).get("transformers", transformers.__version__)
    if "config" not in held and then != transformers.__version__:
        held = {name: value for name, value in held.items() if name != "settings"}
    return difference(model.describe(), held)


@dataclass
class ForcedRun(RunState):
    """A job whose first steps are known: it writes what the trace wrote."""

    script: Trace
    until: int
    """Steps that are known."""
    hidden: np.ndarray | None = None
    """[step, layer, head, rank] what the job's edits hid at the known steps."""
    measured: tuple[Probe, ...] | None = None
    """Probes of a replay; None leaves the known steps unmeasured."""

    def decided(self, step: int) -> np.ndarray | None:
        return None if self.hidden is None or step >= self.until else self.hidden[step]

    def known(self, step: int) -> bool:
        return step < self.until or self.measured is not None  # a replay goes no further

    def recorded(self) -> Step | None:
        index = len(self.taken)
        if index >= self.until or self._needs_logits(index):
            return None
        return self._repeat(index, None)

    def take(self, logits: torch.Tensor, turn: StepPlan) -> Step:
        index = len(self.taken)
        return super().take(logits, turn) if index >= self.until else self._repeat(index, logits)

    def _needs_logits(self, index: int) -> bool:
        if getattr(self.decoding, "cache", False):
            return True  # the cache is made by the same calls as then
        if index == self.until - 1 and index < self.decoding.num_passes - 1 and self._remembers():
            return True  # the first step that is not known decides by this one
        return self.measured is not None and any(probe.at_step(index) for probe in self.measured)

    def _remembers(self) -> bool:
        return self.measured is None and any(getattr(e, "remembers", False) for e in self.edits)

    def _repeat(self, index: int, logits: torch.Tensor | None) -> Step:
        trace = self.script
        self._keep_edits(index)
        places = np.flatnonzero(trace.committed_at == index)
        device = self.draft.canvas.device
        positions = torch.from_numpy(places).to(device)
        tokens = torch.from_numpy(trace.own[places].astype(np.int64)).to(device)
        state = trace["random_state"].values[index] if trace.decoding.draws else None
        counts = (int(trace["mask_chosen"][index]), int(trace["narrow"][index]))
        known = trace.logprob[places]
        if logits is None:
            return self.note(positions, tokens, known, *counts, state)
        step = self.write(positions, tokens, logits, *counts, state)
        if len(known) and float(np.abs(step.logprobs - known).max()) > DISAGREES:
            raise TraceError(
                f"at step {index} this model gives the committed tokens other log-probabilities "
                "than the trace holds: load the model, dtype and device of its manifest"
            )
        return step

    def _keep_edits(self, index: int) -> None:
        """What edits did at a known step is known too, whether or not it is computed again."""
        if self.hidden is not None:
            self.record.put("hidden_keys", (index,), self.hidden[index])
        if "spared_rows" in self.script:
            self.record.put("spared_rows", (index,), self.script["spared_rows"].values[index])


def build_forced_run(
    model: Model,
    trace: Trace,
    probes: Sequence[Probe],
    *,
    until: int,
    block: int | None = None,
    regions: Regions | None = None,
    edits: Sequence[Edit] | None = None,
    numbers: Sequence[Edit] = (),
) -> ForcedRun:
    """A job that begins as the trace did and knows its first `until` steps.

    `edits` are those of the steps that follow; without them the trace's own go on. `numbers` are
    the trace's edits given again, where its manifest knows only their digests.
    """
    first, answer = trace.given.astype(np.int64), trace.answer
    decoding = trace.decoding
    if regions is None:
        regions = Regions(tuple(trace.manifest["regions"]), trace["region"].values)
    draft = SequenceState(
        canvas=torch.from_numpy(first[first != MISSING]).to(model.device),
        answer=torch.from_numpy(answer).to(model.device),
        mask_id=model.specials.mask_id,
        end_ids=model.specials.end_ids,
        eos_ids=model.specials.eos_ids,
        generator=torch.Generator(device=model.device).manual_seed(trace.seed),
    )
    known = (*trace.edits, *(edits or ()))
    shape = shape_of(model, decoding, len(first), regions.names, known)
    mine, hidden = trace.edits, trace["hidden_keys"].values if "hidden_keys" in trace else None
    if edits is not None:
        check_edits(edits, shape)
        mine, hidden = _handed_over(trace, hidden, edits, until)
    mine = given_again(mine, (*numbers, *(edits or ())))
    check_parts(model, parts_among(mine))
    check_canvas(mine, run_limits(model, decoding, len(first), answer))
    return ForcedRun(
        draft,
        decoding,
        trace.seed,
        first,
        taken=[],
        regions=regions,
        record=TraceBuffer(probes, shape, block, mine),
        edits=mine,
        script=trace,
        until=until,
        hidden=hidden,
    )


def given_edits(edits: Any, trace: Trace) -> tuple[Edit, ...]:
    """A trace's own edits, given again for their numbers; others are refused."""
    again = edit_list(edits)
    if again and again != trace.edits:
        raise SpecError(
            f"the run's edits are {list(trace.edits)} and are repeated as they were: give those "
            "again, or fork with others"
        )
    return again


def check_going_on(job: ForcedRun) -> None:
    """Refuse a job whose edits cannot decide the steps that are not known (an oracle's cannot)."""
    rest = range(job.until, job.decoding.num_passes)
    check_edits(
        [edit for one in job.edits if (edit := limit_to_steps(one, rest))], job.record.shape
    )


def _still_masked(edit: Edit, trace: Trace, until: int) -> None:
    """Refuse to delay or force what the trace wrote before the step."""
    if not isinstance(edit, delay_commit | force_commit):
        return
    when = trace.committed_at
    there = [place for place in edit.positions_named if place < len(when)]
    written = [place for place in there if MISSING != when[place] < until]
    if written:
        first = min(int(when[place]) for place in written)
        raise SpecError(
            f"{type(edit).__name__} of positions {written}, which are written at step {until}: "
            f"leave them out, or fork at step {first} or before"
        )


def _handed_over(
    trace: Trace, hidden: np.ndarray | None, edits: Sequence[Edit], until: int
) -> tuple[tuple[Edit, ...], np.ndarray | None]:
    """The trace's edits up to a step and others from it on, and what the former hid."""
    kept, held = [], []
    for edit, slot in zip(trace.edits, slots(trace.edits), strict=True):
        if early := limit_to_steps(edit, range(until)):
            kept.append(early)
            if hidden is not None:
                held.append(hidden[:, :, :, slot])
    later = [limit_to_steps(edit, range(until, trace.decoding.num_passes)) for edit in edits]
    for edit, left in zip(edits, later, strict=True):
        if left is None:
            raise SpecError(f"{edit!r} acts at no step from {until} on: name one of them")
        _still_masked(edit, trace, until)
    mine = (*kept, *(edit for edit in later if edit is not None))
    ranks = sum(edit.ranks for edit in mine)
    if not ranks:
        return mine, None
    layers, heads = trace.manifest["model"]["layers"], trace.manifest["model"]["heads"]
    whole = np.full((trace.num_steps, layers, heads, ranks), MISSING, dtype=np.int32)
    if held:
        before = np.concatenate(held, axis=-1)
        whole[..., : before.shape[-1]] = before
    return mine, whole
