"""The one loop: ask the model about a group of drafts at once, let each draft choose by itself.

Each draft has its own generator, so that no answer depends on its batch mates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from transformers import DynamicCache

from anchorwatch.edits.runtime import Editor, StepContext, worn_by
from anchorwatch.edits.spec import CanvasEdit, Edit, parts_among
from anchorwatch.generation.canvas_edits import CanvasEditor
from anchorwatch.generation.decoding import Decoding, LeftToRight
from anchorwatch.generation.policies import choose
from anchorwatch.generation.schedules import SequenceState, StepPlan, plan_steps
from anchorwatch.models.additions import PassAdditions
from anchorwatch.models.attention import observe
from anchorwatch.models.model import Model
from anchorwatch.probes.accumulate import TraceBuffer, View
from anchorwatch.probes.recorder import Recorder
from anchorwatch.trace.regions import Regions
from anchorwatch.trace.schema import RunShape
from anchorwatch.trace.trace import MISSING


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
class RunState:
    """A draft on its way, and what its trace will say."""

    draft: SequenceState
    decoding: Decoding
    seed: int
    given: np.ndarray
    """[T] the first frame."""
    taken: list[Step]
    regions: Regions
    record: TraceBuffer
    edits: tuple[Edit, ...]
    touches: CanvasEditor | None = field(init=False, default=None)
    """Edits of the canvas; None where there are none."""

    def __post_init__(self) -> None:
        if mine := self.canvas_edits():
            self.touches = CanvasEditor(mine, self.decoding, self.draft)

    def canvas_edits(self) -> tuple[Edit, ...]:
        """Edits that act on the canvas of this job."""
        return tuple(edit for edit in self.edits if isinstance(edit, CanvasEdit))

    @property
    def autoregressive(self) -> bool:
        return self.decoding.writes == "absent"

    def take(self, logits: torch.Tensor, turn: StepPlan) -> Step:
        """Let the policy choose, and write what it chose."""
        draft, state = self.draft, None
        if self.decoding.draws:
            state = draft.generator.get_state().numpy()
        forced = torch.tensor(turn.forced, dtype=torch.int64, device=draft.canvas.device)
        forced = forced.reshape(len(turn.forced), 2)
        if turn.frozen:
            return self.write(forced[:, 0], forced[:, 1], logits, 0, 0, state)
        choice = choose(self.decoding, draft, turn, logits)  # chance falls whatever is forced
        if turn.forced and self.autoregressive:
            return self.write(forced[:, 0], forced[:, 1], logits, 0, 0, state)
        keep = choice.tokens != draft.mask_id if draft.mask_id is not None else choice.tokens >= 0
        positions = torch.cat([forced[:, 0], choice.positions[keep]])
        tokens = torch.cat([forced[:, 1], choice.tokens[keep]])
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
        draft.step = len(self.taken)
        if self.touches is not None:
            self.record.put("own_token", (slice(None),), self.own())
        return step

    def touched(self, turn: StepPlan) -> StepPlan:
        """The turn as edits of the canvas leave it, the canvas as the step is to read it."""
        if self.touches is None:
            return turn
        return self.touches.before(turn, self.progress(), known=self.known(len(self.taken)))

    def known(self, step: int) -> bool:
        """Whether it is known what a step writes."""
        return False

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

    def progress(self) -> float:
        """Share of the answer written, to the bit as the trace will say."""
        answer = self.frame()[self.draft.answer.cpu().numpy()]
        return float(((answer != MISSING) & (answer != self.draft.mask_id)).mean())

    def own(self) -> np.ndarray:
        """The canvas as it stands, but for swapped tokens: what was given or committed."""
        return self.frame() if self.touches is None else self.touches.own(self.frame())

    def frame(self) -> np.ndarray:
        """The canvas as it stands, absent positions as -1."""
        frame = np.full(len(self.given), MISSING, dtype=np.int64)
        frame[: len(self.draft.canvas)] = self.draft.canvas.cpu().numpy()
        return frame


def shape_of(
    model: Model,
    decoding: Decoding,
    positions: int,
    regions: tuple[str, ...],
    edits: Sequence[Edit] = (),
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
        sink=any(part.columns for part in (*model.parts, *parts_among(edits))),
        cached=getattr(decoding, "cache", False),
    )


def walk(
    model: Model, jobs: list[RunState], watch: Recorder | None = None
) -> Iterator[tuple[int, Step]]:
    """The one loop: yields (which job, its step) until every job is done."""
    asks = _next_logits if jobs[0].autoregressive else _canvas_logits
    memory = Memory(watch=watch, editor=_editor(model, jobs))
    schedules = [plan_steps(job.decoding, job.draft) for job in jobs]
    pending = {i: turn for i, schedule in enumerate(schedules) if (turn := next(schedule, None))}
    while pending:
        pending = {i: jobs[i].touched(turn) for i, turn in pending.items()}
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

    watch: Recorder | None = None
    editor: Editor | None = None
    cache: DynamicCache | None = None


def _canvas_logits(
    model: Model, jobs: list[RunState], pending: dict[int, StepPlan], memory: Memory
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
    canvases, padding = pad_left(rows, model.specials.pad_id)
    for place, (i, branch) in enumerate(owners):
        if not branch:  # the other one has no prompt
            _verify_row(jobs[i], canvases[place])
    dress = _worn(model, [jobs[i] for i, _ in owners], [len(row) for row in rows])
    views = []
    for place, ((i, branch), own) in enumerate(zip(owners, rows, strict=True)):
        view = view_of(i, branch, canvases.shape[1] - len(own), len(own), dress)
        views.append(replace(view, row=place, step=len(jobs[i].taken)))
    size = (len(rows), canvases.shape[1] + (0 if dress is None else dress.ahead))
    with _attach(jobs, memory, views, pending, size, dress):
        logits = model.logits(canvases, padding=padding, parts=dress or ())
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
    model: Model, jobs: list[RunState], pending: dict[int, StepPlan], memory: Memory
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
    canvases, padding = pad_left(rows, model.specials.pad_id)
    fresh = canvases if memory.cache is None else canvases[:, -1:]
    dress, views = _worn(model, jobs, [len(row) for row in rows]), []
    for i in pending:
        length = len(jobs[i].draft.canvas)
        _verify_row(jobs[i], canvases[i])
        view = view_of(i, "", canvases.shape[1] - length, length, dress)
        if memory.cache is not None:
            view = replace(view, query_start=0, queries=1)
        views.append(replace(view, row=i, step=len(jobs[i].taken)))
    for looking in (memory.watch, memory.editor):
        if looking is not None:
            looking.cached = decoding.cache
    # Made without a config it keeps every key: a window is a matter of masks, as without a cache.
    held = DynamicCache() if memory.cache is None else memory.cache
    with _attach(jobs, memory, views, pending, fresh.shape, dress):
        logits, cache = model.extend(fresh, padding=padding, cache=held, parts=dress or ())
    memory.cache = cache if decoding.cache else None
    return {i: logits[i : i + 1] for i in pending}


def _verify_row(job: RunState, row: torch.Tensor) -> None:
    """Stop where a row of the batch, padded on the left, is not the canvas that edits ask for."""
    if job.touches is not None:
        job.touches.prove(row[len(row) - len(job.draft.canvas) :])


def view_of(job: int, branch: str, start: int, length: int, dress: PassAdditions | None) -> View:
    """Where a canvas that begins at column `start` lies in a pass, at step 0."""
    added, ahead = (0, 0) if dress is None else (dress.columns, dress.ahead)
    first = (start + added + ahead, start + ahead)
    return View(job, branch, 0, *first, length, length, added + ahead, added)


def _worn(model: Model, jobs: Sequence[RunState], ends: Sequence[int]) -> PassAdditions | None:
    clocks = [(len(job.taken), job.progress()) for job in jobs]
    return worn_by(model, jobs[0].edits, clocks, ends)


def _editor(model: Model, jobs: list[RunState]) -> Editor | None:
    """Edits at work on some jobs, which all have the same; None where there are none."""
    edits = [edit for edit in jobs[0].edits if not isinstance(edit, CanvasEdit)]
    works = edits or model.parts
    return Editor(model, edits, [job.record for job in jobs]) if works else None


def _step_context(editor: Editor, job: RunState) -> StepContext:
    """What its edits need to know of a job before a pass."""
    return StepContext(
        progress=job.progress(),
        members=dict(zip(editor.groups, job.members(editor.groups), strict=True)),
        classes=editor.classes(job.frame()),
        seed=job.seed,
        decided=job.decided(len(job.taken)),
        settled=job.known(job.decoding.num_passes - 1),
    )


@contextmanager
def _attach(
    jobs: list[RunState],
    memory: Memory,
    views: list[View],
    pending: dict[int, StepPlan],
    size: tuple[int, ...],
    dress: PassAdditions | None,
) -> Iterator[None]:
    """Let edits and probes have one forward pass, the probes where any looks at this step."""
    watch, editor = memory.watch, memory.editor
    watch = watch if watch is not None and watch.is_active(views[0].step) else None
    with ExitStack() as stack:
        if editor is not None:
            standing = {view.job: _step_context(editor, jobs[view.job]) for view in views}
            stack.enter_context(editor.over(views, standing, dress))
        if watch is not None:
            told = _announce_rows(jobs, watch, views, pending)
            stack.enter_context(watch.over(views, *told, size, editor))
        elif editor is not None:
            stack.enter_context(observe(None, editor))
        yield


def _announce_rows(
    jobs: list[RunState], watch: Recorder, views: list[View], pending: dict[int, StepPlan]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Of each view the query groups its rows belong to, and whose row may be committed now."""
    members = [jobs[view.job].members(watch.groups)[:, : view.length] for view in views]
    opens = []
    for view in views:
        opened = np.zeros(view.length, dtype=bool)
        if jobs[view.job].autoregressive:
            opened[-1] = True  # the last row predicts the next token
        elif view.job in pending:
            opened |= pending[view.job].reachable.cpu().numpy()
        opens.append(opened)
    return members, opens


def pad_left(rows: list[torch.Tensor], pad_id: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rows as one batch, padded on the left; keys mark real tokens, None if nothing is padded."""
    longest = max(len(row) for row in rows)
    if all(len(row) == longest for row in rows):
        return torch.stack(rows), None
    batch = torch.full((len(rows), longest), pad_id, device=rows[0].device)
    for i, row in enumerate(rows):
        batch[i, longest - len(row) :] = row
    return batch, torch.tensor([longest - len(row) for row in rows], device=batch.device)
