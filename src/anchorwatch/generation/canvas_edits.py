"""Canvas edits at work on one draft: what stands on it before a step, what the step may commit.

What they ask for is proved on the very ids that the model is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from anchorwatch.edits.spec import (
    CanvasEdit,
    Edit,
    RunLimits,
    delay_commit,
    force_commit,
    freeze_canvas,
    swap_token,
)
from anchorwatch.errors import ModelError, SpecError
from anchorwatch.generation.decoding import Decoding, EvenSteps
from anchorwatch.generation.schedules import CommitConstraints, SequenceState, StepPlan
from anchorwatch.models.model import Model


def run_limits(model: Model, decoding: Decoding, positions: int, answer: np.ndarray) -> RunLimits:
    """What canvas edits of a run must fit."""
    return RunLimits(
        positions=positions,
        answer=tuple(int(place) for place in answer),
        steps=decoding.num_passes,
        vocabulary=model.vocab_size,
        mask_id=model.specials.mask_id,
        decoding=type(decoding).__name__,
        writes=decoding.writes,
        cached=getattr(decoding, "cache", False),
    )


class CanvasEditor:
    """The canvas edits of one job."""

    def __init__(self, edits: Sequence[Edit], decoding: Decoding, draft: SequenceState) -> None:
        self.edits = tuple(edit for edit in edits if isinstance(edit, CanvasEdit))
        self._decoding, self._draft = decoding, draft
        self._acted: set[CanvasEdit] = set()
        self._displaced: dict[int, int] = {}
        """What stood where a swapped token stands."""
        self._asked: dict[int, int] = {}
        """What the coming frame is to hold."""
        self._forced: dict[int, int] = {}
        """What was forced so far."""
        self._still: np.ndarray | None = None
        """The canvas of a step that commits nothing, swapped tokens put back."""
        self._owed = 0
        """Commits that fixed counts could not make yet; below 0, made before their time."""
        draft.holds = self._holds()

    def before(self, turn: StepPlan, progress: float, *, known: bool) -> StepPlan:
        """Put the canvas as it is to be read, and say what the step may commit.

        A known step writes what a trace wrote, which need not be what these edits lead to.
        """
        draft = self._draft
        active = [edit for edit in self.edits if edit.acts_at(draft.step, progress)]
        self._acted |= set(active)
        back = self._swap([edit for edit in active if isinstance(edit, swap_token)], known)
        forced = [edit for edit in active if isinstance(edit, force_commit)]
        self._asked = back if known else self._expected() | back
        if not known:
            for edit in forced:
                self._check_forced(edit)
            self._still = self.own(draft.canvas.cpu().numpy()) if draft.frozen else None
        self._forced |= {edit.position: edit.token for edit in forced}
        pairs = tuple((edit.position, edit.token) for edit in forced)
        if self._decoding.writes == "absent":
            return replace(turn, forced=pairs)
        return self._held(turn, pairs)

    def own(self, frame: np.ndarray) -> np.ndarray:
        """The frame with what stood where tokens are swapped."""
        frame = frame.copy()
        for place, token in self._displaced.items():
            frame[place] = token
        return frame

    def prove(self, ids: torch.Tensor) -> None:
        """Stop where the ids [T] that the model is about to read are not what was asked for."""
        for place, token in self._asked.items():
            if (found := int(ids[place])) != token:
                raise ModelError(
                    f"the edit is not alive at step {self._draft.step}: the model is given token "
                    f"{found} at position {place} and {token} was asked for; nothing else may "
                    "write to the canvas of a run"
                )

    def idle(self) -> list[str]:
        """What never acted, in words: a run may end before it could."""
        late = [
            edit
            for edit in self.edits
            if edit not in self._acted and not isinstance(edit, delay_commit)
        ]
        return [f"{edit!r} never acted: the run has {self._draft.step} steps" for edit in late]

    def unfinished(self, begun: int, mask_chosen: int) -> list[str]:
        """Masks that stayed because named steps were frozen, in words.

        None are missed where every step from `begun` on was frozen. Where the last step was not,
        masks that the model chose itself are no freeze's doing.
        """
        left, last = int(self._draft.masked.sum()), self._decoding.num_passes - 1
        frozen = () if self._draft.holds is None else self._draft.holds.frozen
        steps = [step in frozen for step in range(begun, last + 1)]
        if not left or self._draft.step <= last or not any(steps) or all(steps):
            return []
        if steps[-1]:
            way = f"the last step, {last}, is frozen: freeze earlier ones, or all with"
        elif not mask_chosen:
            way = f"too few steps ({steps.count(False)}) to catch up in: freeze fewer, or all with"
        else:
            return []
        return [f"{left} of {len(self._draft.answer)} positions stay masked, {way} freeze_canvas()"]

    def _holds(self) -> CommitConstraints | None:
        until = torch.zeros_like(self._draft.canvas)
        frozen: set[int] = set()
        for edit in self.edits:
            if isinstance(edit, delay_commit):
                places = list(edit.positions)
                until[places] = until[places].clamp(min=edit.until)
            elif isinstance(edit, freeze_canvas):
                every = range(self._decoding.num_passes)
                frozen |= set(every if edit.steps is None else edit.steps)
        return CommitConstraints(until, frozen) if frozen or bool(until.any()) else None

    def _swap(self, swaps: list[swap_token], known: bool) -> dict[int, int]:
        """Tokens swapped, and put back where it is over; what stands at those positions now."""
        canvas, masked = self._draft.canvas, self._draft.masked
        wanted = {edit.position: edit.token for edit in swaps}
        for place, token in list(wanted.items()):
            if place < len(canvas) and not bool(masked[place]):
                continue
            if known:  # on another run's frames it may come later
                del wanted[place]
                continue
            state = "masked" if place < len(canvas) else "absent"
            raise SpecError(
                f"swap_token of position {place}, which is {state} at step {self._draft.step}: "
                f"swap it later, or write it with force_commit({place}, {token}, "
                f"step={self._draft.step})"
            )
        back = {p: self._displaced.pop(p) for p in list(self._displaced) if p not in wanted}
        for place in wanted:
            self._displaced.setdefault(place, int(canvas[place]))
        for place, token in (back | wanted).items():
            canvas[place] = token
        return back | wanted

    def _expected(self) -> dict[int, int]:
        """What earlier steps were to leave: forced tokens, masks that wait, a frame that stood."""
        draft, still = self._draft, () if self._still is None else self._still
        found = {place: int(token) for place, token in enumerate(still)} | self._forced
        if draft.holds is not None and draft.mask_id is not None:
            waits = (draft.holds.until > 0) & (draft.holds.until >= draft.step)
            found |= dict.fromkeys(waits.nonzero()[:, 0].tolist(), draft.mask_id)
        return found

    def _check_forced(self, edit: force_commit) -> None:
        draft = self._draft
        if edit.position >= len(draft.canvas) or bool(draft.masked[edit.position]):
            return
        raise SpecError(
            f"{edit!r} comes too late, the position is written: force an earlier step, "
            f"delay_commit([{edit.position}], until={edit.step}), or swap_token"
        )

    def _held(self, turn: StepPlan, forced: tuple[tuple[int, int], ...]) -> StepPlan:
        """The turn without what is delayed, with what is forced, in the schedule's numbers."""
        draft, steady = self._draft, isinstance(self._decoding, EvenSteps)
        wanted = (turn.count or 0) + (self._owed if steady else 0)
        if draft.frozen:
            self._owed = wanted
            return replace(turn, frozen=True)
        held = turn.open & ~draft.free
        places = [place for place, _ in forced]
        within = int(turn.open[places].sum())
        held[places] = turn.open[places]
        chosen = min(max(wanted - within, 0), int((turn.open & ~held).sum()))
        self._owed = wanted - within - chosen
        turn = replace(turn, count=None if turn.count is None else chosen)
        return replace(turn, held=held, forced=forced) if forced or bool(held.any()) else turn
