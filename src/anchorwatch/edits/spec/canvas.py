"""Edits of the canvas: a token swapped, a commit forced or put off, or no commit at all.

They act before a step, on what every layer and head then reads, so that the frames of the trace
say by themselves what was done. After the last step nothing is put back. An edit says what it
shows and what it keeps from being committed; `generation/canvas_editor.py` does it, and verifies it
on the ids that the model is given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import combinations
from typing import Any, ClassVar

import numpy as np

from anchorwatch.edits.spec.edit import Edit, overlap_in_time, register_edit
from anchorwatch.errors import SpecError
from anchorwatch.trace.schema import Field, RunShape, field


@dataclass(frozen=True)
class RunLimits:
    """The run that canvas edits are to fit."""

    positions: int
    answer: tuple[int, ...]
    """Positions that the run writes, in order."""
    steps: int
    """At most; a run may end earlier."""
    vocabulary: int
    mask_id: int | None
    decoding: str
    writes: str
    """masked (diffusion) or absent (autoregression)."""
    cached: bool


@dataclass(frozen=True, repr=False)
class CanvasEdit(Edit):
    """Edits of the canvas, not of attention."""

    observable: ClassVar[str] = "the frame that the model reads"
    needs_masked: ClassVar[bool] = False
    """Whether the positions it names must be masked when it acts: it decides how they are
    written."""
    changes_frames: ClassVar[bool] = False
    """Whether it changes what is read, not only what is committed."""
    may_stay_idle: ClassVar[bool] = False
    """Whether it did its work even if no step came at which it acted."""

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if self.layers is not None or self.heads is not None:
            raise SpecError(
                f"{kind} changes the canvas, which all layers and heads read: "
                "leave layers and heads out"
            )
        super().__post_init__()

    def heads_at(self, layer: int, heads: int) -> tuple[int, ...]:
        return ()

    @property
    def positions_named(self) -> tuple[int, ...]:
        """Positions it names; () where it means the whole canvas."""
        return ()

    def tokens_shown(self) -> Mapping[int, int]:
        """Tokens by position that the canvas shows while it acts; then what stood there is back."""
        return {}

    def tokens_forced(self) -> Mapping[int, int]:
        """Tokens by position that are committed at the step at which it acts."""
        return {}

    def first_steps_allowed(self) -> Mapping[int, int]:
        """By position the first step at which it may be committed."""
        return {}

    def first_step_written(self, position: int) -> int:
        """The first step that may write a position, as far as this edit decides it."""
        return self.first_steps_allowed().get(position, 0)

    def freezes(self, step: int) -> bool:
        """Whether nothing is committed at a step."""
        return False

    def check_canvas(self, limits: RunLimits) -> None:
        """Refuse a run that cannot have the edit."""
        kind = type(self).__name__
        for position in self.positions_named:
            if position >= limits.positions:
                raise SpecError(
                    f"{kind} of position {position} is not there: this run has positions 0 to "
                    f"{limits.positions - 1}"
                )
            if self.needs_masked and position not in limits.answer:
                raise SpecError(
                    f"{kind} of position {position}, which is given: the run writes "
                    f"{limits.answer[0]} to {limits.answer[-1]}; swap_token changes what is given"
                )


@register_edit
@dataclass(frozen=True, repr=False)
class swap_token(CanvasEdit):  # noqa: N801
    """While it acts the canvas holds `token` at `position`; then what stood there is back.

    For given and for written positions. One that is masked (or absent) when it is to act stops the
    run: `force_commit` writes there. The trace's `own_token` holds what stood there.
    """

    position: int
    token: int

    changes_frames: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "position", _check_whole("position", self.position))
        object.__setattr__(self, "token", _check_token_id(self.token))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return (self.position,)

    def tokens_shown(self) -> Mapping[int, int]:
        return {self.position: self.token}

    def fields(self, shape: RunShape) -> Iterator[Field]:
        says = "token that was given or committed, whatever an edit put in its place"
        yield field("own_token", ("position",), "int32", "token id", says, shape)

    def check_canvas(self, limits: RunLimits) -> None:
        super().check_canvas(limits)
        _check_token(self.token, limits, "hide_keys hides a position")
        kind = type(self).__name__
        # At step 0 nothing of the answer is written.
        if self.position in limits.answer and self.acts_at(0, 0.0):
            state = "masked" if limits.writes == "masked" else "absent"
            raise SpecError(
                f"{kind} of position {self.position}, which is {state} at step 0: say from when, "
                f"steps=range({max(1, limits.steps // 2)}, {limits.steps}), or write it with "
                "force_commit"
            )
        # Keys of what was read stay in the cache as they were.
        if limits.writes == "absent" and limits.cached:
            raise SpecError(
                f"{kind} changes what was read and a cache keeps its keys: "
                f"use {limits.decoding}(cache=False)"
            )

    def contradicts(self, other: Edit) -> str | None:
        if isinstance(other, swap_token):
            differ = self.token != other.token and overlap_in_time(self, other)
            if self.position != other.position or not differ:
                return None
            return f"position {self.position} holds one token at a time; give each its steps"
        if not isinstance(other, CanvasEdit) or not other.needs_masked:
            return None
        if self.position not in other.positions_named:
            return None
        # The position is written at that step at the earliest: a swap before it would find a mask.
        written = other.first_step_written(self.position)
        if self.progress is None and self.steps is not None and min(self.steps) <= written:
            return f"position {self.position} is masked up to step {written}; swap it later"
        return None


@register_edit
@dataclass(frozen=True, repr=False)
class force_commit(CanvasEdit):  # noqa: N801
    """At one step `position` is committed with `token`, and `logprob` is what the model gave it.

    It takes the place of one of the step's commits; a schedule that has none left at that step
    commits fewer later, and a position of a block that is not open yet comes besides. Under a
    threshold it is the one commit that a step always makes. In autoregression it is that step's
    token.
    """

    position: int
    token: int
    _: KW_ONLY
    step: int

    needs_masked: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _refuse_times(self, "say step=3")
        super().__post_init__()
        object.__setattr__(self, "position", _check_whole("position", self.position))
        object.__setattr__(self, "token", _check_token_id(self.token))
        object.__setattr__(self, "step", _check_whole("step", self.step))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return (self.position,)

    def acts_at(self, step: int, progress: float) -> bool:
        return step == self.step

    def limit_to_steps(self, steps: range) -> Edit | None:
        return self if self.step in steps else None

    def tokens_forced(self) -> Mapping[int, int]:
        return {self.position: self.token}

    def first_step_written(self, position: int) -> int:
        return self.step

    def check_canvas(self, limits: RunLimits) -> None:
        super().check_canvas(limits)
        _check_token(self.token, limits, "delay_commit waits")
        kind, last = type(self).__name__, limits.steps - 1
        if self.step > last:
            raise SpecError(f"{kind}(step={self.step}) never comes: this run has steps 0 to {last}")
        # Autoregression writes its positions in order, one at each step.
        if limits.writes == "absent" and limits.answer[self.step] != self.position:
            right = limits.answer.index(self.position)
            raise SpecError(
                f"{limits.decoding} writes position {self.position} at step {right}: "
                f"say step={right}"
            )

    def contradicts(self, other: Edit) -> str | None:
        if isinstance(other, freeze_canvas):
            why = "nothing is committed while the canvas is frozen; force another step"
            return why if other.acts_at(self.step, 0.0) else None
        if not isinstance(other, CanvasEdit) or self.position not in other.positions_named:
            return None
        if isinstance(other, force_commit):
            return f"position {self.position} is committed once"
        if isinstance(other, delay_commit) and self.step < other.until:
            return f"position {self.position} waits until step {other.until}; force it from then on"
        return None


@register_edit
@dataclass(frozen=True, repr=False)
class delay_commit(CanvasEdit):  # noqa: N801
    """Positions that are not committed before step `until`; the policy chooses among the others.

    A schedule that cannot commit as many as it should catches up as soon as it can, so that the run
    ends with no masks within its passes (unless `freeze_canvas` takes those). A block is left with
    what is delayed in it still masked. A fork can delay only what is masked where it begins.
    """

    positions: tuple[int, ...]
    _: KW_ONLY
    until: int

    needs_masked: ClassVar[bool] = True
    changes_frames: ClassVar[bool] = False
    """Whether it changes what is read, not only what is committed."""
    may_stay_idle: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _refuse_times(self, "say until=3")
        super().__post_init__()
        object.__setattr__(self, "until", _check_whole("until", self.until))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return self.positions

    def acts_at(self, step: int, progress: float) -> bool:
        return step < self.until

    def limit_to_steps(self, steps: range) -> Edit | None:
        if not steps or steps.start >= self.until:
            return None
        # Delayed up to the last of these steps.
        return dataclasses.replace(self, until=min(self.until, steps.stop))

    def first_steps_allowed(self) -> Mapping[int, int]:
        return dict.fromkeys(self.positions, self.until)

    def check_canvas(self, limits: RunLimits) -> None:
        super().check_canvas(limits)
        kind, last = type(self).__name__, limits.steps - 1
        if self.until > last:
            raise SpecError(
                f"{kind}(until={self.until}) would leave masks: the last step of this run is "
                f"{last}; say until={last} or less, or freeze_canvas()"
            )
        _refuse_autoregression(self, limits)


@register_edit
@dataclass(frozen=True, repr=False)
class freeze_canvas(CanvasEdit):  # noqa: N801
    """Nothing is committed: the model reads the same frame at every step.

    At all steps by default, and the answer stays masked: the null of movement. After named steps
    the schedule catches up, if any are left for it: a run whose last step is frozen, or a threshold
    with fewer steps than blocks, ends with masks, and its trace's warnings say so.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.progress is not None:
            raise SpecError("progress stands still while the canvas does: say steps=[2, 3]")

    def freezes(self, step: int) -> bool:
        return self.steps is None or step in self.steps

    def check_canvas(self, limits: RunLimits) -> None:
        super().check_canvas(limits)
        _refuse_autoregression(self, limits)


