"""Where model and decoding meet: `run` one prompt, `run_many`, or `steps` one at a time.

Everything that can be checked is checked here, before the weights are touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anchorwatch import streams
from anchorwatch.decoding import Decoding, LeftToRight, LowConfidence
from anchorwatch.edits import Edit, check_canvas, parts_among
from anchorwatch.errors import PromptError, SpecError
from anchorwatch.fields import RunShape
from anchorwatch.loop import Job, Step, shape_of, walk
from anchorwatch.measures import Record
from anchorwatch.models.fits import check_parts
from anchorwatch.models.model import Model
from anchorwatch.models.prompts import Prompt
from anchorwatch.plans import (
    BUDGET_BYTES,
    Plan,
    check_edits,
    edit_list,
    fields_of,
    probe_list,
)
from anchorwatch.probes import DEFAULT, Probe
from anchorwatch.progress import Progress
from anchorwatch.records import trace_of
from anchorwatch.regions import Regions, Spans, find_regions
from anchorwatch.schedules import Draft
from anchorwatch.store import BLOCK_STEPS
from anchorwatch.touches import ground_of
from anchorwatch.trace import MISSING, Trace, read
from anchorwatch.watch import Watch

Ids = Sequence[int] | np.ndarray | torch.Tensor

DEFAULT_LENGTH = 64


def run(  # noqa: PLR0913 - one keyword for each thing a run can be given
    model: Model,
    prompt: Prompt | None = None,
    decoding: Decoding | None = None,
    *,
    canvas: Ids | None = None,
    regions: Spans | None = None,
    probes: Sequence[Probe] = DEFAULT,
    edits: Sequence[Edit] = (),
    seed: int = 0,
    budget: int = BUDGET_BYTES,
    out: str | Path | None = None,
    resume: str | Path | None = None,
) -> Trace:
    """Write an answer to `prompt`, or infill the masked positions of `canvas`; keep every frame.

    Args:
        model: as `aw.load` gives it.
        prompt: text, token ids, or chat messages.
        decoding: one of `aw.decoding`; the default writes 64 positions, or all a canvas has masked.
        canvas: token ids with the mask id where to write, instead of a prompt.
        regions: named parts of the prompt, for probes and query groups: words that are in it once,
            (begin, end) in characters (in positions where it is ids), or token positions as
            range(begin, end). What the run writes is the region `answer`.
        probes: what to measure; () for nothing.
        edits: what to change inside attention, and when; probes see the edited attention.
        seed: where chance begins, for a decoding that draws.
        budget: bytes it may keep in memory. A run that would keep more is refused.
        out: writes the trace here, block by block while it runs: memory holds one block.
        resume: the `out` of a run that was killed; it knows all else: `run(model, resume=out)`,
            but for numbers in edits, which are given again.

    >>> from anchorwatch.models.loading import load
    >>> from anchorwatch.probes import region_flow
    >>> asked = "Passage: Lena was born in Oslo. Question: Where was Lena born? Answer:"
    >>> parts = {"passage": "Lena was born in Oslo.", "question": "Where was Lena born?"}
    >>> writes = LowConfidence(length=4, steps=2)
    >>> trace = run(load("tiny/llada"), asked, writes, regions=parts, probes=[region_flow()])
    >>> trace["region_flow"].sel(query_region="answer", key_region="passage").dims
    ('step', 'layer', 'head')
    """
    probes, edits = probe_list(probes), edit_list(edits)
    if resume is not None:
        asked = any(given is not None for given in (prompt, canvas, regions, decoding, out))
        if asked or (probes, seed, budget) != (DEFAULT, 0, BUDGET_BYTES):
            raise SpecError(
                "an unfinished run knows what was asked, its probes, edits, seed and budget too: "
                "run(model, resume=path)"
            )
        return _streamed(streams.resume(resume, model, edits))
    block = None if out is None else BLOCK_STEPS
    ask = Ask(prompt, canvas, regions, edits)
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
    regions: Sequence[Spans] | Spans | None = None,
    probes: Sequence[Probe] = DEFAULT,
    edits: Sequence[Edit] = (),
    seed: int | Sequence[int] = 0,
    budget: int = BUDGET_BYTES,
    batch: int | None = None,
) -> list[Trace]:
    """One trace for each prompt; prompt i is run with seed + i, as `run(..., seed=seed + i)` would.

    A list of seeds has one for each prompt: an answer then does not depend on where it stands.

    `batch` rows share a forward pass. The default is 1 on a CPU, where the rows are then equal to
    single runs bit for bit, and 8 elsewhere. Rows of unequal length are padded on the left.
    `regions` are a list, the same names for each prompt, or one mapping for all of them. `budget`
    counts what all prompts keep, which is what the returned list holds.
    """
    prompts, size = prompt_list(prompts, "run_many"), rows_at_once(model, batch)
    probes, edits, seeds = probe_list(probes), edit_list(edits), _seeds(seed, len(prompts))
    asks = [
        Ask(prompt, regions=spans, edits=edits)
        for prompt, spans in zip(prompts, for_each(regions, len(prompts)), strict=True)
    ]
    jobs = begin(model, asks, decoding, seeds, probes, budget)
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
    edits: Sequence[Edit] = (),
    seed: int = 0,
) -> Iterator[Step]:
    """The same run, one step at a time; nothing is measured."""
    ask = Ask(prompt, canvas, edits=edit_list(edits))
    job = _job(model, ask, decoding, (), seed, BUDGET_BYTES)
    return (step for _, step in walk(model, [job]))


def plan(
    model: Model,
    prompt: Prompt | None = None,
    decoding: Decoding | None = None,
    *,
    canvas: Ids | None = None,
    regions: Spans | None = None,
    probes: Sequence[Probe] = DEFAULT,
    edits: Sequence[Edit] = (),
) -> Plan:
    """What `run` with these arguments would cost: passes, bytes on disk and in memory."""
    probes, ask = probe_list(probes), Ask(prompt, canvas, regions, edit_list(edits))
    return _planned([_prepared(model, ask, decoding)], probes)


@dataclass(frozen=True)
class Ask:
    """What a run starts from: a prompt or a canvas, the prompt's regions, and the edits."""

    prompt: Prompt | None = None
    canvas: Ids | None = None
    regions: Spans | None = None
    edits: tuple[Edit, ...] = ()


