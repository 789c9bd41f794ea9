"""The control of an edit: as much is changed, and by chance. No torch here.

An edit that does something is no news: any edit of that size may. What it does beyond an edit of
equal budget is about what was chosen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np

from anchorwatch.edits.spec import Edit, hide_keys, hide_random, hide_sinks, knock_out, no_op
from anchorwatch.edits.spec import random_heads as other_heads
from anchorwatch.errors import SpecError
from anchorwatch.trace.schema import RunShape


@dataclasses.dataclass(frozen=True)
class Setting:
    """The run that a control is made for."""

    shape: RunShape
    answer: tuple[int, ...]
    """Positions the run writes."""
    seed: int
    """Of the run: every run draws its own control."""


def dose_of(edits: Sequence[Edit]) -> int:
    """The number k of the one edit that has it; refused where none has, or several."""
    held = [edit.k for edit in edits if hasattr(edit, "k")]
    if len(held) != 1:
        raise SpecError(
            f"doses are numbers k of one edit, and of {', '.join(map(repr, edits))} "
            f"{len(held) or 'none'} have a k: give hide_sinks(1), or leave doses out"
        )
    return int(held[0])


def with_dose(edits: Sequence[Edit], k: int) -> tuple[Edit, ...]:
    """The edits, the one that has a number k with this one."""
    dose_of(edits)
    given: dict[str, Any] = {"k": k}
    return tuple(dataclasses.replace(e, **given) if hasattr(e, "k") else e for e in edits)


@dataclasses.dataclass
class ControlDraws:
    """Controls of a list of edits on their way: none may draw what another named or drew."""

    setting: Setting
    seed: int
    chance: np.random.Generator
    heads: set[tuple[int, int]]
    keys: set[int]


def random_controls(edits: Sequence[Edit], setting: Setting, seed: int) -> tuple[Edit, ...]:
    """Edits of equal budget, one for each, that chose by chance."""
    drawing = ControlDraws(
        setting,
        seed,
        np.random.default_rng((seed, setting.seed)),
        {head for edit in edits if isinstance(edit, knock_out) for head in edit.heads or ()},
        {key for edit in edits if isinstance(edit, hide_keys) for key in edit.positions},
    )
    return tuple(_control(edit, drawing) for edit in edits)


@singledispatch
def _control(edit: Edit, drawing: ControlDraws) -> Edit:
    raise SpecError(
        f"no random control is known for {edit!r}: give one of equal budget as control=edit, "
        "or control=None"
    )


@_control.register
def _no_control(edit: no_op, drawing: ControlDraws) -> Edit:
    return edit


@_control.register
def _sinks(edit: hide_sinks, drawing: ControlDraws) -> Edit:
    """Its own draws differ from run to run and from head to head."""
    same = {one.name: getattr(edit, one.name) for one in dataclasses.fields(edit)}
    return hide_random(**same, seed=drawing.seed)


@_control.register
def _heads(edit: knock_out, drawing: ControlDraws) -> Edit:
    if edit.heads is None:
        raise SpecError(
            f"{edit!r} takes whole layers out, which leaves no other heads to draw from: "
            "name at most half of a layer's heads, or give control=aw.edits.knock_out(layers=[...])"
        )
    shape, seed = drawing.setting.shape, int(drawing.chance.integers(2**31))
    sizes = {"layers": shape.layers, "per_layer": shape.heads}
    drawn = other_heads(edit.heads, **sizes, seed=seed, besides=drawing.heads)
    drawing.heads.update(drawn)
    return dataclasses.replace(edit, heads=drawn)


@_control.register
def _keys(edit: hide_keys, drawing: ControlDraws) -> Edit:
    """As many others of the prompt, and as many others of the answer."""
    answer, found = np.asarray(drawing.setting.answer), []
    every = np.arange(drawing.setting.shape.positions)
    for inside in (False, True):
        mine = [place for place in edit.positions if (place in answer) == inside]
        others = np.setdiff1d(every[np.isin(every, answer) == inside], list(drawing.keys))
        if len(mine) > len(others):
            part = "answer" if inside else "prompt"
            raise SpecError(
                f"{edit!r} hides {len(mine)} positions of the {part} and leaves {len(others)} to "
                "draw a control from: hide at most half, or give control=edit or None"
            )
        found += drawing.chance.choice(others, size=len(mine), replace=False).tolist()
    drawing.keys.update(found)
    return dataclasses.replace(edit, positions=tuple(sorted(found)))
