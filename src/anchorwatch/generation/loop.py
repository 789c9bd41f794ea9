"""The one loop: one forward pass for a group of sequences, then each commits by itself.

Each sequence has its own generator, so that no answer depends on its batch mates.
Shapes: T positions, V outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch
from transformers import DynamicCache

from anchorwatch.edits.runtime import Editor, StepContext, active_additions
from anchorwatch.edits.spec import CanvasEdit, Edit, additions_among
from anchorwatch.generation.cached_pass import KeptKeys, RunCache
from anchorwatch.generation.caches import approximate_cache
from anchorwatch.generation.canvas_editor import CanvasEditor
from anchorwatch.generation.decoding import Decoding, StepPlan
from anchorwatch.generation.sequence import RowLogits, SequenceState
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
    margins: np.ndarray
    """By how much each was likelier than the best other token, in nats; NaN where not known."""
    mask_chosen: int
    """Positions where the step chose the mask id, which therefore stayed masked."""
    narrow: int
    """Decisions whose margin was under 1e-5."""
    random_state: np.ndarray | None = None
    """The generator before the step, where the decoding draws."""


@dataclass
class RunState:
    """A run on its way: the sequence as it stands, the steps so far, and what was measured."""

    sequence: SequenceState
    decoding: Decoding
    seed: int
    first_frame: np.ndarray
    """[T] the first frame."""
    steps: list[Step]
    regions: Regions
    buffer: TraceBuffer
    edits: tuple[Edit, ...]
    canvas_editor: CanvasEditor | None = field(init=False, default=None)
    """Edits of the canvas; None where there are none."""
    row_spans: list[tuple[int, int]] = field(init=False, default_factory=list)
    """Of each step the first row it computes, and where its forward pass ends."""
    passes_computed: int = field(init=False, default=0)
    """Forward passes so far; a step that reads the canvas of the step before needs none."""
    rows_computed: int = field(init=False, default=0)
    """Query rows of all forward passes so far."""
    rows_unembedded: int = field(init=False, default=0)
    """Rows of which logits were computed."""
    cache: RunCache | None = field(init=False, default=None)
    """What an approximate cache keeps; None where the decoding has none."""

    def __post_init__(self) -> None:
        if mine := self.canvas_edits():
            self.canvas_editor = CanvasEditor(mine, self.decoding, self.sequence)
        if (cache := approximate_cache(self.decoding)) is not None:
            self.cache = RunCache(KeptKeys(cache))

    def canvas_edits(self) -> tuple[Edit, ...]:
        """Edits that act on the canvas of this run."""
        return tuple(edit for edit in self.edits if isinstance(edit, CanvasEdit))

    @property
    def counts_rows(self) -> bool:
        """Whether its forward passes are those of the decoding, one for each step."""
        return True

    @property
    def needs_every_pass(self) -> bool:
        """Whether each step needs its forward pass, also where it reads the canvas of the last."""
        return self.cache is not None or bool(self.edits)

    @property
    def is_autoregressive(self) -> bool:
        return self.decoding.writes == "absent"

    def positions_read(self, plan: StepPlan) -> torch.Tensor | None:
        """[n] positions whose logits a step reads, in order; None for all of the canvas."""
        return self.decoding.positions_read(plan)

    def count_pass(self, rows: int, unembedded: int) -> None:
        """Count one forward pass of so many query rows, and so many rows of logits."""
        self.passes_computed += 1
        self.rows_computed += rows
        self.rows_unembedded += unembedded

    def commit(self, logits: torch.Tensor, plan: StepPlan) -> Step:
        """Let the decoding choose, and write what it chose."""
        sequence, random_state = self.sequence, None
        if self.decoding.draws:
            random_state = sequence.generator.get_state().numpy()
        forced = torch.tensor(plan.forced, dtype=torch.int64, device=sequence.canvas.device)
        forced = forced.reshape(len(plan.forced), 2)
        if plan.frozen:
            return self.write_tokens(forced[:, 0], forced[:, 1], logits, 0, 0, random_state)
        # The decoding draws its random numbers whatever is forced: those of later steps stay alike.
        choice = self.decoding.choose(sequence, plan, logits)
        if plan.forced and self.is_autoregressive:
            return self.write_tokens(forced[:, 0], forced[:, 1], logits, 0, 0, random_state)
        keep = choice.tokens >= 0
        if sequence.mask_id is not None:
            # Choosing the mask id commits nothing; where a token stood it is masked again.
            keep = (choice.tokens != sequence.mask_id) | ~sequence.masked[choice.positions]
        positions = torch.cat([forced[:, 0], choice.positions[keep]])
        tokens = torch.cat([forced[:, 1], choice.tokens[keep]])
        mask_chosen = int((~keep).sum())
        return self.write_tokens(
            positions, tokens, logits, mask_chosen, choice.narrow, random_state
        )

    def write_tokens(
        self,
        positions: torch.Tensor,
        tokens: torch.Tensor,
        logits: torch.Tensor,
        mask_chosen: int,
        narrow: int,
        random_state: np.ndarray | None,
    ) -> Step:
        """Put tokens on the canvas, with the log-probabilities the model gave them."""
        rows = logits[-1:] if self.is_autoregressive else logits[positions]
        # float32 whatever the model computes in: the log-probability is what the trace keeps.
        rows = rows.float()
        committed = rows.gather(-1, tokens[:, None])[:, 0]
        logprobs = torch.log_softmax(rows, dim=-1).gather(-1, tokens[:, None])[:, 0]
        # The best other token is the second best where the committed one is the best.
        best = rows.topk(2, dim=-1)
        other = torch.where(best.indices[:, 0] == tokens, best.values[:, 1], best.values[:, 0])
        scores = (logprobs.cpu().numpy(), (committed - other).cpu().numpy())
        return self.append_step(positions, tokens, scores, mask_chosen, narrow, random_state)

    def append_step(
        self,
        positions: torch.Tensor,
        tokens: torch.Tensor,
        scores: tuple[np.ndarray, np.ndarray],
        mask_chosen: int,
        narrow: int,
        random_state: np.ndarray | None,
    ) -> Step:
        """Put tokens on the canvas and keep the step; `scores` are (logprobs, margins)."""
        # 1. The frame before the step, then the tokens.
        sequence, before = self.sequence, self.frame()
        if self.is_autoregressive:
            sequence.canvas = torch.cat([sequence.canvas, tokens])
        else:
            sequence.canvas[positions] = tokens
        # 2. The step as the trace will tell it.
        step = Step(
            index=len(self.steps),
            canvas=before,
            positions=positions.cpu().numpy(),
            tokens=tokens.cpu().numpy(),
            logprobs=scores[0],
            margins=scores[1],
            mask_chosen=mask_chosen,
            narrow=narrow,
            random_state=random_state,
        )
        self.steps.append(step)
        sequence.step = len(self.steps)
        # What stood where a token is swapped, so that the trace has what was given or committed.
        if self.canvas_editor is not None:
            self.buffer.put("own_token", (slice(None),), self.unswapped_frame())
        return step

    def edit_canvas(self, plan: StepPlan) -> StepPlan:
        """The plan as edits of the canvas leave it, the canvas as the step is to read it."""
        if self.canvas_editor is None:
            return plan
        known = self.is_known(len(self.steps))
        return self.canvas_editor.prepare_step(plan, self.progress(), known=known)

    def is_known(self, step: int) -> bool:
        """Whether it is known what a step writes."""
        return False

    def next_known_step(self) -> Step | None:
        """The next step where it is known already and needs no forward pass."""
        return None

    def known_rows(self, step: int) -> np.ndarray | None:
        """[T] bool: rows that a known step computed with a cache; None where it is not known."""
        return None

    def known_hidden_keys(self, step: int) -> np.ndarray | None:
        """[layer, head, rank] keys that a known step hid; None where it is not known."""
        return None

    def members(self, groups: tuple[str, ...]) -> np.ndarray:
        """[group, position] bool: which positions belong to each query group right now."""
        # Masked and written are of the answer; a mask inside the prompt belongs to the prompt.
        canvas = self.frame()
        answer = np.zeros(len(canvas), dtype=bool)
        answer[self.sequence.answer.cpu().numpy()] = True
        present = canvas != MISSING
        masked = present & answer & (canvas == self.sequence.mask_id)
        members = {
            "all": present,
            "masked": masked,
            "written": present & answer & ~masked,
            "prompt": present & ~answer,
        }
        for region, name in enumerate(self.regions.names):
            members[name] = present & (self.regions.of == region)
        return np.stack([members[group] for group in groups])

    def progress(self) -> float:
        """Share of the answer written, to the bit as the trace will say."""
        # As the trace computes it: an edit then acts at the same steps of a replay.
        answer = self.frame()[self.sequence.answer.cpu().numpy()]
        return float(((answer != MISSING) & (answer != self.sequence.mask_id)).mean())

    def unswapped_frame(self) -> np.ndarray:
        """The canvas as it stands, but for swapped tokens: what was given or committed."""
        return (
            self.frame()
            if self.canvas_editor is None
            else self.canvas_editor.put_back(self.frame())
        )

    def frame(self) -> np.ndarray:
        """The canvas as it stands, absent positions as -1."""
        frame = np.full(len(self.first_frame), MISSING, dtype=np.int64)
        frame[: len(self.sequence.canvas)] = self.sequence.canvas.cpu().numpy()
        return frame


def start_sequence(model: Model, frame: np.ndarray, answer: np.ndarray, seed: int) -> SequenceState:
    """A sequence before its first step: what exists of `frame` [T], to be written at `answer`."""
    return SequenceState(
        canvas=torch.tensor(frame[frame != MISSING], device=model.device),
        answer=torch.tensor(answer, device=model.device),
        mask_id=model.specials.mask_id,
        end_ids=model.specials.end_ids,
        eos_ids=model.specials.eos_ids,
        generator=torch.Generator(device=model.device).manual_seed(seed),
    )


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
        sink=any(part.columns for part in (*model.parts, *additions_among(edits))),
        cached=bool(getattr(decoding, "cache", False)),
        approximate=approximate_cache(decoding) is not None,
        evicting=getattr(approximate_cache(decoding), "evicts", False),
        experts=model.num_experts,
        experts_per_token=model.num_experts_per_token,
    )


def walk(
    model: Model,
    states: list[RunState],
    recorder: Recorder | None = None,
    shared: SharedPrompts | None = None,
) -> Iterator[tuple[int, Step]]:
    """The one loop: yields (which run, its step) until every run is done.

    `shared` holds what walks before this one read of prompts that begin alike.
    """
    compute_logits = _next_logits if states[0].is_autoregressive else _canvas_logits
    if _keeps_blocks(states[0].decoding):
        compute_logits = _block_logits
    elif states[0].cache is not None:
        compute_logits = _cached_logits
    memory = Memory(recorder, _build_editor(model, states), shared or SharedPrompts())
    schedules = [state.decoding.plan_steps(state.sequence) for state in states]
    pending = {i: plan for i, schedule in enumerate(schedules) if (plan := next(schedule, None))}
    while pending:
        # 1. Edits of the canvas act before the model reads it.
        pending = {i: states[i].edit_canvas(plan) for i, plan in pending.items()}
        for i, plan in pending.items():
            states[i].row_spans.append(_row_span(model, states[i], plan))
        # 2. Steps that a trace knows already and nobody measures need no forward pass.
        known = {i: step for i in pending if (step := states[i].next_known_step()) is not None}
        yield from known.items()
        # 3. One forward pass for all others, unless they read what the last one read; each run
        #    then commits by itself.
        computed = {i: plan for i, plan in pending.items() if i not in known}
        logits_of = memory.repeat_logits(states, computed)
        if logits_of is None:
            logits_of = compute_logits(model, states, computed, memory)
            memory.keep_logits(states, logits_of)
        for i, logits in logits_of.items():
            step = states[i].commit(logits, computed[i])
            if recorder is not None:
                recorder.on_commit(i, step.positions)
            yield i, step
        # 4. The schedules look at what was written and plan the next step, or end.
        pending = {i: plan for i in pending if (plan := next(schedules[i], None))}


@dataclass
class Memory:
    """What a walk carries from one forward pass to the next."""

    recorder: Recorder | None
    editor: Editor | None
    shared: SharedPrompts
    cache: DynamicCache | None = None
    cache_starts: dict[int, int] = field(default_factory=dict)
    """By run, in the order of the cache's rows: columns of padding before its first token."""
    blocks: dict[int, BlockCache] = field(default_factory=dict)
    """By run: keys and values of its finished blocks."""
    last: dict[int, tuple[torch.Tensor, RowLogits]] = field(default_factory=dict)
    """By run: the canvas that the last pass read, and its logits."""

    def keep_logits(self, states: list[RunState], logits_of: dict[int, torch.Tensor]) -> None:
        """Keep what a pass gave, for steps that read the same canvas again."""
        self.last = {}
        for i, logits in logits_of.items():
            if isinstance(cast(object, logits), RowLogits):
                self.last[i] = (states[i].sequence.canvas.clone(), cast(RowLogits, logits))

    def repeat_logits(
        self, states: list[RunState], pending: dict[int, StepPlan]
    ) -> dict[int, torch.Tensor] | None:
        """The last pass's logits where the next one would give the same; None where it may not.

        All runs of the pass or none: what shares a pass does not depend on who watches.
        """
        for i, plan in pending.items():
            state = states[i]
            watched = self.recorder is not None and self.recorder.is_active(len(state.steps))
            if watched or state.needs_every_pass or i not in self.last:
                return None
            (canvas, logits), positions = self.last[i], state.positions_read(plan)
            if positions is None or not torch.equal(canvas, state.sequence.canvas):
                return None
            if not logits.covers(positions):
                return None
        return {i: cast(torch.Tensor, self.last[i][1]) for i in pending}


