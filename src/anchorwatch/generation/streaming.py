"""Runs that are written to disk while they run, block by block, and resumed after a kill.

NAME.trace.partial holds what is done; a run that ends makes NAME.trace of it, whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anchorwatch.edits.spec import Edit
from anchorwatch.errors import TraceError
from anchorwatch.generation.build_trace import build_trace, collect_history
from anchorwatch.generation.forced import (
    build_forced_run,
    check_remaining_edits,
    model_difference,
    repeat_edits,
)
from anchorwatch.generation.loop import RunState
from anchorwatch.models.model import Model
from anchorwatch.probes.accumulate import DECISIONS, TraceBuffer
from anchorwatch.probes.spec import Probe
from anchorwatch.probes.spec import from_dict as probe_from
from anchorwatch.trace.model_identity import warn_of_absent
from anchorwatch.trace.schema import Field
from anchorwatch.trace.store import BLOCK_STEPS, SCHEMA, SCHEMA_VERSION, Partial, Spec
from anchorwatch.trace.trace import Trace, make_trace

_STATIC = "field:"


class Stream:
    """One run on its way to disk."""

    def __init__(
        self, partial: Partial, state: RunState, model: Model, probes: Sequence[Probe], done: int
    ) -> None:
        self.state, self.model, self.probes = state, model, tuple(probes)
        self._partial, self._done = partial, done

    def after_step(self, step: int) -> None:
        """Write the block that a step ended, if it ended one."""
        buffer, steps = self.state.buffer, step + 1
        if steps % BLOCK_STEPS:
            return
        if steps > self._done:  # a resumed run has its first blocks already
            self._append(buffer.first_steps(BLOCK_STEPS))
            self._partial.save(steps, _resume_data(self.state))
        buffer.next_block()

    def finish(self) -> Path:
        """Write what is left, and make a trace of it."""
        steps, buffer = len(self.state.steps), self.state.buffer
        if steps % BLOCK_STEPS:
            self._append(buffer.first_steps(steps % BLOCK_STEPS))
        trace = build_trace(self.state, self.model, self.probes, batch=1)
        attrs = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "manifest": trace.manifest}
        return self._partial.finish(steps, trace.dataset().assign_attrs(attrs))

    def close(self) -> None:
        """Let others resume the run, however it ended."""
        self._partial.close()

    def _append(self, rows: dict[str, np.ndarray]) -> None:
        if rows:  # probes without a step axis, and no probes at all, have nothing to append
            self._partial.put(self.state.buffer.first_step, rows)


def start_stream(
    path: str | Path, state: RunState, model: Model, probes: Sequence[Probe]
) -> Stream:
    """Start writing a run that will become `path`."""
    # Everything but numbers in edits, which are too many for a manifest.
    head = {
        "model": model.describe(),
        "decoding": state.decoding.as_dict(),
        "seed": state.seed,
        "edits": [edit.as_dict() for edit in state.edits],
        "probes": [probe.as_dict() for probe in probes],
        "regions": list(state.regions.names),
        "region": state.regions.of.tolist(),
        "first": state.first_frame.tolist(),
        "answer_positions": state.sequence.answer.tolist(),
    }
    partial = Partial.create(path, _specs(state.buffer), head)
    return Stream(partial, state, model, probes, done=0)


def resume_stream(path: str | Path, model: Model, edits: Sequence[Edit] = ()) -> Stream:
    """Resume an unfinished run after its last whole block; `edits` again for their numbers."""
    partial, done, kept, head = Partial.open(path)
    try:
        # The partial folder is locked while it is open: whatever fails must open the lock again.
        return _resume_from(partial, done, kept, head, path, model, edits)
    except BaseException:
        partial.close()
        raise


def _resume_from(
    partial: Partial,
    done: int,
    kept: dict[str, np.ndarray],
    head: dict[str, Any],
    path: str | Path,
    model: Model,
    edits: Sequence[Edit],
) -> Stream:
    # 1. The same model, or the rest of the answer would be another model's.
    if differs := model_difference(model, head["model"]):
        raise TraceError(f"{path} was begun with {head['model']['source']}: {differs}")
    warn_of_absent(head["model"], str(path))
    # 2. The finished blocks are a trace whose steps are known: they are repeated, not measured.
    probes = tuple(probe_from(fields) for fields in head["probes"])
    trace = _partial_trace(head, kept)
    again = repeat_edits(edits, trace)
    state = build_forced_run(model, trace, probes, until=done, block=BLOCK_STEPS, numbers=again)
    check_remaining_edits(state)
    # 3. Fields without a step axis and the random numbers stand as they did.
    for name, array in kept.items():
        if name.startswith(_STATIC):
            state.buffer.arrays[name.removeprefix(_STATIC)] = array.copy()
    if "generator" in kept:
        state.sequence.generator.set_state(torch.from_numpy(kept["generator"].copy()))
    return Stream(partial, state, model, probes, done)


def _specs(buffer: TraceBuffer) -> dict[str, Spec]:
    specs = {}
    for name, field in buffer.fields.items():
        if buffer.by_step(name):
            specs[name] = Spec(field.dims, field.sizes, field.dtype, field.attrs)
    return specs


def _resume_data(state: RunState) -> dict[str, np.ndarray]:
    """Everything small that a resume needs: the run so far, but for its step fields."""
    # Step fields are on disk block by block; these are written again with every block.
    saved = collect_history(state) | state.buffer.decisions()
    for name, array in state.buffer.arrays.items():
        if not state.buffer.by_step(name):
            saved[_STATIC + name] = array
    if state.decoding.draws:
        saved["generator"] = state.sequence.generator.get_state().numpy()
    return saved


def _partial_trace(head: dict[str, Any], kept: dict[str, np.ndarray]) -> Trace:
    """The steps that are done, as a trace to repeat."""
    # 1. The canvas history; a run killed in its first block has its first frame only.
    first = np.array(head["first"])
    nothing = np.zeros(0, dtype=np.int32)
    canvas = kept.get("canvas", first[None])
    # 2. What edits did, which the repeated steps do again.
    dims = ("step", "layer", "head", "hidden")
    measured = {
        name: (Field(name, dims[: kept[name].ndim], "int32", "", ""), kept[name])
        for name in DECISIONS
        if name in kept
    }
    if (own := kept.get(_STATIC + "own_token")) is not None:
        measured["own_token"] = (Field("own_token", ("position",), "int32", "", ""), own)
    # 3. Roles are not needed for a repetition: the finished trace has its own.
    return make_trace(
        canvas=canvas,
        role=np.zeros_like(canvas),
        committed_at=kept.get("committed_at", np.full(len(first), -1)),
        logprob=kept.get("logprob", np.full(len(first), np.nan)),
        margin=kept.get("margin"),
        mask_chosen=kept.get("mask_chosen", nothing),
        narrow=kept.get("narrow", nothing),
        region=np.array(head["region"], dtype=np.int16),
        random_state=kept.get("random_state"),
        written_logprob=kept.get("written_logprob"),
        row_computed=kept.get("row_computed"),
        measured=measured,
        coordinates={},
        manifest=head,
    )