def checked_seed(seed: Any) -> int:
    """A seed that torch takes, or a refusal."""
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise SpecError(f"seed={seed!r} is not a whole number from 0 to 2**63 - 1")
    return int(seed)


def prompt_list(prompts: Any, taker: str) -> list[Prompt]:
    """Several prompts; one alone is refused, which would be taken letter by letter."""
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Iterable):
        raise PromptError(f"{taker} takes a list of prompts: give [prompt], or use run")
    return list(prompts)


def rows_at_once(model: Model, batch: Any) -> int:
    """How many runs share a forward pass; on a CPU one, unless it is said."""
    size = batch if batch is not None else (1 if model.device.type == "cpu" else 8)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise SpecError(f"batch={batch!r} is not a whole number of at least 1")
    return size


def begin(
    model: Model,
    asks: Sequence[Ask],
    decoding: Decoding | None,
    seeds: Iterable[int],
    probes: Sequence[Probe] = (),
    budget: int = BUDGET_BYTES,
) -> list[Job]:
    """Runs about to begin, all of them checked, and within the budget together."""
    ready = [_prepared(model, ask, decoding) for ask in asks]
    _planned(ready, probes).within(budget)
    return [
        _begun(model, one, probes, checked_seed(seed))
        for one, seed in zip(ready, seeds, strict=True)
    ]


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
    edits: tuple[Edit, ...]


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
    shape = shape_of(model, decoding, len(first), regions.names, ask.edits)
    check_edits(ask.edits, shape)
    check_parts(model, parts_among(ask.edits))
    check_canvas(ask.edits, ground_of(model, decoding, len(first), answer))
    return _Prepared(first, answer, decoding, regions, shape, ask.edits)


def _job(
    model: Model,
    ask: Ask,
    decoding: Decoding | None,
    probes: Sequence[Probe],
    seed: int,
    budget: int,
    block: int | None = None,
) -> Job:
    """A run about to begin, checked and within the budget."""
    seed, ready = checked_seed(seed), _prepared(model, ask, decoding)
    _planned([ready], probes).within(budget, block)
    return _begun(model, ready, probes, seed, block)


def _begun(
    model: Model,
    ready: _Prepared,
    probes: Sequence[Probe],
    seed: int,
    block: int | None = None,
) -> Job:
    ids = ready.first[ready.first != MISSING]
    draft = Draft(
        canvas=torch.tensor(ids, device=model.device),
        answer=torch.tensor(ready.answer, device=model.device),
        mask_id=model.specials.mask_id,
        end_ids=model.specials.end_ids,
        eos_ids=model.specials.eos_ids,
        generator=torch.Generator(device=model.device).manual_seed(seed),
    )
    record = Record(probes, ready.shape, block, ready.edits)
    return Job(draft, ready.decoding, seed, ready.first, [], ready.regions, record, ready.edits)


def _planned(ready: Sequence[_Prepared], probes: Sequence[Probe]) -> Plan:
    """One plan of runs that are held together."""
    fields = [field for one in ready for field in fields_of(probes, one.shape, one.edits).values()]
    return Plan(sum(one.decoding.num_passes for one in ready), tuple(fields))


def _seeds(seed: Any, count: int) -> list[int]:
    """The seeds of several prompts: seed + i, or a list of as many."""
    if not isinstance(seed, Sequence) or isinstance(seed, str):
        return [checked_seed(checked_seed(seed) + i) for i in range(count)]
    if len(seed) != count:
        raise SpecError(f"there are {count} prompts and {len(seed)} seeds: give one for each")
    return [checked_seed(one) for one in seed]


def for_each(regions: Any, count: int) -> list[Spans | None]:
    """The regions of each of several prompts: one mapping for all, or a list of as many."""
    if regions is None or isinstance(regions, Mapping):
        return [regions] * count
    held = list(regions) if isinstance(regions, Sequence) else [regions]
    if len(held) != count:
        raise SpecError(
            f"there are {count} prompts and {len(held)} regions: give a mapping for each, or one"
        )
    if len({tuple(spans) if isinstance(spans, Mapping) else None for spans in held}) > 1:
        raise SpecError("prompts that run together have the same region names, in the same order")
    return held


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
