"""Where model and decoding meet: `run` one prompt, `run_many`, or `steps` one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anchorwatch.edits.spec import Edit
from anchorwatch.errors import SpecError
from anchorwatch.generation import streaming
from anchorwatch.generation.build_trace import build_trace
from anchorwatch.generation.decoding import Decoding
from anchorwatch.generation.dream_on import DreamOn
from anchorwatch.generation.loop import RunState, SharedPrompts, Step, walk
from anchorwatch.generation.plan import BUDGET_BYTES, Plan, edit_list, probe_list
from anchorwatch.generation.prepare import (
    Ids,
    RunRequest,
    expand_seeds,
    plan_runs,
    prepare_run,
    prompt_list,
    refuse_together,
    regions_for_each,
    rows_at_once,
    start_observation,
    start_run,
    start_runs,
)
from anchorwatch.models.model import Model
from anchorwatch.models.prompt_encoding import Prompt, as_chat
from anchorwatch.probes.recorder import Recorder
from anchorwatch.probes.spec import DEFAULT, Probe
from anchorwatch.trace.progress_bar import Progress
from anchorwatch.trace.regions import Spans
from anchorwatch.trace.store import BLOCK_STEPS
from anchorwatch.trace.trace import Trace, read


def run(  # noqa: PLR0913 - one keyword for each thing a run can be given
    model: Model,
    prompt: Prompt | None = None,
    decoding: Decoding | None = None,
    *,
    canvas: Ids | None = None,
    regions: Spans | None = None,
    chat: bool = False,
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
        chat: asks the prompt, which is text, through the model's chat template.
        probes: what to measure; () for nothing.
        edits: what to change inside attention, and when; probes see the edited attention.
        seed: of the random numbers, for a decoding that draws.
        budget: bytes it may keep in memory. A run that would keep more is refused.
        out: writes the trace here, block by block while it runs: memory holds one block.
        resume: the `out` of a run that was killed; it knows all else: `run(model, resume=out)`,
            but for numbers in edits, which are given again.

    >>> from anchorwatch.generation.decoding import LowConfidence
    >>> from anchorwatch.models.load import load
    >>> from anchorwatch.probes.spec import region_flow
    >>> prompt = "Passage: Lena was born in Oslo. Question: Where was Lena born? Answer:"
    >>> parts = {"passage": "Lena was born in Oslo.", "question": "Where was Lena born?"}
    >>> writes = LowConfidence(length=4, steps=2)
    >>> trace = run(load("tiny/llada"), prompt, writes, regions=parts, probes=[region_flow()])
    >>> trace["region_flow"].sel(query_region="answer", key_region="passage").dims
    ('step', 'layer', 'head')
    """
    # 1. A resumed run knows everything from its unfinished folder.
    probes, edits = probe_list(probes), edit_list(edits)
    if resume is not None:
        given = (prompt, canvas, regions, decoding, out)
        if any(value is not None for value in given) or (probes, seed, budget) != (
            DEFAULT,
            0,
            BUDGET_BYTES,
        ):
            raise SpecError(
                "an unfinished run knows what was asked, its probes, edits, seed and budget too: "
                "run(model, resume=path)"
            )
        return _run_streaming(streaming.resume_stream(resume, model, edits))
    # 2. A run that goes to disk holds one block of steps in memory.
    block = None if out is None else BLOCK_STEPS
    prompt = as_chat(prompt) if chat else prompt
    request = RunRequest(prompt, canvas, regions, edits)
    state = start_run(model, request, decoding, probes, seed, budget, block)
    if out is not None:
        return _run_streaming(streaming.start_stream(out, state, model, probes))
    # 3. Every other run holds all its steps until it ends.
    with Progress("writing", total=state.decoding.num_passes) as bar:
        for _, step in walk(model, [state], build_recorder(model, probes, [state])):
            bar.advance(str(step.index))
    return build_trace(state, model, probes, batch=1)


