"""Where model and decoding meet: `run` one prompt, `run_many`, or `steps` one at a time.

There is one loop (`_walk`). It asks the model about a group of drafts at once and lets each draft
choose by itself, with its own generator, so that no answer depends on its batch mates.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from transformers import DynamicCache

from anchorwatch._version import __version__
from anchorwatch.decoding import Decoding, LeftToRight, LowConfidence
from anchorwatch.errors import PromptError, SpecError
from anchorwatch.models.model import Model, Prompt
from anchorwatch.policies import Draft, choose, turns
from anchorwatch.progress import Progress
from anchorwatch.trace import (
    ABSENT,
    FRESH,
    MASKED,
    MISSING,
    PROMPT,
    SPECIAL,
    WRITTEN,
    Trace,
    make_trace,
)

DEFAULT_LENGTH = 64


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


def run(
    model: Model,
    prompt: Prompt | None = None,
    decoding: Decoding | None = None,
    *,
    canvas: Sequence[int] | np.ndarray | torch.Tensor | None = None,
    seed: int = 0,
) -> Trace:
    """Write an answer to `prompt`, or infill the masked positions of `canvas`; keep every frame.

    >>> from anchorwatch.models.loading import load
    >>> trace = run(load("tiny/llada"), "the anchor", LowConfidence(length=4))
    >>> trace.canvas.shape[0]
    5
    """
    job = _job(model, prompt, canvas, decoding, seed)
    with Progress("writing", total=_passes(job.decoding)) as bar:
        for _, step in _walk(model, [job]):
            bar.advance(str(step.index))
    return job.trace(model, batch=1)


def run_many(
    model: Model,
    prompts: Sequence[Prompt],
    decoding: Decoding | None = None,
    *,
    seed: int = 0,
    batch: int | None = None,
) -> list[Trace]:
    """One trace for each prompt; prompt i is run with seed + i, as `run(..., seed=seed + i)` would.

    `batch` rows share a forward pass. The default is 1 on a CPU, where the rows are then equal to
    single runs bit for bit, and 8 elsewhere. Rows of unequal length are padded on the left.
    """
    size = batch if batch is not None else (1 if model.device.type == "cpu" else 8)
    if size < 1:
        raise SpecError(f"batch={batch} is not a whole number of at least 1")
    jobs = [_job(model, prompt, None, decoding, seed + i) for i, prompt in enumerate(prompts)]
    with Progress("writing", total=len(jobs)) as bar:
        for start in range(0, len(jobs), size):
            group = jobs[start : start + size]
            for _ in _walk(model, group):
                pass
            bar.advance(count=len(group))
    return [job.trace(model, batch=size) for job in jobs]


def steps(
    model: Model,
    prompt: Prompt | None = None,
    decoding: Decoding | None = None,
    *,
    canvas: Sequence[int] | np.ndarray | torch.Tensor | None = None,
    seed: int = 0,
) -> Iterator[Step]:
    """The same run, one step at a time."""
    job = _job(model, prompt, canvas, decoding, seed)
    return (step for _, step in _walk(model, [job]))


@dataclass
class _Job:
    """A draft on its way, and what its trace will say."""

    draft: Draft
    decoding: Decoding
    seed: int
    given: np.ndarray
    """[T] the first frame."""
    taken: list[Step]

    @property
    def autoregressive(self) -> bool:
        return self.decoding.writes == "absent"

    def take(self, logits: torch.Tensor, turn: Any) -> Step:
        """Let the policy choose, and write what it chose."""
        draft = self.draft
        choice = choose(self.decoding, draft, turn, logits)
        before = self.frame()
        keep = choice.tokens != draft.mask_id if draft.mask_id is not None else choice.tokens >= 0
        positions, tokens = choice.positions[keep], choice.tokens[keep]
        rows = logits[-1:] if self.autoregressive else logits[positions]
        spread = torch.log_softmax(rows.float(), dim=-1)
        logprobs = spread.gather(-1, tokens[:, None])[:, 0]
        if self.autoregressive:
            draft.canvas = torch.cat([draft.canvas, tokens])
        else:
            draft.canvas[positions] = tokens
        step = Step(
            index=len(self.taken),
            canvas=before,
            positions=positions.cpu().numpy(),
            tokens=tokens.cpu().numpy(),
            logprobs=logprobs.cpu().numpy(),
            mask_chosen=int((~keep).sum()),
            narrow=choice.narrow,
        )
        self.taken.append(step)
        return step

    def frame(self) -> np.ndarray:
        """The canvas as it stands, absent positions as -1."""
        frame = np.full(len(self.given), MISSING, dtype=np.int64)
        frame[: len(self.draft.canvas)] = self.draft.canvas.cpu().numpy()
        return frame

    def trace(self, model: Model, batch: int) -> Trace:
        answer = self.draft.answer.cpu().numpy()
        canvas = np.stack([step.canvas for step in self.taken] + [self.frame()])
        committed_at = np.full(canvas.shape[1], MISSING)
        logprob = np.full(canvas.shape[1], np.nan)
        for step in self.taken:
            committed_at[step.positions] = step.index
            logprob[step.positions] = step.logprobs
        return make_trace(
            canvas=canvas,
            role=_roles(canvas, committed_at, answer, model),
            committed_at=committed_at,
            logprob=logprob,
            mask_chosen=np.array([step.mask_chosen for step in self.taken]),
            narrow=np.array([step.narrow for step in self.taken]),
            manifest=_manifest(model, self, canvas, answer, batch),
        )


def _walk(model: Model, jobs: list[_Job]) -> Iterator[tuple[int, Step]]:
    """The one loop: yields (which job, its step) until every job is done."""
    asks = _next_logits if jobs[0].autoregressive else _canvas_logits
    memory: dict[str, Any] = {}
    schedules = [turns(job.decoding, job.draft) for job in jobs]
    pending = {i: turn for i, schedule in enumerate(schedules) if (turn := next(schedule, None))}
    while pending:
        answers = asks(model, jobs, list(pending), memory)
        for i, logits in answers.items():
            yield i, jobs[i].take(logits, pending[i])
        pending = {i: turn for i in pending if (turn := next(schedules[i], None))}


def _canvas_logits(
    model: Model, jobs: list[_Job], active: list[int], _: dict[str, Any]
) -> dict[int, torch.Tensor]:
    """Aligned logits [T, V] for each active draft, guidance applied, padding taken off again."""
    rows, owners = [], []
    for i in active:
        draft, guidance = jobs[i].draft, getattr(jobs[i].decoding, "guidance", 0.0)
        rows.append(draft.canvas)
        owners.append(i)
        if guidance > 0:  # the second branch sees nothing but masks where the prompt stood
            blind = torch.full_like(draft.canvas, draft.mask_id or 0)
            blind[draft.answer] = draft.canvas[draft.answer]
            rows.append(blind)
            owners.append(i)
    canvases, keys = _padded(rows, model.specials.pad_id)
    logits = model.logits(canvases, keys)
    answers: dict[int, torch.Tensor] = {}
    for row, i in enumerate(owners):
        own = logits[row, canvases.shape[1] - len(rows[row]) :]
        if i in answers:
            answers[i] = own + (jobs[i].decoding.guidance + 1) * (answers[i] - own)  # type: ignore[attr-defined]
        else:
            answers[i] = own
    return answers


def _next_logits(
    model: Model, jobs: list[_Job], active: list[int], memory: dict[str, Any]
) -> dict[int, torch.Tensor]:
    """Logits [1, V] of the next token for each active draft, with or without a cache."""
    decoding = jobs[0].decoding
    assert isinstance(decoding, LeftToRight)
    canvases, keys = _padded([job.draft.canvas for job in jobs], model.specials.pad_id)
    if not decoding.cache:
        logits, _ = model.extend(canvases, keys)
    else:
        cache: DynamicCache | None = memory.get("cache")
        logits, memory["cache"] = model.extend(
            canvases if cache is None else canvases[:, -1:], keys, cache
        )
    return {i: logits[i : i + 1] for i in active}


def _padded(rows: list[torch.Tensor], pad_id: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rows as one batch, padded on the left; keys mark real tokens, None if nothing is padded."""
    longest = max(len(row) for row in rows)
    if all(len(row) == longest for row in rows):
        return torch.stack(rows), None
    batch = torch.full((len(rows), longest), pad_id, device=rows[0].device)
    keys = torch.zeros_like(batch, dtype=torch.bool)
    for i, row in enumerate(rows):
        batch[i, longest - len(row) :] = row
        keys[i, longest - len(row) :] = True
    return batch, keys


