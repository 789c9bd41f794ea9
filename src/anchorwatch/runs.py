"""Where model and decoding meet: `run` one prompt, `run_many`, or `steps` one at a time.

Everything that can be checked is checked here, before the weights are touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anchorwatch import streams
from anchorwatch.decoding import Decoding, LeftToRight, LowConfidence
from anchorwatch.errors import PromptError, SpecError
from anchorwatch.fields import RunShape
from anchorwatch.loop import Job, Step, shape_of, walk
from anchorwatch.measures import Record
from anchorwatch.models.model import Model
from anchorwatch.models.prompts import Prompt
from anchorwatch.plans import BUDGET_BYTES, Plan
from anchorwatch.policies import Draft
from anchorwatch.probes import DEFAULT, Probe, fields_of
from anchorwatch.progress import Progress
from anchorwatch.records import trace_of
from anchorwatch.regions import Regions, Spans, find_regions
from anchorwatch.store import BLOCK_STEPS
from anchorwatch.trace import MISSING, Trace, read
from anchorwatch.watch import Watch

Ids = Sequence[int] | np.ndarray | torch.Tensor

DEFAULT_LENGTH = 64


def run(
    model: Model,
    prompt: Prompt | None = None,
    decoding: Decoding | None = None,
    *,
    canvas: Ids | None = None,
    regions: Spans | None = None,
    probes: Sequence[Probe] = DEFAULT,
    seed: int = 0,
    budget: int = BUDGET_BYTES,
    out: str | Path | None = None,
    resume: str | Path | None = None,
) -> Trace:
    """Write an answer to `prompt`, or infill the masked positions of `canvas`; keep every frame.

    `out` writes the trace block by block while it runs, so that memory holds one block; a run that
    was killed goes on with `run(model, resume=out)`.

    >>> from anchorwatch.models.loading import load
    >>> trace = run(load("tiny/llada"), "the anchor", LowConfidence(length=4))
    >>> trace.canvas.shape[0]
    5
    """
    ask = Ask(prompt, canvas, regions)
    if resume is not None:
        if any(given is not None for given in (prompt, canvas, regions, decoding, out)):
            raise SpecError("an unfinished run knows what was asked: run(model, resume=path)")
        return _streamed(streams.resume(resume, model))
    block = None if out is None else BLOCK_STEPS
    job = _job(model, ask, decoding, probes, seed, budget, block)
    if out is not None:
        return _streamed(streams.begin(out, job, model, probes))
    with Progress("writing", total=job.decoding.num_passes) as bar:
        for _, step in walk(model, [job], watch_over(model, probes, [job])):
            bar.advance(str(step.index))
    return trace_of(job, model, probes, batch=1)


def _streamed(stream: streams.Stream) -> Trace:
    """Run to the end, each block on disk before the next begins."""
    job, model, probes = stream.job, stream.model, stream.probes
    with Progress("writing", total=job.decoding.num_passes) as bar:
        for _, step in walk(model, [job], watch_over(model, probes, [job])):
            stream.after(step.index)
            bar.advance(str(step.index))
    return read(stream.finish())


def run_many(
    model: Model,
    prompts: Sequence[Prompt],
    decoding: Decoding | None = None,
    *,
    probes: Sequence[Probe] = DEFAULT,
    seed: int = 0,
    batch: int | None = None,
) -> list[Trace]:
    """One trace for each prompt; prompt i is run with seed + i, as `run(..., seed=seed + i)` would.

    `batch` rows share a forward pass. The default is 1 on a CPU, where the rows are then equal to
    single runs bit for bit, and 8 elsewhere. Rows of unequal length are padded on the left.
    """
    if isinstance(prompts, str | bytes):
        raise PromptError("run_many takes a list of prompts: give [prompt], or use run")
    size = batch if batch is not None else (1 if model.device.type == "cpu" else 8)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise SpecError(f"batch={batch!r} is not a whole number of at least 1")
    jobs = [
        _job(model, Ask(prompt), decoding, probes, seed + i, BUDGET_BYTES)
        for i, prompt in enumerate(prompts)
    ]
    with Progress("writing", total=len(jobs)) as bar:
        for start in range(0, len(jobs), size):
            group = jobs[start : start + size]
            for _ in walk(model, group, watch_over(model, probes, group)):
                pass
            bar.advance(count=len(group))
    return [trace_of(job, model, probes, batch=size) for job in jobs]


def steps(
    model: Model,
    prompt: Prompt | None = None,
    decoding: Decoding | None = None,
    *,
    canvas: Ids | None = None,
    seed: int = 0,
) -> Iterator[Step]:
    """The same run, one step at a time; nothing is measured."""
    job = _job(model, Ask(prompt, canvas), decoding, (), seed, BUDGET_BYTES)
    return (step for _, step in walk(model, [job]))


def plan(
    model: Model,
    prompt: Prompt | None = None,
    decoding: Decoding | None = None,
    *,
    canvas: Ids | None = None,
    regions: Spans | None = None,
    probes: Sequence[Probe] = DEFAULT,
) -> Plan:
    """What `run` with these arguments would cost: passes, bytes on disk and in memory."""
    return _planned(_prepared(model, Ask(prompt, canvas, regions), decoding), probes)


@dataclass(frozen=True)
class Ask:
    """What a run starts from: a prompt or a canvas, and the prompt's regions."""

    prompt: Prompt | None = None
    canvas: Ids | None = None
    regions: Spans | None = None