@dataclass
class BlockCache:
    """Keys and values of the first positions of a canvas, and the tokens they were computed of."""

    cache: DynamicCache = field(default_factory=DynamicCache)
    ids: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    """[n] the tokens; in blocks, n is a multiple of the block."""


class SharedPrompts:
    """Keys and values of the prompt that was read last, for runs whose prompts begin alike.

    Exact where no token sees a later one, or no block a later one: what a prompt begins with then
    has the same keys and values whatever follows.
    """

    def __init__(self) -> None:
        self._ids = torch.zeros(0, dtype=torch.int64)
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(self, ids: torch.Tensor, cache: DynamicCache) -> None:
        """Keep the prompt `ids` [n], whose keys and values are the first n of the cache."""
        count = len(ids)
        self._ids = ids.clone()
        self._layers = [
            (layer.keys[..., :count, :], layer.values[..., :count, :]) for layer in cache.layers
        ]

    def start(self, ids: torch.Tensor, multiple: int = 1) -> BlockCache:
        """A cache of as much as `ids` [n] begins like the kept prompt, in whole multiples."""
        count = min(len(ids), len(self._ids))
        same = self._ids[:count].to(ids.device) == ids[:count]
        count = int(same.long().cumprod(0).sum()) // multiple * multiple
        begun = BlockCache(ids=ids[:count].clone())
        for layer, (keys, values) in enumerate(self._layers if count else ()):
            begun.cache.update(keys[..., :count, :], values[..., :count, :], layer)
        return begun