def _job(
    model: Model,
    prompt: Prompt | None,
    canvas: Sequence[int] | np.ndarray | torch.Tensor | None,
    decoding: Decoding | None,
    seed: int,
) -> _Job:
    """Check everything that can be checked before the weights are touched."""
    if (prompt is None) == (canvas is None):
        raise PromptError(
            "give either a prompt (an answer is appended) or a canvas (its masks are filled)"
        )
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise SpecError(f"seed={seed!r} is not a whole number from 0 to 2**63 - 1")
    decoding = decoding or _default(model, infill=canvas is not None)
    _suits(model, decoding)
    if prompt is not None:
        first, answer = _appended(model, prompt, decoding)
    else:
        first, answer = _infilled(model, canvas, decoding)
    if len(first) > model.num_positions:
        room = max(model.num_positions - len(first) + len(answer), 0)
        raise PromptError(
            f"prompt and answer take {len(first)} positions and {model.source} was made for "
            f"{model.num_positions}: shorten the prompt, or set length to at most {room}"
        )
    ids = first[first != MISSING]
    draft = Draft(
        canvas=torch.tensor(ids, device=model.device),
        answer=torch.tensor(answer, device=model.device),
        mask_id=model.specials.mask_id,
        end_ids=model.specials.end_ids,
        eos_ids=model.specials.eos_ids,
        generator=torch.Generator(device=model.device).manual_seed(int(seed)),
    )
    return _Job(draft, decoding.for_length(len(answer)), int(seed), given=first, taken=[])


