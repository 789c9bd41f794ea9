"""Runs that are written while they run: block by block, and gone on with after a kill.

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
from anchorwatch.generation.build_trace import history, trace_of
from anchorwatch.generation.forced import build_forced_run, check_going_on, given_edits, other_model
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
        self, partial: Partial, job: RunState, model: Model, probes: Sequence[Probe], done: int
    ) -> None:
        self.job, self.model, self.probes = job, model, tuple(probes)
        self._partial, self._done = partial, done

    def after(self, step: int) -> None:
        """A step was taken: write the block, if it ended one."""
        record, steps = self.job.record, step + 1
        if steps % BLOCK_STEPS:
            return
        if steps > self._done:  # a resumed run has its first blocks already
            self._put(record.taken(BLOCK_STEPS))
            self._partial.save(steps, _state(self.job))
        record.next_block()

    def finish(self) -> Path:
        """Write what is left, and make a trace of it."""
        steps, record = len(self.job.taken), self.job.record
        if steps % BLOCK_STEPS:
            self._put(record.taken(steps % BLOCK_STEPS))
        trace = trace_of(self.job, self.model, self.probes, batch=1)
        attrs = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "manifest": trace.manifest}
        return self._partial.finish(steps, trace.dataset().assign_attrs(attrs))

    def close(self) -> None:
        """Let others go on with the run, however it ended."""
        self._partial.close()

    def _put(self, rows: dict[str, np.ndarray]) -> None:
        if rows:  # probes without a step axis, and no probes at all, have nothing to append
            self._partial.put(self.job.record.first, rows)


def begin(path: str | Path, job: RunState, model: Model, probes: Sequence[Probe]) -> Stream:
    """Start writing a run that will become `path`."""
    head = {
        "model": model.describe(),
        "decoding": job.decoding.as_dict(),
        "seed": job.seed,
        "edits": [edit.as_dict() for edit in job.edits],
        "probes": [probe.as_dict() for probe in probes],
        "regions": list(job.regions.names),
        "region": job.regions.of.tolist(),
        "first": job.given.tolist(),
        "answer_positions": job.draft.answer.tolist(),
    }
    partial = Partial.create(path, _specs(job.record), head)
    return Stream(partial, job, model, probes, done=0)


def resume(path: str | Path, model: Model, edits: Sequence[Edit] = ()) -> Stream:
    """Go on with an unfinished run after its last whole block; `edits` again for their numbers."""
    partial, done, kept, head = Partial.open(path)
    try:
        return _gone_on_with(partial, done, kept, head, path, model, edits)
    except BaseException:
        partial.close()
        raise


def _gone_on_with(
    partial: Partial,
    done: int,
    kept: dict[str, np.ndarray],
    head: dict[str, Any],
    path: str | Path,
    model: Model,
    edits: Sequence[Edit],
) -> Stream:
    if differs := other_model(model, head["model"]):
        raise TraceError(f"{path} was begun with {head['model']['source']}: {differs}")
    warn_of_absent(head["model"], str(path))
    probes = tuple(probe_from(fields) for fields in head["probes"])
    trace = _so_far(head, kept)
    again = given_edits(edits, trace)
    job = build_forced_run(model, trace, probes, until=done, block=BLOCK_STEPS, numbers=again)
    check_going_on(job)
    for name, array in kept.items():
        if name.startswith(_STATIC):
            job.record.arrays[name.removeprefix(_STATIC)] = array.copy()
    if "generator" in kept:
        job.draft.generator.set_state(torch.from_numpy(kept["generator"].copy()))
    return Stream(partial, job, model, probes, done)


def _specs(record: TraceBuffer) -> dict[str, Spec]:
    specs = {}
    for name, field in record.fields.items():
        if record.by_step(name):
            specs[name] = Spec(field.dims, field.sizes, field.dtype, field.attrs)
    return specs


def _state(job: RunState) -> dict[str, np.ndarray]:
    """Everything small that a resume needs: the run so far, but for its step fields."""
    state = history(job) | job.record.decisions()
    for name, array in job.record.arrays.items():
        if not job.record.by_step(name):
            state[_STATIC + name] = array
    if job.decoding.draws:
        state["generator"] = job.draft.generator.get_state().numpy()
    return state


def _so_far(head: dict[str, Any], kept: dict[str, np.ndarray]) -> Trace:
    """The steps that are done, as a trace to repeat."""
    first = np.array(head["first"])
    nothing = np.zeros(0, dtype=np.int32)
    canvas = kept.get("canvas", first[None])
    dims = ("step", "layer", "head", "hidden")
    measured = {
        name: (Field(name, dims[: kept[name].ndim], "int32", "", ""), kept[name])
        for name in DECISIONS
        if name in kept
    }
    if (own := kept.get(_STATIC + "own_token")) is not None:
        measured["own_token"] = (Field("own_token", ("position",), "int32", "", ""), own)
    return make_trace(
        canvas=canvas,
        role=np.zeros_like(canvas),
        committed_at=kept.get("committed_at", np.full(len(first), -1)),
        logprob=kept.get("logprob", np.full(len(first), np.nan)),
        mask_chosen=kept.get("mask_chosen", nothing),
        narrow=kept.get("narrow", nothing),
        region=np.array(head["region"], dtype=np.int16),
        random_state=kept.get("random_state"),
        measured=measured,
        coordinates={},
        manifest=head,
    )