def _keeps_blocks(decoding: Decoding) -> bool:
    return decoding.blockwise and bool(getattr(decoding, "cache", False))


def _row_span(model: Model, state: RunState, plan: StepPlan) -> tuple[int, int]:
    """The first row that a step computes, and where its forward pass ends.

    The whole canvas; where no block sees a later one, up to the end of the open block, and with a
    cache only that block.
    """
    length = len(state.sequence.canvas)
    if not state.decoding.blockwise or model.family.visibility != "block-causal":
        return 0, length
    block = int(state.decoding.block)  # type: ignore[attr-defined]
    touched = plan.open if plan.editable is None else plan.open | plan.editable
    start = int(touched.nonzero()[0, 0]) // block * block
    return start if _keeps_blocks(state.decoding) else 0, min(start + block, length)


def _block_logits(
    model: Model, states: list[RunState], pending: dict[int, StepPlan], memory: Memory
) -> dict[int, torch.Tensor]:
    """Logits of the open block of each pending run, with the keys of its finished blocks kept.

    Exact: a finished block sees no later one, so that its keys and values never change.
    """
    answers: dict[int, torch.Tensor] = {}
    for i, plan in pending.items():
        # 1. The open block, and the tokens before it that the cache must be of.
        state, block = states[i], int(states[i].decoding.block)  # type: ignore[attr-defined]
        canvas, (start, end) = state.sequence.canvas, state.row_spans[-1]
        if i not in memory.blocks:
            memory.blocks[i] = memory.shared.start(canvas[:start], block)
        kept, first = memory.blocks[i], not state.passes_computed
        # 2. What the cache has of other tokens is let go of; finished blocks that it lacks are
        #    computed once, unseen by probes: they are no step.
        done = min(len(kept.ids), start)
        kept.ids = kept.ids.to(canvas.device)
        if not torch.equal(kept.ids[:done], canvas[:done]):
            done = int((kept.ids[:done] != canvas[:done]).nonzero()[0, 0]) // block * block
        if done < len(kept.ids):
            kept.cache.crop(done - len(kept.ids))
        if done < start:
            model.extend_blocks(canvas[done:start], kept.cache, block, keep=True)
            state.rows_computed += start - done
        kept.ids = canvas[:start].clone()
        if first:
            memory.shared.keep(kept.ids, kept.cache)
        # 3. The rows of the open block, seen by probes.
        view = View(i, "", len(state.steps), 0, 0, end, end - start)
        with _attach(states, memory, [view], {i: plan}, (1, end - start), None):
            rows = model.extend_blocks(canvas[start:end], kept.cache, block, keep=False)
        state.count_pass(end - start, end - start)
        positions = torch.arange(start, end, device=rows.device)
        answers[i] = cast(torch.Tensor, RowLogits(rows, positions, len(canvas)))
    return answers