def _default(model: Model, *, infill: bool) -> Decoding:
    if model.family.kind == "arm":
        return LeftToRight(length=DEFAULT_LENGTH)
    return LowConfidence(length=None if infill else DEFAULT_LENGTH)


def _suits(model: Model, decoding: Decoding) -> None:
    if not isinstance(decoding, Decoding):
        raise SpecError(
            f"decoding={decoding!r} is not one of aw.decoding: for example LowConfidence(length=64)"
        )
    name = type(decoding).__name__
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


def _passes(decoding: Decoding) -> int | None:
    steps = getattr(decoding, "steps", decoding.length)
    return decoding.length if steps is None else steps


def _roles(
    canvas: np.ndarray, committed_at: np.ndarray, answer: np.ndarray, model: Model
) -> np.ndarray:
    special = np.isin(canvas, list(model.specials.special_ids))
    role = np.where(special, SPECIAL, PROMPT)
    frames = np.arange(len(canvas))[:, None]
    since = frames - committed_at[answer]  # 1 in the frame right after the commit
    written = np.where(since == 1, FRESH, WRITTEN)
    waiting = ABSENT if model.family.kind == "arm" else MASKED
    done = (committed_at[answer] != MISSING) & (since >= 1)
    role[:, answer] = np.where(done, written, waiting)
    return role


def _manifest(
    model: Model, job: _Job, canvas: np.ndarray, answer: np.ndarray, batch: int
) -> dict[str, Any]:
    last = canvas[-1]
    given = np.setdiff1d(np.arange(len(last)), answer)
    written = [int(i) for i in last[answer] if i != MISSING and i != model.specials.mask_id]
    ids = sorted({int(i) for i in np.unique(canvas) if i != MISSING})
    return {
        "anchorwatch": __version__,
        "model": model.describe(),
        "decoding": job.decoding.as_dict(),
        "seed": job.seed,
        "batch": batch,
        "prompt_text": model.decode([int(i) for i in last[given]]),
        "answer_text": model.decode(written),
        "answer_positions": [int(p) for p in answer],
        "tokens": {str(i): _token_text(model, i) for i in ids},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
        },
        "host": {
            "system": sys.platform,
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
        },
    }


def _token_text(model: Model, token_id: int) -> str:
    if model.tokenizer is None:
        return f"<{token_id}>"
    once = str(model.tokenizer.decode([token_id]))
    twice = str(model.tokenizer.decode([token_id, token_id]))
    # SentencePiece drops the space before a first word: the second of two words keeps it.
    return twice[len(once) :] if twice.startswith(once) else once