def _run_streaming(stream: streaming.Stream) -> Trace:
    """Run to the end, each block on disk before the next begins."""
    state, model, probes = stream.state, stream.model, stream.probes
    try:
        with Progress("writing", total=state.decoding.num_passes) as bar:
            for _, step in walk(model, [state], build_recorder(model, probes, [state])):
                stream.after_step(step.index)
                bar.advance(str(step.index))
        return read(stream.finish())
    finally:
        stream.close()


def run_many(
    model: Model,
    prompts: Sequence[Prompt],
    decoding: Decoding | None = None,
    *,
    regions: Sequence[Spans] | Spans | None = None,
    chat: bool = False,
    probes: Sequence[Probe] = DEFAULT,
    edits: Sequence[Edit] = (),
    seed: int | Sequence[int] = 0,
    budget: int = BUDGET_BYTES,
    batch: int | None = None,
) -> list[Trace]:
    """One trace for each prompt; prompt i is run with seed + i, as `run(..., seed=seed + i)` would.

    A list of seeds has one for each prompt: an answer then does not depend on where it stands.

    `chat` asks every prompt, which is then text, through the model's chat template.
    `batch` rows share a forward pass. The default is 1 on a CPU, where the rows are then equal to
    single runs bit for bit, and 8 elsewhere. Rows of unequal length are padded on the left.
    `regions` are a list, the same names for each prompt, or one mapping for all of them. `budget`
    counts what all prompts keep, which is what the returned list holds.
    """
    prompts, size = prompt_list(prompts, "run_many"), rows_at_once(model, batch)
    prompts = [as_chat(prompt) for prompt in prompts] if chat else prompts
    probes, edits, seeds = probe_list(probes), edit_list(edits), expand_seeds(seed, len(prompts))
    requests = [
        RunRequest(prompt, regions=spans, edits=edits)
        for prompt, spans in zip(prompts, regions_for_each(regions, len(prompts)), strict=True)
    ]
    states = start_runs(model, requests, decoding, seeds, probes, budget)
    refuse_together(model, states, size)
    with Progress("writing", total=len(states)) as bar:
        # Runs of a group share each forward pass; a run that ends early leaves it.
        shared = SharedPrompts()
        for start in range(0, len(states), size):
            group = states[start : start + size]
            for _ in walk(model, group, build_recorder(model, probes, group), shared):
                pass
            bar.advance(count=len(group))
    return [build_trace(state, model, probes, batch=size) for state in states]


@dataclass(frozen=True)
class Resized:
    """What `run_resizing` wrote: a trace for each length that the canvas had, and its end."""

    traces: list[Trace]
    """Each ends with the step that changed the length; the last where nothing was left to write."""
    canvas: np.ndarray
    """[T] token ids at the end, after the last change of length."""