def _cached_logits(
    model: Model, states: list[RunState], pending: dict[int, StepPlan], memory: Memory
) -> dict[int, torch.Tensor]:
    """Logits that each pending run reads, of a pass over the rows that its cache does not keep."""
    answers: dict[int, torch.Tensor] = {}
    for i, plan in pending.items():
        # 1. Rows that the cache asks for, and those that predict what the step reads.
        state, run_cache = states[i], states[i].cache
        canvas, positions = state.sequence.canvas, state.positions_read(plan)
        assert run_cache is not None and positions is not None
        now = run_cache.context(state.sequence, state.decoding, plan)
        chosen = state.known_rows(len(state.steps))
        if chosen is None:
            chosen = run_cache.kept.cache.rows(now)
            read = positions.cpu().numpy()
            chosen[np.maximum(read - int(model.family.shift), 0)] = True
        run_cache.rows.append(chosen)
        # 2. One pass over them, seen by probes.
        mask = torch.from_numpy(chosen).to(canvas.device)
        rows = mask.nonzero()[:, 0]
        view = View(i, "", len(state.steps), 0, 0, len(canvas), len(rows))
        if len(rows) < len(canvas):
            view = replace(view, positions=tuple(rows.tolist()))
        run_cache.kept.begin_pass(mask, now)
        with _attach(states, memory, [view], {i: plan}, (1, len(rows)), None):
            logits = model.logits_of_rows(canvas, rows, positions, run_cache.kept)
        run_cache.kept.end_pass()
        state.count_pass(len(rows), len(positions))
        answers[i] = cast(torch.Tensor, RowLogits(logits, positions, len(canvas)))
    return answers


