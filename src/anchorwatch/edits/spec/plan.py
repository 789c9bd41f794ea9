"""A list of edits: from a manifest, over some steps, and what it adds to a trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from anchorwatch.edits.spec.additions import (
    gate,
    kv_bias,
    off_by_one,
    register,
    sink_logit,
    sink_token,
)
from anchorwatch.edits.spec.canvas import (
    CanvasEdit,
    delay_commit,
    force_commit,
    freeze_canvas,
    swap_token,
)
from anchorwatch.edits.spec.edit import Edit, no_op
from anchorwatch.edits.spec.heads import knock_out
from anchorwatch.edits.spec.keys import hide_keys, hide_lowest, hide_random, hide_sinks
from anchorwatch.errors import SpecError
from anchorwatch.trace.schema import Field, RunShape, field

EDITS: dict[str, type[Edit]] = {
    kind.__name__: kind
    for kind in (
        *(hide_keys, hide_sinks, hide_random, hide_lowest, knock_out, no_op),
        *(swap_token, force_commit, delay_commit, freeze_canvas),
        *(sink_token, register, off_by_one, sink_logit, kv_bias, gate),
    )
}


def from_dict(fields: Mapping[str, Any]) -> Edit:
    """The edit a manifest describes; the inverse of `as_dict`."""
    rest = dict(fields)
    name = rest.pop("name", None)
    if name not in EDITS:
        raise SpecError(f"no edit is called {name!r}: expected one of {', '.join(EDITS)}")
    known = {one.name for one in dataclasses.fields(EDITS[name])}
    if unknown := sorted(set(rest) - known):
        raise SpecError(f"{name} has no {', '.join(unknown)}: it takes {', '.join(sorted(known))}")
    for one in dataclasses.fields(EDITS[name]):
        required = one.default is one.default_factory is dataclasses.MISSING
        if required and one.name not in rest:
            raise SpecError(f"{name} needs its {one.name}: say {one.name} = ...")
    return EDITS[name](**rest)


def limit_to_steps(edit: Edit, steps: range) -> Edit | None:
    """The edit at those of its steps that are among these; None where none is left."""
    if isinstance(edit, CanvasEdit):
        return edit.among(steps)
    left = tuple(steps if edit.steps is None else (one for one in edit.steps if one in steps))
    if left == (0,) and getattr(edit, "remembers", False):
        return None  # there is no step before the first
    return dataclasses.replace(edit, steps=left) if left else None


def slots(edits: tuple[Edit, ...]) -> list[slice]:
    """Where on the last axis of `hidden_keys` each edit writes."""
    ends = np.cumsum([0, *(edit.ranks for edit in edits)]).tolist()
    return [slice(a, b) for a, b in pairwise(ends)]


def fields_of(edits: tuple[Edit, ...], shape: RunShape) -> Iterator[Field]:
    """What edits add to a trace: what they decided, and what stood where a token was swapped."""
    if any(isinstance(edit, swap_token) for edit in edits):
        says = "token that was given or committed, whatever an edit put in its place"
        yield field("own_token", ("position",), "int32", "token id", says, shape)
    total = sum(edit.ranks for edit in edits)
    if not total:
        return
    dims = ("step", "layer", "head", "hidden")
    says = "keys the edits hid, in the order of the manifest's edits"
    yield field("hidden_keys", dims, "int32", "position", says, shape, total)
    says = "rows, over all heads, that would have lost their last key and kept their best"
    yield field("spared_rows", dims[:2], "int32", "queries", says, shape)
