"""Canvas edits on one sequence: what the canvas shows before a step, and what the step may commit.

What edits ask for is verified on the very ids that the model is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from anchorwatch.edits.spec import CanvasEdit, Edit, RunLimits
from anchorwatch.errors import ModelError, SpecError
from anchorwatch.generation.decoding import Decoding, StepPlan
from anchorwatch.generation.sequence import CommitConstraints, SequenceState
from anchorwatch.models.model import Model


def run_limits(model: Model, decoding: Decoding, positions: int, answer: np.ndarray) -> RunLimits:
    """What canvas edits of a run must fit."""
    return RunLimits(
        positions=positions,
        answer=tuple(int(position) for position in answer),
        steps=decoding.num_passes,
        vocabulary=model.vocab_size,
        mask_id=model.specials.mask_id,
        decoding=type(decoding).__name__,
        writes=decoding.writes,
        cached=getattr(decoding, "cache", False),
    )


class CanvasEditor:
    """The canvas edits of one run."""

    def __init__(self, edits: Sequence[Edit], decoding: Decoding, sequence: SequenceState) -> None:
        self.edits = tuple(edit for edit in edits if isinstance(edit, CanvasEdit))
        self._decoding, self._sequence = decoding, sequence
        self._acted: set[CanvasEdit] = set()
        self._displaced: dict[int, int] = {}
        """What stood where a swapped token stands."""
        self._expected: dict[int, int] = {}
        """What the coming frame is to hold."""
        self._forced: dict[int, int] = {}
        """What was forced so far."""
        self._frozen_frame: np.ndarray | None = None
        """The canvas of a step that commits nothing, swapped tokens put back."""
        self._owed = 0
        """Commits that fixed counts could not make yet; below 0, made before their time."""
        sequence.constraints = self._build_constraints()

    def prepare_step(self, plan: StepPlan, progress: float, *, known: bool) -> StepPlan:
        """Put the canvas as it is to be read, and say what the step may commit.

        A known step writes what a trace wrote, which need not be what these edits lead to.
        """
        # 1. Tokens are swapped, and put back where it is over.
        sequence = self._sequence
        active = [edit for edit in self.edits if edit.acts_at(sequence.step, progress)]
        self._acted |= set(active)
        changed = self._swap_tokens(active, known)
        # 2. What the frame must be now, for `verify`: forced tokens, waiting masks, frozen frames.
        forced = [(edit, pair) for edit in active for pair in edit.tokens_forced().items()]
        self._expected = changed if known else self._expected_tokens() | changed
        if not known:
            for edit, (position, _) in forced:
                self._check_forced(edit, position)
            frame = sequence.canvas.cpu().numpy()
            self._frozen_frame = self.put_back(frame) if sequence.is_frozen else None
        pairs = tuple(pair for _, pair in forced)
        self._forced |= dict(pairs)
        # 3. The plan without what is delayed, with what is forced.
        if self._decoding.writes == "absent":
            return replace(plan, forced=pairs)
        return self._constrain_plan(plan, pairs)

    def put_back(self, frame: np.ndarray) -> np.ndarray:
        """The frame with what stood where tokens are swapped."""
        frame = frame.copy()
        for position, token in self._displaced.items():
            frame[position] = token
        return frame

    def verify(self, ids: torch.Tensor) -> None:
        """Stop where the ids [T] that the model is about to read are not what was asked for."""
        # Only positions that an edit decides; all others are the decoding's.
        for position, token in self._expected.items():
            if (given := int(ids[position])) != token:
                raise ModelError(
                    f"the edit is not alive at step {self._sequence.step}: the model is given "
                    f"token {given} at position {position} and {token} was asked for; nothing else "
                    "may write to the canvas of a run"
                )

    def list_idle(self) -> list[str]:
        """What never acted, in words: a run may end before it could."""
        late = [edit for edit in self.edits if edit not in self._acted and not edit.may_stay_idle]
        return [f"{edit!r} never acted: the run has {self._sequence.step} steps" for edit in late]

    def list_masks_left(self, first_step: int, mask_chosen: int) -> list[str]:
        """Masks that stayed because named steps were frozen, in words.

        None are missed where every step from `first_step` on was frozen. Where the last step was
        not, masks that the model chose itself are no freeze's doing.
        """
        sequence, last = self._sequence, self._decoding.num_passes - 1
        left = int(sequence.masked.sum())
        frozen = () if sequence.constraints is None else sequence.constraints.frozen
        steps = [step in frozen for step in range(first_step, last + 1)]
        if not left or sequence.step <= last or not any(steps) or all(steps):
            return []
        # Who left them: a freeze of the last step, or too few steps after a freeze.
        if steps[-1]:
            way = f"the last step, {last}, is frozen: freeze earlier ones, or all with"
        elif not mask_chosen:
            way = f"too few steps ({steps.count(False)}) to catch up in: freeze fewer, or all with"
        else:
            return []
        return [f"{left} of {len(sequence.answer)} positions stay masked, {way} freeze_canvas()"]

    def _build_constraints(self) -> CommitConstraints | None:
        """What edits keep from being committed; None where they keep nothing."""
        until = torch.zeros_like(self._sequence.canvas)
        for edit in self.edits:
            for position, step in edit.first_steps_allowed().items():
                until[position] = max(int(until[position]), step)
        steps = range(self._decoding.num_passes)
        frozen = {step for step in steps if any(edit.freezes(step) for edit in self.edits)}
        return CommitConstraints(until, frozen) if frozen or bool(until.any()) else None

    def _swap_tokens(self, active: Sequence[CanvasEdit], known: bool) -> dict[int, int]:
        """Swap tokens, put back where it is over; returns what stands at those positions now."""
        # 1. What active edits show; only what is given or written can be swapped.
        canvas, masked = self._sequence.canvas, self._sequence.masked
        wanted: dict[int, int] = {}
        for edit in active:
            for position, token in edit.tokens_shown().items():
                present = position < len(canvas)
                if present and not bool(masked[position]):
                    wanted[position] = token
                elif not known:  # on another run's frames it may come later
                    step, condition = self._sequence.step, "masked" if present else "absent"
                    raise SpecError(
                        f"{type(edit).__name__} of position {position}, which is {condition} at "
                        f"step {step}: swap it later, or write it with "
                        f"force_commit({position}, {token}, step={step})"
                    )
        # 2. What stood there is kept, and put back once no edit shows anything else.
        back = {p: self._displaced.pop(p) for p in list(self._displaced) if p not in wanted}
        for position in wanted:
            self._displaced.setdefault(position, int(canvas[position]))
        for position, token in (back | wanted).items():
            canvas[position] = token
        return back | wanted

    def _expected_tokens(self) -> dict[int, int]:
        """What earlier steps were to leave: forced tokens, masks that wait, a frozen frame."""
        sequence = self._sequence
        frame = () if self._frozen_frame is None else self._frozen_frame
        expected = {position: int(token) for position, token in enumerate(frame)} | self._forced
        if sequence.constraints is not None and sequence.mask_id is not None:
            until = sequence.constraints.until
            waits = (until > 0) & (until >= sequence.step)
            expected |= dict.fromkeys(waits.nonzero()[:, 0].tolist(), sequence.mask_id)
        return expected

    def _check_forced(self, edit: CanvasEdit, position: int) -> None:
        sequence = self._sequence
        if position >= len(sequence.canvas) or bool(sequence.masked[position]):
            return
        raise SpecError(
            f"{edit!r} comes too late, the position is written: force an earlier step, "
            f"delay_commit([{position}], until={sequence.step}), or swap_token"
        )

    def _constrain_plan(self, plan: StepPlan, forced: tuple[tuple[int, int], ...]) -> StepPlan:
        """The plan without what is delayed, with what is forced, in the schedule's numbers."""
        # 1. How many are due: the plan's, and what earlier steps could not commit.
        sequence = self._sequence
        due = (plan.count or 0) + (self._owed if self._decoding.fixed_counts else 0)
        if sequence.is_frozen:
            self._owed = due
            return replace(plan, frozen=True)
        # 2. Delayed positions are withheld from the policy, and forced ones: they need no choice.
        withheld = plan.open & ~sequence.committable
        positions = [position for position, _ in forced]
        forced_open = int(plan.open[positions].sum())
        withheld[positions] = plan.open[positions]
        # 3. The policy chooses the rest, as far as positions are left; others are owed.
        chosen = min(max(due - forced_open, 0), int((plan.open & ~withheld).sum()))
        self._owed = due - forced_open - chosen
        plan = replace(plan, count=None if plan.count is None else chosen)
        if not forced and not bool(withheld.any()):
            return plan
        return replace(plan, withheld=withheld, forced=forced)