def watch_over(model: Model, probes: Sequence[Probe], jobs: Sequence[Job]) -> Watch | None:
    """Probes at work on some jobs; None where there is nothing to measure."""
    if not probes:
        return None
    return Watch(model, probes, [job.record for job in jobs], [job.regions for job in jobs])


@dataclass(frozen=True)
class _Prepared:
    """A run that has been checked and not begun."""

    first: np.ndarray
    answer: np.ndarray
    decoding: Decoding
    regions: Regions
    shape: RunShape


def _prepared(model: Model, ask: Ask, decoding: Decoding | None) -> _Prepared:
    """Check everything that can be checked before the weights are touched."""
    prompt, canvas = ask.prompt, ask.canvas
    if (prompt is None) == (canvas is None):
        raise PromptError(
            "give either a prompt (an answer is appended) or a canvas (its masks are filled)"
        )
    decoding = decoding or _default(model, infill=canvas is not None)
    _suits(model, decoding)
    if prompt is not None:
        first, answer = _appended(model, prompt, decoding)
    else:
        first, answer = _infilled(model, canvas, decoding)
    if len(first) > model.num_positions:
        room = model.num_positions - len(first) + len(answer)
        way = f", or set length to at most {room}" if room > 0 else ""
        raise PromptError(
            f"prompt and answer take {len(first)} positions and {model.source} was made for "
            f"{model.num_positions}: shorten the prompt{way}"
        )
    decoding = decoding.for_length(len(answer))
    regions = find_regions(ask.regions, prompt, model, first, answer)
    shape = shape_of(model, decoding, len(first), regions.names)
    return _Prepared(first, answer, decoding, regions, shape)


def _job(
    model: Model,
    ask: Ask,
    decoding: Decoding | None,
    probes: Sequence[Probe],
    seed: int,
    budget: int,
    block: int | None = None,
) -> Job:
    """A run about to begin."""
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise SpecError(f"seed={seed!r} is not a whole number from 0 to 2**63 - 1")
    ready = _prepared(model, ask, decoding)
    _planned(ready, probes).within(budget, block)
    ids = ready.first[ready.first != MISSING]
    draft = Draft(
        canvas=torch.tensor(ids, device=model.device),
        answer=torch.tensor(ready.answer, device=model.device),
        mask_id=model.specials.mask_id,
        end_ids=model.specials.end_ids,
        eos_ids=model.specials.eos_ids,
        generator=torch.Generator(device=model.device).manual_seed(int(seed)),
    )
    record = Record(probes, ready.shape, block)
    return Job(draft, ready.decoding, int(seed), ready.first, [], ready.regions, record)


def _planned(ready: _Prepared, probes: Sequence[Probe]) -> Plan:
    fields = fields_of(probes, ready.shape)
    return Plan(ready.decoding.num_passes, tuple(fields.values()))


def _default(model: Model, *, infill: bool) -> Decoding:
    if model.family.kind == "arm":
        return LeftToRight(length=DEFAULT_LENGTH)
    if infill:
        return LowConfidence()
    return LowConfidence(length=DEFAULT_LENGTH, block=model.block)


def _suits(model: Model, decoding: Decoding) -> None:
    if not isinstance(decoding, Decoding):
        raise SpecError(
            f"decoding={decoding!r} is not one of aw.decoding: for example LowConfidence(length=64)"
        )
    name = type(decoding).__name__
    if getattr(decoding, "forbid_end", False) and not model.specials.eos_ids:
        raise SpecError(f"{model.source} names no end token to forbid: leave forbid_end out")
    if getattr(decoding, "defer_end", False) and not model.specials.end_ids:
        raise SpecError(f"{model.source} names no end token to defer: leave defer_end out")
    if model.family.kind == "arm" and decoding.writes == "masked":
        raise SpecError(
            f"{name} fills masks and {model.source} is autoregressive: use LeftToRight(length=...)"
        )
    if model.family.kind == "mdm" and decoding.writes == "absent":
        raise SpecError(
            f"{name} is for autoregressive models and {model.source} denoises: "
            "use LowConfidence(length=..., block=1) to write it left to right"
        )


def _appended(model: Model, prompt: Prompt, decoding: Decoding) -> tuple[np.ndarray, np.ndarray]:
    ids = model.encode(prompt)
    if decoding.length is None:
        raise SpecError(
            "the decoding has no length: say how many positions to write, length=64 for example"
        )
    fill = MISSING
    if model.family.kind == "mdm":
        fill = model.mask_id
        if fill in ids:
            raise PromptError(
                f"the prompt holds the mask id {fill} at position {ids.index(fill)}: "
                "to fill masks inside a text, infill it with canvas=ids"
            )
    answer = np.arange(len(ids), len(ids) + decoding.length)
    return np.concatenate([np.asarray(ids), np.full(decoding.length, fill)]), answer


def _infilled(model: Model, canvas: Any, decoding: Decoding) -> tuple[np.ndarray, np.ndarray]:
    if model.family.kind == "arm":
        raise PromptError(
            f"{model.source} is autoregressive and cannot infill a canvas: give a prompt"
        )
    if isinstance(canvas, str):
        raise PromptError(
            "a canvas is token ids: "
            "encode the text with model.tokenizer and put model.mask_id in it"
        )
    ids = np.asarray(model.encode(canvas))
    answer = np.flatnonzero(ids == model.mask_id)
    if not len(answer):
        raise PromptError(
            f"the canvas has no masked position: put the mask id {model.mask_id} where to write"
        )
    return ids, answer