def _canvas_logits(
    model: Model, states: list[RunState], pending: dict[int, StepPlan], memory: Memory
) -> dict[int, torch.Tensor]:
    """Aligned logits of each pending run, guidance applied, padding taken off again.

    Only rows that the step reads are unembedded, unless some run of the pass reads all of them.
    """
    # 1. One row of the batch for each canvas, and a second one under guidance.
    rows: list[torch.Tensor] = []
    owners: list[tuple[int, str]] = []
    for i in pending:
        sequence, guidance = states[i].sequence, getattr(states[i].decoding, "guidance", 0.0)
        rows.append(sequence.canvas[: states[i].row_spans[-1][1]])
        owners.append((i, ""))
        if guidance > 0:  # the second branch sees nothing but masks where the prompt stood
            blind = torch.full_like(sequence.canvas, sequence.mask_id or 0)
            blind[sequence.answer] = sequence.canvas[sequence.answer]
            rows.append(blind)
            owners.append((i, "blind_"))
    canvases, padding = pad_left(rows, model.specials.pad_id)
    width = canvases.shape[1]
    for row, (i, branch) in enumerate(owners):
        if not branch:  # the other one has no prompt
            after = states[i].sequence.canvas[len(rows[row]) :]
            _verify_row(states[i], torch.cat([canvases[row], after]))
    # 2. Where each canvas lies in the pass, for probes and edits.
    lengths = [len(row) for row in rows]
    additions = _active_additions(model, [states[i] for i, _ in owners], lengths)
    views = []
    for row, ((i, branch), length) in enumerate(zip(owners, lengths, strict=True)):
        view = view_of(i, branch, width - length, length, additions)
        views.append(replace(view, row=row, step=len(states[i].steps)))
    # 3. The forward pass, measured and edited.
    size = (len(rows), width + (0 if additions is None else additions.num_prefix_tokens))
    how = states[owners[0][0]].decoding
    block = int(how.block) if how.blockwise else None  # type: ignore[attr-defined]
    columns, own_columns = _columns_read(states, pending, owners, lengths)
    with _attach(states, memory, views, pending, size, additions):
        logits = model.logits(
            canvases, padding=padding, parts=additions or (), block=block, columns=columns
        )
    for (i, _), length in zip(owners, lengths, strict=True):
        states[i].count_pass(length, logits.shape[1])
    # 4. Guidance: blind + (scale + 1) * (prompted - blind). The prompted row comes first.
    answers: dict[int, torch.Tensor] = {}
    for row, (i, branch) in enumerate(owners):
        own = logits[row, own_columns[row]]
        if branch:
            scale = states[i].decoding.guidance + 1  # type: ignore[attr-defined]
            answers[i] = own + scale * (answers[i] - own)
        else:
            answers[i] = own
    if columns is None:
        return answers
    for i, plan in pending.items():
        positions, length = states[i].positions_read(plan), len(states[i].sequence.canvas)
        assert positions is not None
        answers[i] = cast(torch.Tensor, RowLogits(answers[i], positions, length))
    return answers


