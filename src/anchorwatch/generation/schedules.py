"""Schedules: what each step of a decoding may commit, looking at the draft as it stands by then.

A turn says which positions are open and how many to commit; a policy says which, and which tokens.
Shapes: T positions, A positions to write.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import singledispatch

import torch

from anchorwatch.errors import SpecError
from anchorwatch.generation.decoding import (
    Decoding,
    DreamOrder,
    EvenSteps,
    LeftToRight,
    Threshold,
    even_counts,
)


@dataclass(frozen=True)
class CommitConstraints:
    """What edits keep from being committed, and when."""

    until: torch.Tensor
    """[T] the first step at which each position may be committed."""
    frozen: Container[int] = ()
    """Steps that commit nothing."""


@dataclass
class SequenceState:
    """One sequence while it is written. Mutable; lives only inside a run."""

    canvas: torch.Tensor
    """[T] ids; in autoregression only what has been written so far."""
    answer: torch.Tensor
    """[A] positions to write, in order."""
    mask_id: int | None
    end_ids: tuple[int, ...]
    eos_ids: tuple[int, ...]
    generator: torch.Generator
    step: int = 0
    """Steps taken."""
    holds: CommitConstraints | None = None

    @property
    def masked(self) -> torch.Tensor:
        """[T] where the canvas is masked."""
        return torch.eq(self.canvas, -1 if self.mask_id is None else self.mask_id)

    @property
    def free(self) -> torch.Tensor:
        """[T] where the canvas is masked and no edit delays the commit."""
        return self.masked if self.holds is None else self.masked & (self.holds.until <= self.step)

    @property
    def frozen(self) -> bool:
        """Whether an edit lets the coming step commit nothing."""
        return self.holds is not None and self.step in self.holds.frozen


@dataclass(frozen=True)
class StepPlan:
    """What one step may do."""

    open: torch.Tensor
    """[T] bool: positions that may be committed, masked ones only."""
    count: int | None = None
    """How many to commit (of a threshold: at least); None leaves it to the policy."""
    chance: float | None = None
    """Probability that each open position is committed (Dream's origin)."""
    held: torch.Tensor | None = None
    """[T] bool: open positions that an edit keeps from the policy. They stay open, so that chance
    falls for all others as it would have."""
    forced: tuple[tuple[int, int], ...] = ()
    """(position, token) that an edit commits besides what the policy chooses."""
    frozen: bool = False
    """Nothing is committed and nobody is asked."""

    @property
    def reachable(self) -> torch.Tensor:
        """[T] bool: positions that the step may commit."""
        if self.frozen:
            return torch.zeros_like(self.open)
        if self.held is None:
            return self.open
        reachable = self.open & ~self.held
        reachable[[position for position, _ in self.forced]] = True
        return reachable


@singledispatch
def plan_steps(decoding: Decoding, draft: SequenceState) -> Iterator[StepPlan]:
    """The schedule: one turn for each forward pass, looking at the draft as it stands by then."""
    raise SpecError(f"no schedule is known for {type(decoding).__name__}")


@plan_steps.register
def _even_turns(decoding: EvenSteps, draft: SequenceState) -> Iterator[StepPlan]:
    for within, opened in _blocks(decoding.block, draft):
        masked = int((draft.masked & within).sum())
        for count in even_counts(masked, decoding.steps_per_block):
            yield StepPlan(open=draft.masked & opened, count=count)


@plan_steps.register
def _threshold_turns(decoding: Threshold, draft: SequenceState) -> Iterator[StepPlan]:
    late = torch.zeros_like(draft.masked)
    everything = torch.zeros_like(late)
    for place, (within, opened) in enumerate(_blocks(decoding.block, draft), start=1):
        yield from _until_sure(decoding, draft, (within, opened), decoding.num_blocks - place)
        late |= within & draft.masked & ~draft.free  # a delayed position does not keep a block open
        everything = opened
    if bool(late.any()):
        yield from _until_sure(decoding, draft, (late, everything), 0, waits=True)


def _until_sure(
    decoding: Threshold,
    draft: SequenceState,
    places: tuple[torch.Tensor, torch.Tensor],
    later: int,
    waits: bool = False,
) -> Iterator[StepPlan]:
    """Turns until the first of `places` is written (or delayed), in passes that leave `later`."""
    (within, opened), idle = places, 0
    while idle < decoding.patience and draft.step < decoding.num_passes:
        if not bool(((draft.masked if waits else draft.free) & within).any()):
            return
        before = int(draft.masked.sum())
        kept_back = draft.frozen or not bool((draft.free & within).any())
        yield StepPlan(open=draft.masked & opened, count=_least(decoding, draft, within, later))
        # The model may choose the mask id itself: then nothing was written, and at
        # temperature 0 nothing ever would be.
        idle += int(draft.masked.sum()) == before and not kept_back


def _least(
    decoding: Threshold, draft: SequenceState, within: torch.Tensor, later: int
) -> int | None:
    """Commits that a step owes, after passes were spent waiting; None where it owes none."""
    if draft.holds is None:
        return None
    frozen, last = draft.holds.frozen, decoding.num_passes
    passes = sum(step not in frozen for step in range(draft.step, last))
    delayed = bool((draft.masked & ~draft.free).any())
    owed = int((draft.free & within).sum()) - (passes - later - delayed) + 1
    return owed if owed > 1 else None


@plan_steps.register
def _dream_turns(decoding: DreamOrder, draft: SequenceState) -> Iterator[StepPlan]:
    steps = len(draft.answer) if decoding.steps is None else decoding.steps
    times = torch.linspace(1, decoding.eps, steps + 1)
    for step in range(steps):
        masked = draft.masked
        left = masked.sum().float().cpu()
        share = 1 - times[step + 1] / times[step]  # float32, as the authors' code has it
        last = step == steps - 1
        if decoding.algorithm == "origin":
            yield StepPlan(open=masked, chance=1.0 if last else float(share))
        else:
            yield StepPlan(open=masked, count=int(left) if last else int(left * share))


@plan_steps.register
def _left_to_right_turns(decoding: LeftToRight, draft: SequenceState) -> Iterator[StepPlan]:
    for position in draft.answer.tolist():
        yield StepPlan(open=torch.arange(position + 1) == position, count=1)
        if decoding.stop and int(draft.canvas[-1]) in draft.eos_ids:
            return


def _blocks(block: int | None, draft: SequenceState) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(positions of the block, positions of it and all before it), as bool [T], block by block."""
    opened = torch.zeros_like(draft.canvas, dtype=torch.bool)
    for positions in torch.split(draft.answer, block or len(draft.answer)):
        within = torch.zeros_like(opened)
        within[positions] = True
        opened = opened | within
        yield within, opened
