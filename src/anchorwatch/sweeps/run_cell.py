"""Runs one cell in a worker: claim it, run it, write it whole."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anchorwatch.edits.spec import Edit
from anchorwatch.errors import AnchorwatchWarning, ModelError
from anchorwatch.evaluation.questions import token_regions
from anchorwatch.generation.decoding import Decoding
from anchorwatch.generation.run import plan, run
from anchorwatch.models.engines.jobs import BusyError, Job
from anchorwatch.models.engines.worker import FAILURES, Worker
from anchorwatch.models.model import Model
from anchorwatch.probes.reduce import smaller_tiles
from anchorwatch.probes.spec import Probe
from anchorwatch.sweeps.spec import DecodingValue, PromptValue
from anchorwatch.trace.atomic_io import extent, put_file, seal
from anchorwatch.trace.cells import RECORD, TRACE, CellFolder, open_cells
from anchorwatch.trace.trace import MISSING, Trace

STREAMED_BYTES = 256_000_000
"""Runs that keep more are written block by block while they run."""
TILE_DIVISORS = (1, 4, 16)
"""Where memory runs out the tiles of captured attention are made smaller, twice."""
_LONGEST_ANSWER = 2000


@dataclass(frozen=True)
class CellRequest:
    """What a worker is told of a cell."""

    folder: str
    labels: Mapping[str, Any]
    deciding: Mapping[str, Any]
    prompt: PromptValue
    decoding: DecodingValue
    edits: tuple[Edit, ...]
    probes: tuple[Probe, ...]
    seed: int


def run_cell(worker: Worker, job: Job) -> bool:
    """Make the cell of a job; whether it was computed, and not there already."""
    request: CellRequest = job.payload
    folder = open_cells(request.folder)
    # Claimed before it is looked for: a worker that was killed between writing the cell and letting
    # go of its claim left the claim's file, which goes with this claim.
    claim = folder.claim(job.name)
    if claim is None:
        raise BusyError(f"another process computes {job.name}")
    try:
        if folder.is_done(job.name):
            return False
        _compute(worker, job, request, folder)
    finally:
        claim.release()
    return True


def _compute(worker: Worker, job: Job, request: CellRequest, folder: CellFolder) -> None:
    begun = time.perf_counter()
    event: dict[str, Any] = {"cell": job.name}
    folder.log(worker.name, event | {"event": "begin"})
    try:
        model = worker.model(job.model)
        with folder.stage() as staged:
            trace, tiles = _write_trace(model, request, staged / TRACE)
            _refuse_nan(trace)
            record = _describe(job.name, request, trace, extent(staged / TRACE)[1], tiles)
            put_file(staged / RECORD, seal(record))
            folder.commit(job.name, staged)
    except FAILURES as error:
        folder.log(worker.name, event | {"event": "failed", "reason": str(error)[:200]})
        raise
    seconds = time.perf_counter() - begun
    folder.log(worker.name, event | {"event": "done", "seconds": seconds})


def _write_trace(model: Model, request: CellRequest, path: Path) -> tuple[Trace, int]:
    """Run and write; the trace, and how many times smaller than usual the tiles were."""
    for divisor in TILE_DIVISORS:
        try:
            with smaller_tiles(divisor), warnings.catch_warnings():
                warnings.simplefilter("ignore", AnchorwatchWarning)  # the manifest keeps them
                trace = _run(model, request, path)
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0][:300]
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        else:
            return trace, divisor
    raise ModelError(
        f"there is not enough memory for it, with tiles {TILE_DIVISORS[-1]} times smaller too "
        f"({reason}): keep fewer probes, shorten the prompt, or use fewer workers on the device"
    )


def _run(model: Model, request: CellRequest, path: Path) -> Trace:
    prompt, regions = prompt_for(model, request.prompt)
    how: Decoding | None = dict(request.decoding.by_kind)[model.family.kind]
    more: dict[str, Any] = {"regions": regions, "probes": request.probes, "edits": request.edits}
    if plan(model, prompt, how, **more).disk_bytes > STREAMED_BYTES:
        return run(model, prompt, how, **more, seed=request.seed, out=path)
    trace = run(model, prompt, how, **more, seed=request.seed)
    _refuse_nan(trace)  # before it is written
    trace.write(path)
    return trace


def prompt_for(model: Model, value: PromptValue) -> tuple[Any, Any]:
    """The prompt and its regions as a run takes them; in a chat as ids."""
    prompt = value.prompt
    if isinstance(prompt, tuple):
        prompt = [dict(part) if isinstance(part, Mapping) else part for part in prompt]
    regions = dict(value.regions)
    if not value.chat:
        return prompt, regions or None
    ids = model.encode([{"role": "user", "content": prompt}])
    if not regions:
        return ids, None
    return ids, token_regions(model, prompt, regions, ids, chat=True)


def _refuse_nan(trace: Trace) -> None:
    """Refuse a run whose network gave NaN: what it wrote means nothing."""
    answer = trace.answer
    written = trace.committed_at[answer] != MISSING
    lost = written & np.isnan(trace.logprob[answer])
    if "own_token" in trace or not lost.any():  # an edit of the canvas writes without logits
        return
    step = int(trace.committed_at[answer][lost].min())
    raise ModelError(
        f"the logits are NaN at step {step}: the weights or an edit overflow, try dtype float32"
    )


def _describe(
    cell: str, request: CellRequest, trace: Trace, size: int, tiles: int
) -> dict[str, Any]:
    """cell.json: nothing of it depends on when or where it was made."""
    return {
        "cell": cell,
        "labels": dict(request.labels),
        "deciding": dict(request.deciding),
        "steps": trace.num_steps,
        "positions": int(trace.canvas.shape[1]),
        "left_masked": trace.num_left_masked,
        "answer": trace.text[:_LONGEST_ANSWER],
        "trace": trace.digest(),
        "bytes": size,
    } | ({"smaller_tiles": tiles} if tiles > 1 else {})


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "alloc" in str(error) and "memory" in str(error)