def _columns_read(
    states: list[RunState],
    pending: dict[int, StepPlan],
    owners: list[tuple[int, str]],
    lengths: list[int],
) -> tuple[torch.Tensor | None, list[torch.Tensor | slice]]:
    """(columns of a padded batch that some run reads, each row's own among those).

    Where a run reads all its positions the columns are None, and each row has all of its canvas.
    """
    width, read = max(lengths), {i: states[i].positions_read(plan) for i, plan in pending.items()}
    everything: list[torch.Tensor | slice] = [slice(width - length, None) for length in lengths]
    if any(positions is None for positions in read.values()):
        return None, everything
    shifted = [
        cast(torch.Tensor, read[i]) + width - length
        for (i, _), length in zip(owners, lengths, strict=True)
    ]
    columns = torch.unique(torch.cat(shifted))
    return columns, [torch.searchsorted(columns, mine) for mine in shifted]


def _next_logits(
    model: Model, states: list[RunState], pending: dict[int, StepPlan], memory: Memory
) -> dict[int, torch.Tensor]:
    """Logits [1, V] of the next token of each pending run, with or without a cache."""
    keeps_cache = bool(getattr(states[0].decoding, "cache", False))
    # 1. The rows of runs that go on; those of finished ones leave the cache. A cache keeps its
    #    columns: each row begins where it began.
    runs = list(pending)
    first = memory.cache is None
    if first:
        longest = max(len(states[i].sequence.canvas) for i in runs)
        memory.cache_starts = {i: longest - len(states[i].sequence.canvas) for i in runs}
    elif runs != list(memory.cache_starts):
        order = list(memory.cache_starts)
        kept = torch.tensor([order.index(i) for i in runs], device=model.device)
        cast(DynamicCache, memory.cache).batch_select_indices(kept)
        memory.cache_starts = {i: memory.cache_starts[i] for i in runs}
    starts = memory.cache_starts
    rows = [
        torch.nn.functional.pad(
            states[i].sequence.canvas, (starts[i], 0), value=model.specials.pad_id
        )
        for i in runs
    ]
    canvases = torch.stack(rows)
    padding = torch.tensor(list(starts.values()), device=canvases.device)
    # 2. What an earlier prompt began with is not read again where nobody watches or edits.
    ends = [len(states[i].sequence.canvas) for i in runs]
    additions, views = _active_additions(model, [states[i] for i in runs], ends), []
    unseen = memory.recorder is None and memory.editor is None and additions is None
    shares = first and keeps_cache and unseen and len(states) == 1
    begun = memory.shared.start(canvases[0, :-1]) if shares else BlockCache()
    fresh = canvases[:, len(begun.ids) :] if first else canvases[:, -1:]
    # 3. Where each canvas lies in the pass; with a cache its last row alone is a query.
    for row, i in enumerate(runs):
        _verify_row(states[i], canvases[row])
        view = view_of(i, "", starts[i], ends[row], additions)
        if not first:
            view = replace(view, query_start=0, queries=1)
        views.append(replace(view, row=row, step=len(states[i].steps)))
    for observer in (memory.recorder, memory.editor):
        if observer is not None:
            observer.cached = keeps_cache
    # 4. The forward pass. A cache without a config keeps every key: a sliding window is a matter of
    #    masks, as it is without a cache.
    cache = begun.cache if memory.cache is None else memory.cache
    with _attach(states, memory, views, pending, fresh.shape, additions):
        logits, cache = model.extend(
            fresh,
            padding=padding if bool(padding.any()) else None,
            cache=cache,
            parts=additions or (),
        )
    memory.cache = cache if keeps_cache else None
    if shares:
        memory.shared.keep(canvases[0], cache)
    for i in runs:
        states[i].count_pass(fresh.shape[1], 1)
    return {i: logits[row : row + 1] for row, i in enumerate(runs)}


