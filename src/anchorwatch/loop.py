"""The one loop: ask the model about a group of drafts at once, let each draft choose by itself.

Each draft has its own generator, so that no answer depends on its batch mates.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from transformers import DynamicCache

from anchorwatch.attention import watching
from anchorwatch.decoding import Decoding, LeftToRight
from anchorwatch.editing import Editor, Standing
from anchorwatch.edits import Edit
from anchorwatch.fields import RunShape
from anchorwatch.measures import Record, View
from anchorwatch.models.model import Model
from anchorwatch.policies import Draft, Turn, choose, turns
from anchorwatch.regions import Regions
from anchorwatch.trace import MISSING
from anchorwatch.watch import Watch


@dataclass(frozen=True)
class Step:
    """One forward pass and the commits it led to."""

    index: int
    canvas: np.ndarray
    """[position] the frame before the step; -1 where a position does not exist yet."""
    positions: np.ndarray
    """Positions committed by the step (those where the mask id was chosen are not among them)."""
    tokens: np.ndarray
    logprobs: np.ndarray
    """Log-probability of each committed token."""
    mask_chosen: int
    """Positions where the step chose the mask id, which therefore stayed masked."""
    narrow: int
    """Decisions whose margin was under 1e-5."""
    random_state: np.ndarray | None = None
    """The generator before the step, where the decoding draws."""


@dataclass
class Job:
    """A draft on its way, and what its trace will say."""

    draft: Draft
    decoding: Decoding
    seed: int
    given: np.ndarray
    """[T] the first frame."""
    taken: list[Step]
    regions: Regions
    record: Record
    edits: tuple[Edit, ...]

    @property
    def autoregressive(self) -> bool:
        return self.decoding.writes == "absent"

    def take(self, logits: torch.Tensor, turn: Turn) -> Step:
        """Let the policy choose, and write what it chose."""
        draft, state = self.draft, None
        if self.decoding.draws:
            state = draft.generator.get_state().numpy()
        choice = choose(self.decoding, draft, turn, logits)
        keep = choice.tokens != draft.mask_id if draft.mask_id is not None else choice.tokens >= 0
        positions, tokens = choice.positions[keep], choice.tokens[keep]
        return self.write(positions, tokens, logits, int((~keep).sum()), choice.narrow, state)

    def write(
        self,
        positions: torch.Tensor,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        mask_chosen: int,
        narrow: int,
        state: np.ndarray | None,
    ) -> Step:
        """Put tokens on the canvas, with the log-probabilities the model gave them."""
        rows = logits[-1:] if self.autoregressive else logits[positions]
        spread = torch.log_softmax(rows.float(), dim=-1)
        logprobs = spread.gather(-1, tokens[:, None])[:, 0].cpu().numpy()
        return self.note(positions, tokens, logprobs, mask_chosen, narrow, state)

    def note(
        self,
        positions: torch.Tensor,
        tokens: torch.Tensor,
        logprobs: np.ndarray,
        mask_chosen: int,
        narrow: int,
        state: np.ndarray | None,
    ) -> Step:
        """Put tokens on the canvas and note the step."""
        draft, before = self.draft, self.frame()
        if self.autoregressive:
            draft.canvas = torch.cat([draft.canvas, tokens])
        else:
            draft.canvas[positions] = tokens
        step = Step(
            index=len(self.taken),
            canvas=before,
            positions=positions.cpu().numpy(),
            tokens=tokens.cpu().numpy(),
            logprobs=logprobs,
            mask_chosen=mask_chosen,
            narrow=narrow,
            random_state=state,
        )
        self.taken.append(step)
        return step

    def recorded(self) -> Step | None:
        """The next step where it is known already and needs no forward pass."""
        return None

    def decided(self, step: int) -> np.ndarray | None:
        """[layer, head, rank] keys that a known step hid; None where it is not known."""
        return None

    def members(self, groups: tuple[str, ...]) -> np.ndarray:
        """[group, position] bool: which positions belong to each query group right now."""
        canvas = self.frame()
        answer = np.zeros(len(canvas), dtype=bool)
        answer[self.draft.answer.cpu().numpy()] = True
        there = canvas != MISSING
        masked = there & answer & (canvas == self.draft.mask_id)
        found = {
            "all": there,
            "masked": masked,
            "written": there & answer & ~masked,
            "prompt": there & ~answer,
        }
        for region, name in enumerate(self.regions.names):
            found[name] = there & (self.regions.of == region)
        return np.stack([found[group] for group in groups])

    def frame(self) -> np.ndarray:
        """The canvas as it stands, absent positions as -1."""
        frame = np.full(len(self.given), MISSING, dtype=np.int64)
        frame[: len(self.draft.canvas)] = self.draft.canvas.cpu().numpy()
        return frame


def shape_of(
    model: Model, decoding: Decoding, positions: int, regions: tuple[str, ...]
) -> RunShape:
    """The sizes that decide how much a run keeps."""
    return RunShape(
        steps=decoding.num_passes,
        layers=model.num_layers,
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        positions=positions,
        regions=regions,
        branches=2 if getattr(decoding, "guidance", 0.0) > 0 else 1,
        sink=model.sink_id is not None,
        cached=getattr(decoding, "cache", False),
    )


def walk(model: Model, jobs: list[Job], watch: Watch | None = None) -> Iterator[tuple[int, Step]]:
    """The one loop: yields (which job, its step) until every job is done."""
    asks = _next_logits if jobs[0].autoregressive else _canvas_logits
    memory = Memory(watch=watch, editor=_editor(model, jobs))
    schedules = [turns(job.decoding, job.draft) for job in jobs]
    pending = {i: turn for i, schedule in enumerate(schedules) if (turn := next(schedule, None))}
    while pending:
        known = {i: step for i in pending if (step := jobs[i].recorded()) is not None}
        for i in known:  # nothing is asked about a step that is only repeated
            yield i, known[i]
        asked = {i: turn for i, turn in pending.items() if i not in known}
        for i, logits in (asks(model, jobs, asked, memory) if asked else {}).items():
            step = jobs[i].take(logits, asked[i])
            if watch is not None:
                watch.committed(i, step.positions)
            yield i, step
        pending = {i: turn for i in pending if (turn := next(schedules[i], None))}


@dataclass
class Memory:
    """What a walk carries from one forward pass to the next."""

    watch: Watch | None = None
    editor: Editor | None = None
    cache: DynamicCache | None = None


def _canvas_logits(
    model: Model, jobs: list[Job], pending: dict[int, Turn], memory: Memory
) -> dict[int, torch.Tensor]:
    """Aligned logits [T, V] for each active draft, guidance applied, padding taken off again."""
    rows: list[torch.Tensor] = []
    owners: list[tuple[int, str]] = []
    for i in pending:
        draft, guidance = jobs[i].draft, getattr(jobs[i].decoding, "guidance", 0.0)
        rows.append(draft.canvas)
        owners.append((i, ""))
        if guidance > 0:  # the second branch sees nothing but masks where the prompt stood
            blind = torch.full_like(draft.canvas, draft.mask_id or 0)
            blind[draft.answer] = draft.canvas[draft.answer]
            rows.append(blind)
            owners.append((i, "blind_"))
    canvases, padding = padded(rows, model.specials.pad_id)
    ahead = int(model.sink_id is not None)
    views = [
        replace(
            _view(jobs[i], i, branch, canvases.shape[1] - len(row) + ahead, len(row), ahead > 0),
            row=place,
        )
        for place, ((i, branch), row) in enumerate(zip(owners, rows, strict=True))
    ]
    size = (len(rows), canvases.shape[1] + ahead)
    with _watched(jobs, memory, views, pending, size):
        logits = model.logits(canvases, padding=padding)
    answers: dict[int, torch.Tensor] = {}
    for row, (i, branch) in enumerate(owners):
        own = logits[row, canvases.shape[1] - len(rows[row]) :]
        if branch:
            scale = jobs[i].decoding.guidance + 1  # type: ignore[attr-defined]
            answers[i] = own + scale * (answers[i] - own)
        else:
            answers[i] = own
    return answers


def _next_logits(
    model: Model, jobs: list[Job], pending: dict[int, Turn], memory: Memory
) -> dict[int, torch.Tensor]:
    """Logits [1, V] of the next token for each active draft, with or without a cache."""
    decoding = jobs[0].decoding
    assert isinstance(decoding, LeftToRight)
    # A cache keeps its columns: every row grows at every step, finished ones by something unread.
    steps = max(len(job.taken) for job in jobs)
    rows = []
    for job in jobs:
        filler = job.draft.canvas.new_full((steps - len(job.taken),), model.specials.pad_id)
        rows.append(torch.cat([job.draft.canvas, filler]))
    canvases, padding = padded(rows, model.specials.pad_id)
    fresh = canvases if memory.cache is None else canvases[:, -1:]
    views = []
    for i in pending:
        length = len(jobs[i].draft.canvas)
        view = _view(jobs[i], i, "", canvases.shape[1] - length, length, has_sink=False)
        if memory.cache is not None:
            view = replace(view, query_start=0, queries=1)
        views.append(replace(view, row=i))
    for looking in (memory.watch, memory.editor):
        if looking is not None:
            looking.cached = decoding.cache
    # Made without a config it keeps every key: a window is a matter of masks, as without a cache.
    held = DynamicCache() if memory.cache is None else memory.cache
    with _watched(jobs, memory, views, pending, fresh.shape):
        logits, cache = model.extend(fresh, padding=padding, cache=held)
    memory.cache = cache if decoding.cache else None
    return {i: logits[i : i + 1] for i in pending}


def _view(job: Job, i: int, branch: str, start: int, length: int, has_sink: bool) -> View:
    return View(i, branch, len(job.taken), start, start, length, length, has_sink)


def _editor(model: Model, jobs: list[Job]) -> Editor | None:
    """Edits at work on some jobs, which all have the same; None where there are none."""
    edits = jobs[0].edits
    return Editor(model, edits, [job.record for job in jobs]) if edits else None


def _standing(editor: Editor, job: Job) -> Standing:
    """What its edits need to know of a job before a pass."""
    canvas, answer = job.frame(), job.draft.answer.cpu().numpy()
    waits = (canvas[answer] == MISSING) | (canvas[answer] == job.draft.mask_id)
    return Standing(
        progress=1 - float(waits.mean()),
        members=dict(zip(editor.groups, job.members(editor.groups), strict=True)),
        classes=editor.classes(canvas),
        seed=job.seed,
        decided=job.decided(len(job.taken)),
    )


@contextmanager
def _watched(
    jobs: list[Job],
    memory: Memory,
    views: list[View],
    pending: dict[int, Turn],
    size: tuple[int, ...],
) -> Iterator[None]:
    """Let edits and probes have one forward pass, the probes where any looks at this step."""
    watch, editor = memory.watch, memory.editor
    watch = watch if watch is not None and watch.awake(views[0].step) else None
    with ExitStack() as stack:
        if editor is not None:
            standing = {view.job: _standing(editor, jobs[view.job]) for view in views}
            stack.enter_context(editor.over(views, standing))
        if watch is not None:
            told = _told(jobs, watch, views, pending)
            stack.enter_context(watch.over(views, *told, size, editor))
        elif editor is not None:
            stack.enter_context(watching(None, editor))
        yield


def _told(
    jobs: list[Job], watch: Watch, views: list[View], pending: dict[int, Turn]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Of each view the query groups its rows belong to, and whose row may be committed now."""
    members = [jobs[view.job].members(watch.groups)[:, : view.length] for view in views]
    opens = []
    for view in views:
        opened = np.zeros(view.length, dtype=bool)
        if jobs[view.job].autoregressive:
            opened[-1] = True  # the last row predicts the next token
        elif view.job in pending:
            opened |= pending[view.job].open.cpu().numpy()
        opens.append(opened)
    return members, opens


def padded(rows: list[torch.Tensor], pad_id: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rows as one batch, padded on the left; keys mark real tokens, None if nothing is padded."""
    longest = max(len(row) for row in rows)
    if all(len(row) == longest for row in rows):
        return torch.stack(rows), None
    batch = torch.full((len(rows), longest), pad_id, device=rows[0].device)
    for i, row in enumerate(rows):
        batch[i, longest - len(row) :] = row
    return batch, torch.tensor([longest - len(row) for row in rows], device=batch.device)