def check_canvas(edits: Sequence[Edit], limits: RunLimits) -> None:
    """Refuse canvas edits that a run cannot have, alone or together."""
    canvas_edits = [edit for edit in edits if isinstance(edit, CanvasEdit)]
    for edit in canvas_edits:
        edit.check_canvas(limits)
    for edit, other in combinations(canvas_edits, 2):
        if why := edit.contradicts(other) or other.contradicts(edit):
            raise SpecError(f"{edit!r} and {other!r} contradict each other: {why}")


def _check_token(token: int, limits: RunLimits, instead: str) -> None:
    if token >= limits.vocabulary:
        raise SpecError(
            f"token {token} is outside the vocabulary: ids run from 0 to {limits.vocabulary - 1}"
        )
    if token == limits.mask_id:
        raise SpecError(f"token {token} is the mask id, which is not written: {instead}")


def _refuse_autoregression(edit: CanvasEdit, limits: RunLimits) -> None:
    if limits.writes == "absent":
        raise SpecError(
            f"{limits.decoding} writes one position after another and cannot wait: "
            f"{type(edit).__name__} is for models that denoise; force_commit and swap_token work "
            "here"
        )


def _refuse_times(edit: CanvasEdit, way: str) -> None:
    if edit.steps is not None or edit.progress is not None:
        raise SpecError(f"{type(edit).__name__} takes no steps and no progress: {way}")


def _check_whole(name: str, value: Any) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 0:
        raise SpecError(f"{name}={value!r} is not a whole number of at least 0")
    return int(value)


def _check_token_id(value: Any) -> int:
    if isinstance(value, str):
        raise SpecError(
            f"token={value!r} is text: give its id, "
            f"model.tokenizer.encode({value!r}, add_special_tokens=False)[0]"
        )
    return _check_whole("token", value)
