"""Forced decoding: runs whose first steps write what a trace wrote, measured or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers

from anchorwatch.edits.spec import (
    CanvasEdit,
    Edit,
    additions_among,
    check_canvas,
    check_edits,
    restore_numbers,
    slots,
)
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.generation.canvas_editor import run_limits
from anchorwatch.generation.decoding import StepPlan
from anchorwatch.generation.loop import RunState, Step, shape_of, start_sequence
from anchorwatch.generation.plan import edit_list, fields_of
from anchorwatch.models.additions import check_parts
from anchorwatch.models.model import Model
from anchorwatch.probes.accumulate import TraceBuffer
from anchorwatch.probes.spec import Probe
from anchorwatch.trace.model_identity import difference
from anchorwatch.trace.regions import Regions
from anchorwatch.trace.trace import MISSING, Trace

DISAGREES = 1e-2
"""A committed token's log-probability that differs by more was not given by this model."""


def model_difference(
    model: Model, described: Mapping[str, Any], versions: Mapping[str, Any] | None = None
) -> str | None:
    """How `model` is not the one that a manifest describes, in words; None where it is.

    `versions` are the manifest's: a digest of settings alone, without their fields, can only be
    compared under the transformers that made it, as each has other fields.
    """
    # Settings are compared field by field where the manifest has them.
    then = (versions or {}).get("transformers", transformers.__version__)
    if "config" not in described and then != transformers.__version__:
        described = {name: value for name, value in described.items() if name != "settings"}
    return difference(model.describe(), described)


@dataclass
class ForcedRun(RunState):
    """A run whose first steps are known: it writes what the trace wrote."""

    script: Trace
    until: int
    """Steps that are known."""
    hidden: np.ndarray | None = None
    """[step, layer, head, rank] what the run's edits hid at the known steps."""
    measured: tuple[Probe, ...] | None = None
    """Probes of a replay; None leaves the known steps unmeasured."""
    on_logits: Callable[[int, torch.Tensor], None] | None = None
    """Gets the logits of known steps that are computed again, of all positions."""

    def positions_read(self, plan: StepPlan) -> torch.Tensor | None:
        return super().positions_read(plan) if self.on_logits is None else None

    @property
    def counts_rows(self) -> bool:
        return False

    def known_hidden_keys(self, step: int) -> np.ndarray | None:
        return None if self.hidden is None or step >= self.until else self.hidden[step]

    def known_rows(self, step: int) -> np.ndarray | None:
        if "row_computed" not in self.script or step >= self.until:
            return None
        return np.asarray(self.script["row_computed"].values[step] == 1)

    def is_known(self, step: int) -> bool:
        return step < self.until or self.measured is not None  # a replay goes no further

    def next_known_step(self) -> Step | None:
        index = len(self.steps)
        if index >= self.until or self._needs_logits(index):
            return None
        return self._repeat(index, None)

    def commit(self, logits: torch.Tensor, plan: StepPlan) -> Step:
        index = len(self.steps)
        return super().commit(logits, plan) if index >= self.until else self._repeat(index, logits)

    def _needs_logits(self, index: int) -> bool:
        if getattr(self.decoding, "cache", False) and not self.decoding.blockwise:
            return True  # the cache is made by the same calls as then; one of blocks, of any frame
        if index == self.until - 1 and index < self.decoding.num_passes - 1 and self._remembers():
            return True  # the first step that is not known decides by this one
        return self.measured is not None and any(probe.at_step(index) for probe in self.measured)

    def _remembers(self) -> bool:
        return self.measured is None and any(edit.remembers for edit in self.edits)

    def _repeat(self, index: int, logits: torch.Tensor | None) -> Step:
        trace = self.script
        self._keep_edits(index)
        written, ids, known = _written_at(trace, index)
        device = self.sequence.canvas.device
        positions = torch.from_numpy(written).to(device)
        tokens = torch.from_numpy(ids.astype(np.int64)).to(device)
        random_state = trace["random_state"].values[index] if trace.decoding.draws else None
        counts = (int(trace["mask_chosen"][index]), int(trace["narrow"][index]))
        # Without a pass the trace's own log-probabilities stand; with one they must agree.
        if logits is None:
            scores = (known, _margins_at(trace, written))
            return self.append_step(positions, tokens, scores, *counts, random_state)
        if self.on_logits is not None:
            self.on_logits(index, logits)
        step = self.write_tokens(positions, tokens, logits, *counts, random_state)
        if len(known) and float(np.abs(step.logprobs - known).max()) > DISAGREES:
            raise TraceError(
                f"at step {index} this model gives the committed tokens other log-probabilities "
                "than the trace holds: load the model, dtype and device of its manifest"
            )
        return step

    def _keep_edits(self, index: int) -> None:
        """What edits did at a known step is known too, whether or not it is computed again."""
        if self.hidden is not None:
            self.buffer.put("hidden_keys", (index,), self.hidden[index])
        if "spared_rows" in self.script:
            self.buffer.put("spared_rows", (index,), self.script["spared_rows"].values[index])


