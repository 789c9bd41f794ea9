"""What to change on the canvas: a token swapped, a commit forced or put off, or no commit at all.

They act before a step, on what every layer and head then reads, so that the frames of the trace
say by themselves what was done. After the last step nothing is put back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import combinations
from typing import Any, ClassVar

import numpy as np

from anchorwatch.edits.spec.edit import Edit
from anchorwatch.errors import SpecError


@dataclass(frozen=True, repr=False)
class CanvasEdit(Edit):
    """Edits of the canvas, not of attention."""

    observable: ClassVar[str] = "the frame that the model reads"

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

    def among(self, steps: range) -> CanvasEdit | None:
        """The edit at those of its steps that are among these; None where none is left."""
        left = tuple(steps if self.steps is None else (s for s in self.steps if s in steps))
        return dataclasses.replace(self, steps=left) if left else None


@dataclass(frozen=True, repr=False)
class swap_token(CanvasEdit):  # noqa: N801
    """While it acts the canvas holds `token` at `position`; then what stood there is back.

    For given and for written positions. One that is masked (or absent) when it is to act stops the
    run: `force_commit` writes there. The trace's `own_token` holds what stood there.
    """

    position: int
    token: int

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "position", _whole("position", self.position))
        object.__setattr__(self, "token", _token(self.token))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return (self.position,)


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

    def __post_init__(self) -> None:
        _no_times(self, "say step=3")
        super().__post_init__()
        object.__setattr__(self, "position", _whole("position", self.position))
        object.__setattr__(self, "token", _token(self.token))
        object.__setattr__(self, "step", _whole("step", self.step))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return (self.position,)

    def acts_at(self, step: int, progress: float) -> bool:
        return step == self.step

    def among(self, steps: range) -> CanvasEdit | None:
        return self if self.step in steps else None


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

    def __post_init__(self) -> None:
        _no_times(self, "say until=3")
        super().__post_init__()
        object.__setattr__(self, "until", _whole("until", self.until))

    @property
    def positions_named(self) -> tuple[int, ...]:
        return self.positions

    def acts_at(self, step: int, progress: float) -> bool:
        return step < self.until

    def among(self, steps: range) -> CanvasEdit | None:
        if not steps or steps.start >= self.until:
            return None
        return dataclasses.replace(self, until=min(self.until, steps.stop))


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


def check_canvas(edits: Sequence[Edit], ground: RunLimits) -> None:
    """Refuse canvas edits that a run cannot have, alone or together."""
    mine = [edit for edit in edits if isinstance(edit, CanvasEdit)]
    for edit in mine:
        _places_fit(edit, ground)
        _token_fits(edit, ground)
        _time_fits(edit, ground)
        if ground.writes == "absent":
            _fits_autoregression(edit, ground)
    for one, two in combinations(mine, 2):
        if why := _contradiction(one, two) or _contradiction(two, one):
            raise SpecError(f"{one!r} and {two!r} contradict each other: {why}")


def _places_fit(edit: CanvasEdit, ground: RunLimits) -> None:
    kind, writes = type(edit).__name__, isinstance(edit, force_commit | delay_commit)
    for place in edit.positions_named:
        if place >= ground.positions:
            raise SpecError(
                f"{kind} of position {place} is not there: this run has positions 0 to "
                f"{ground.positions - 1}"
            )
        if writes and place not in ground.answer:
            raise SpecError(
                f"{kind} of position {place}, which is given: the run writes "
                f"{ground.answer[0]} to {ground.answer[-1]}; swap_token changes what is given"
            )


def _token_fits(edit: CanvasEdit, ground: RunLimits) -> None:
    if not isinstance(edit, swap_token | force_commit):
        return
    if edit.token >= ground.vocabulary:
        raise SpecError(
            f"token {edit.token} is outside the vocabulary: ids run from 0 to "
            f"{ground.vocabulary - 1}"
        )
    if edit.token == ground.mask_id:
        way = "hide_keys hides a position" if isinstance(edit, swap_token) else "delay_commit waits"
        raise SpecError(f"token {edit.token} is the mask id, which is not written: {way}")


def _time_fits(edit: CanvasEdit, ground: RunLimits) -> None:
    kind, last = type(edit).__name__, ground.steps - 1
    if isinstance(edit, force_commit) and edit.step > last:
        raise SpecError(f"{kind}(step={edit.step}) never comes: this run has steps 0 to {last}")
    if isinstance(edit, delay_commit) and edit.until > last:
        raise SpecError(
            f"{kind}(until={edit.until}) would leave masks: the last step of this run is {last}; "
            f"say until={last} or less, or freeze_canvas()"
        )
    if isinstance(edit, swap_token) and edit.position in ground.answer and edit.acts_at(0, 0.0):
        state = "masked" if ground.writes == "masked" else "absent"
        raise SpecError(
            f"{kind} of position {edit.position}, which is {state} at step 0: say from when, "
            f"steps=range({max(1, ground.steps // 2)}, {ground.steps}), or write it with "
            "force_commit"
        )


def _fits_autoregression(edit: CanvasEdit, ground: RunLimits) -> None:
    kind, name = type(edit).__name__, ground.decoding
    if isinstance(edit, delay_commit | freeze_canvas):
        raise SpecError(
            f"{name} writes one position after another and cannot wait: {kind} is for models that "
            "denoise; force_commit and swap_token work here"
        )
    if isinstance(edit, swap_token) and ground.cached:
        raise SpecError(
            f"{kind} changes what was read and a cache keeps its keys: use {name}(cache=False)"
        )
    if isinstance(edit, force_commit) and ground.answer[edit.step] != edit.position:
        right = ground.answer.index(edit.position)
        raise SpecError(f"{name} writes position {edit.position} at step {right}: say step={right}")


def _contradiction(one: CanvasEdit, two: CanvasEdit) -> str | None:
    """Why two canvas edits cannot act together, in words; None where they can."""
    if isinstance(one, force_commit) and isinstance(two, freeze_canvas):
        why = "nothing is committed while the canvas is frozen; force another step"
        return why if two.acts_at(one.step, 0.0) else None
    both = set(one.positions_named) & set(two.positions_named)
    if not both:
        return None
    place = min(both)
    if isinstance(one, swap_token) and isinstance(two, swap_token):
        differ = one.token != two.token and _meet(one, two)
        return (
            f"position {place} holds one token at a time; give each its steps" if differ else None
        )
    if isinstance(one, force_commit) and isinstance(two, force_commit):
        return f"position {place} is committed once"
    if isinstance(one, force_commit) and isinstance(two, delay_commit) and one.step < two.until:
        return f"position {place} waits until step {two.until}; force it from then on"
    if isinstance(one, swap_token) and isinstance(two, force_commit | delay_commit):
        written = two.until if isinstance(two, delay_commit) else two.step
        if one.progress is None and one.steps is not None and min(one.steps) <= written:
            return f"position {place} is masked up to step {written}; swap it later"
    return None


def _meet(one: CanvasEdit, two: CanvasEdit) -> bool:
    """Whether there may be a step at which both act."""
    if one.steps is not None and two.steps is not None and not set(one.steps) & set(two.steps):
        return False
    (low, high), (lower, higher) = one.progress or (0, 1), two.progress or (0, 1)
    return max(low, lower) < min(high, higher)


def _no_times(edit: CanvasEdit, way: str) -> None:
    if edit.steps is not None or edit.progress is not None:
        raise SpecError(f"{type(edit).__name__} takes no steps and no progress: {way}")


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 0:
        raise SpecError(f"{name}={value!r} is not a whole number of at least 0")
    return int(value)


def _token(value: Any) -> int:
    if isinstance(value, str):
        raise SpecError(
            f"token={value!r} is text: give its id, "
            f"model.tokenizer.encode({value!r}, add_special_tokens=False)[0]"
        )
    return _whole("token", value)
