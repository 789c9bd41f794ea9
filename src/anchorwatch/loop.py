"""The one loop: ask the model about a group of drafts at once, let each draft choose by itself.

Each draft has its own generator, so that no answer depends on its batch mates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from anchorwatch.decoding import Decoding, LeftToRight
from anchorwatch.models.model import Model
from anchorwatch.policies import Draft, Turn, choose, turns
from anchorwatch.trace import MISSING


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


@dataclass
class Job:
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

    def take(self, logits: torch.Tensor, turn: Turn) -> Step:
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


def walk(model: Model, jobs: list[Job]) -> Iterator[tuple[int, Step]]:
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
    model: Model, jobs: list[Job], active: list[int], _: dict[str, Any]
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
    model: Model, jobs: list[Job], active: list[int], memory: dict[str, Any]
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
