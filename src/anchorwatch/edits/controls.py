"""The control of an edit: as much is changed, and chosen by chance.

An edit that does something is no news: any edit of that size may. What it does beyond an edit of
equal budget is about what was chosen. How an edit draws its control is its own `control` method.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from anchorwatch.edits.spec import Edit
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


@dataclasses.dataclass
class ControlDraws:
    """What the controls of a list of edits share: none may draw what another named or drew."""

    setting: Setting
    seed: int
    chance: np.random.Generator
    heads: set[tuple[int, int]]
    """(layer, head) that are taken: named by an edit, or drawn before."""
    keys: set[int]
    """Positions that are taken."""


def random_controls(edits: Sequence[Edit], setting: Setting, seed: int) -> tuple[Edit, ...]:
    """Edits of equal budget, one for each, that chose by chance."""
    draws = ControlDraws(
        setting,
        seed,
        # The run's seed is part of it: every run has another control.
        np.random.default_rng((seed, setting.seed)),
        # What any edit of the list names is no control for another one.
        {head for edit in edits for head in edit.named_heads},
        {key for edit in edits for key in edit.named_keys},
    )
    return tuple(edit.control(draws) for edit in edits)


def dose_of(edits: Sequence[Edit]) -> int:
    """The number k of the one edit that has it; refused where none has, or several."""
    doses = [edit.k for edit in edits if hasattr(edit, "k")]
    if len(doses) != 1:
        raise SpecError(
            f"doses are numbers k of one edit, and of {', '.join(map(repr, edits))} "
            f"{len(doses) or 'none'} have a k: give hide_sinks(1), or leave doses out"
        )
    return int(doses[0])


def with_dose(edits: Sequence[Edit], k: int) -> tuple[Edit, ...]:
    """The edits, the one that has a number k with this one."""
    # Refuses a list in which no edit, or more than one, has a dose.
    dose_of(edits)
    given: dict[str, Any] = {"k": k}
    return tuple(dataclasses.replace(e, **given) if hasattr(e, "k") else e for e in edits)