def _verify_row(state: RunState, row: torch.Tensor) -> None:
    """Stop where a row of the batch, padded on the left, is not the canvas that edits ask for."""
    if state.canvas_editor is not None:
        state.canvas_editor.verify(row[len(row) - len(state.sequence.canvas) :])


def view_of(
    run: int, branch: str, start: int, length: int, additions: PassAdditions | None
) -> View:
    """Where a canvas that begins at column `start` lies in a pass, at step 0."""
    added, ahead = (0, 0) if additions is None else (additions.columns, additions.num_prefix_tokens)
    # Added keys are keys only; registers and other prefix tokens are queries too.
    first = (start + added + ahead, start + ahead)
    return View(run, branch, 0, *first, length, length, added + ahead, added)


def _active_additions(
    model: Model, states: Sequence[RunState], ends: Sequence[int]
) -> PassAdditions | None:
    clocks = [(len(state.steps), state.progress()) for state in states]
    return active_additions(model, states[0].edits, clocks, ends)


def _build_editor(model: Model, states: list[RunState]) -> Editor | None:
    """The editor of some runs, which all have the same edits; None where there are none."""
    edits = [edit for edit in states[0].edits if not isinstance(edit, CanvasEdit)]
    needed = edits or model.parts
    return Editor(model, edits, [state.buffer for state in states]) if needed else None


def _step_context(editor: Editor, state: RunState) -> StepContext:
    """What edits need to know of a run before a pass."""
    return StepContext(
        progress=state.progress(),
        members=dict(zip(editor.groups, state.members(editor.groups), strict=True)),
        classes=editor.token_classes(state.frame()),
        seed=state.seed,
        known_keys=state.known_hidden_keys(len(state.steps)),
        all_known=state.is_known(state.decoding.num_passes - 1),
    )


@contextmanager
def _attach(
    states: list[RunState],
    memory: Memory,
    views: list[View],
    pending: dict[int, StepPlan],
    size: tuple[int, ...],
    additions: PassAdditions | None,
) -> Iterator[None]:
    """Let edits and probes take part in one forward pass, probes where any looks at this step."""
    recorder, editor = memory.recorder, memory.editor
    recorder = recorder if recorder is not None and recorder.is_active(views[0].step) else None
    with ExitStack() as stack:
        if editor is not None:
            # The editor comes first: probes see attention as edits leave it.
            contexts = {view.run: _step_context(editor, states[view.run]) for view in views}
            stack.enter_context(editor.edit_pass(views, contexts, additions))
        if recorder is not None:
            rows = _describe_rows(states, recorder, views, pending)
            stack.enter_context(recorder.record_pass(views, *rows, size, editor))
        elif editor is not None:
            stack.enter_context(observe(None, editor))
        yield


def _describe_rows(
    states: list[RunState], recorder: Recorder, views: list[View], pending: dict[int, StepPlan]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Of each view the query groups its rows belong to, and whose row may be committed now."""
    members = [states[view.run].members(recorder.groups)[:, : view.length] for view in views]
    reachable = []
    for view in views:
        rows = np.zeros(view.length, dtype=bool)
        if states[view.run].is_autoregressive:
            rows[-1] = True  # the last row predicts the next token
        elif view.run in pending:
            rows |= pending[view.run].reachable.cpu().numpy()[: view.length]
        reachable.append(rows)
    return members, reachable


def pad_left(rows: list[torch.Tensor], pad_id: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rows as one batch, padded on the left; keys mark real tokens, None if nothing is padded."""
    # Left padding: the last column is the newest token of every row, as a cache needs it.
    longest = max(len(row) for row in rows)
    if all(len(row) == longest for row in rows):
        return torch.stack(rows), None
    batch = torch.full((len(rows), longest), pad_id, device=rows[0].device)
    for i, row in enumerate(rows):
        batch[i, longest - len(row) :] = row
    return batch, torch.tensor([longest - len(row) for row in rows], device=batch.device)