def _written_at(trace: Trace, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(positions, tokens, log-probabilities) that a step wrote; rewrites among them."""
    if "written_logprob" in trace:
        logprobs = trace["written_logprob"].values[step]
        written = np.flatnonzero(~np.isnan(logprobs))
        return written, trace.canvas[step + 1, written], logprobs[written]
    written = np.flatnonzero(trace.committed_at == step)
    return written, trace.own[written], trace.logprob[written]


def _margins_at(trace: Trace, written: np.ndarray) -> np.ndarray:
    """Margins of commits at these positions; NaN in traces that do not have them."""
    if "margin" not in trace:
        return np.full(len(written), np.nan, dtype=np.float32)
    return trace["margin"].values[written]


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
    """A run that begins as the trace did and knows its first `until` steps.

    `edits` are those of the steps that follow; without them the trace's own stay. `numbers` are
    the trace's edits given again, where its manifest knows only their digests.
    """
    # 1. The same canvas, decoding and regions as then.
    first_frame, answer = trace.given.astype(np.int64), trace.answer
    decoding = trace.decoding
    if regions is None:
        regions = Regions(tuple(trace.manifest["regions"]), trace["region"].values)
    # 2. The trace's edits, or those up to the fork and others from there on.
    every_edit = (*trace.edits, *(edits or ()))
    shape = shape_of(model, decoding, len(first_frame), regions.names, every_edit)
    run_edits = trace.edits
    hidden = trace["hidden_keys"].values if "hidden_keys" in trace else None
    if edits is not None:
        check_edits(edits, shape)
        run_edits, hidden = _switch_edits(trace, hidden, edits, until)
    # 3. Numbers that a manifest holds only as digests, and the checks of any run.
    run_edits = restore_numbers(run_edits, (*numbers, *(edits or ())))
    check_parts(model, additions_among(run_edits))
    check_canvas(run_edits, run_limits(model, decoding, len(first_frame), answer))
    return ForcedRun(
        start_sequence(model, first_frame, answer, trace.seed),
        decoding,
        trace.seed,
        first_frame,
        steps=[],
        regions=regions,
        buffer=TraceBuffer(fields_of(probes, shape, run_edits), shape, block),
        edits=run_edits,
        script=trace,
        until=until,
        hidden=hidden,
    )


def repeat_edits(edits: Any, trace: Trace) -> tuple[Edit, ...]:
    """A trace's own edits, given again for their numbers; others are refused."""
    again = edit_list(edits)
    if again and again != trace.edits:
        raise SpecError(
            f"the run's edits are {list(trace.edits)} and are repeated as they were: give those "
            "again, or fork with others"
        )
    return again


def check_remaining_edits(state: ForcedRun) -> None:
    """Refuse a run whose edits cannot decide the steps that are not known (an oracle's cannot)."""
    # Known steps need no decision: an oracle that is known by its digest may serve there.
    rest = range(state.until, state.decoding.num_passes)
    check_edits(
        [limited for edit in state.edits if (limited := edit.limit_to_steps(rest))],
        state.buffer.shape,
    )


def _check_still_masked(edit: Edit, trace: Trace, until: int) -> None:
    """Refuse to delay or force what the trace wrote before the step."""
    if not isinstance(edit, CanvasEdit) or not edit.needs_masked:
        return
    # committed_at is -1 where a position was never written.
    when = trace.committed_at
    present = [position for position in edit.positions_named if position < len(when)]
    written = [position for position in present if MISSING != when[position] < until]
    if written:
        first = min(int(when[position]) for position in written)
        raise SpecError(
            f"{type(edit).__name__} of positions {written}, which are written at step {until}: "
            f"leave them out, or fork at step {first} or before"
        )


def _switch_edits(
    trace: Trace, hidden: np.ndarray | None, edits: Sequence[Edit], until: int
) -> tuple[tuple[Edit, ...], np.ndarray | None]:
    """The trace's edits up to a step and others from it on, and what the former hid."""
    # 1. The trace's own edits, at those of their steps that come before.
    kept, hidden_before = [], []
    for edit, slot in zip(trace.edits, slots(trace.edits), strict=True):
        if early := edit.limit_to_steps(range(until)):
            kept.append(early)
            if hidden is not None:
                hidden_before.append(hidden[:, :, :, slot])
    # 2. The others, from the step on.
    later = [edit.limit_to_steps(range(until, trace.decoding.num_passes)) for edit in edits]
    for edit, left in zip(edits, later, strict=True):
        if left is None:
            raise SpecError(f"{edit!r} acts at no step from {until} on: name one of them")
        _check_still_masked(edit, trace, until)
    # 3. What the former hid, in the slots of the new list.
    merged = (*kept, *(edit for edit in later if edit is not None))
    ranks = sum(edit.ranks for edit in merged)
    if not ranks:
        return merged, None
    layers, heads = trace.manifest["model"]["layers"], trace.manifest["model"]["heads"]
    whole = np.full((trace.num_steps, layers, heads, ranks), MISSING, dtype=np.int32)
    if hidden_before:
        before = np.concatenate(hidden_before, axis=-1)
        whole[..., : before.shape[-1]] = before
    return merged, whole