def run_resizing(
    model: Model,
    canvas: Ids,
    decoding: DreamOn | None = None,
    *,
    max_length: int,
    expansions: int | None = None,
    probes: Sequence[Probe] = DEFAULT,
    edits: Sequence[Edit] = (),
    seed: int = 0,
    budget: int = BUDGET_BYTES,
) -> Resized:
    """Infill a canvas that DreamOn may make longer or shorter: one trace for each length.

    What an earlier trace wrote is given text to the next. Trace i draws with `seed` + i.

    Args:
        model: a DreamOn checkpoint, as `aw.load` gives it.
        canvas: token ids with the mask id where to write.
        decoding: `aw.decoding.DreamOn`; the default is the authors'.
        max_length: positions that the canvas may have at most.
        expansions: how many there may be; twice the room after the first mask by default.
        probes: what to measure in each trace.
        edits: what to change inside attention; steps and progress are each trace's own.
        seed: of the random numbers, for a decoding that draws.
        budget: bytes that each trace may keep in memory.

    >>> from anchorwatch.models.load import load
    >>> dream = load("tiny/dream")
    >>> text = [5, 6, dream.mask_id, dream.mask_id, 7]
    >>> writes = DreamOn(expand_id=40)
    >>> resized = run_resizing(dream, text, writes, max_length=8, probes=())
    >>> bool((resized.canvas == dream.mask_id).any())
    False
    """
    # 1. Checked before the first pass; the first run checks the rest.
    decoding = DreamOn() if decoding is None else decoding
    if not isinstance(decoding, DreamOn):
        raise SpecError("run_resizing decodes with DreamOn: other decodings keep the length")
    if decoding.delete_ids is None:
        decoding = replace(decoding, delete_ids=model.specials.eos_ids)
    ids: Any = canvas
    frame: np.ndarray = np.array(model.encode(ids), dtype=np.int64)
    if len(frame) > max_length:
        raise SpecError(
            f"the canvas has {len(frame)} positions and max_length={max_length}: "
            f"say max_length={2 * len(frame)} for example"
        )
    first = int(np.argmax(frame == model.mask_id))
    left = 2 * (max_length - first) if expansions is None else expansions
    # 2. A run on each length; the next begins on what the last one left.
    traces: list[Trace] = []
    while not traces or (frame == model.mask_id).any():
        room = min(max_length, len(frame) + left)
        writes = replace(decoding, may_expand=decoding.may_expand and len(frame) < room)
        trace = run(
            model,
            canvas=frame,
            decoding=writes,
            probes=probes,
            edits=edits,
            seed=seed + len(traces),
            budget=budget,
        )
        traces.append(trace)
        before, after = trace.canvas[-2:]
        frame = decoding.resize(before, after, mask_id=model.mask_id, room=room)
        if np.array_equal(frame, after):  # ended, or chose the mask id
            break
        left -= int(((before == model.mask_id) & (after == decoding.expand_id)).sum())
    return Resized(traces, frame)


def observe(
    model: Model,
    text: Prompt,
    *,
    regions: Spans | None = None,
    chat: bool = False,
    probes: Sequence[Probe] = DEFAULT,
    edits: Sequence[Edit] = (),
    budget: int = BUDGET_BYTES,
) -> Trace:
    """Measure a finished text without writing: one forward pass, a trace of one step.

    The whole text is the trace's answer, so that the query group `written` is all of it; mask
    tokens in it stay masked. Nothing is committed: `committed_at` is -1 everywhere.

    >>> from anchorwatch.models.load import load
    >>> trace = observe(load("tiny/llada"), "the anchor holds the ship")
    >>> trace.num_steps, bool((trace.committed_at == -1).all())
    (1, True)
    """
    probes = probe_list(probes)
    text = as_chat(text) if chat else text
    request = RunRequest(text, regions=regions, edits=edit_list(edits))
    state = start_observation(model, request, probes, budget)
    for _ in walk(model, [state], build_recorder(model, probes, [state])):
        pass
    return build_trace(state, model, probes, batch=1)


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
    request = RunRequest(prompt, canvas, edits=edit_list(edits))
    state = start_run(model, request, decoding, (), seed, BUDGET_BYTES)
    return (step for _, step in walk(model, [state]))


def plan(
    model: Model,
    prompt: Prompt | None = None,
    decoding: Decoding | None = None,
    *,
    canvas: Ids | None = None,
    regions: Spans | None = None,
    chat: bool = False,
    probes: Sequence[Probe] = DEFAULT,
    edits: Sequence[Edit] = (),
) -> Plan:
    """What `run` with these arguments would cost: passes, bytes on disk and in memory."""
    prompt = as_chat(prompt) if chat else prompt
    probes, request = probe_list(probes), RunRequest(prompt, canvas, regions, edit_list(edits))
    return plan_runs([prepare_run(model, request, decoding)], probes)


def build_recorder(
    model: Model, probes: Sequence[Probe], states: Sequence[RunState]
) -> Recorder | None:
    """The recorder of some runs; None where there is nothing to measure."""
    if not probes:
        return None
    return Recorder(
        model, probes, [state.buffer for state in states], [state.regions for state in states]
    )
