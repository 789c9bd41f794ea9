"""What a run will keep and cost, said and checked before it starts: probes, passes, bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from anchorwatch.edits.spec import Detecting, Edit, Hiding, Oracle, hide_keys, knock_out
from anchorwatch.edits.spec import fields_of as edit_fields
from anchorwatch.errors import SpecError
from anchorwatch.probes.spec import GROUPS, Probe, region_rollout
from anchorwatch.trace import machine_limits as limits
from anchorwatch.trace.schema import Field, RunShape

BUDGET_BYTES = 8_000_000_000
"""What a run may keep in memory unless it is told otherwise."""

_TILES_BYTES = 64_000_000

_CHEAPER = {
    "pattern": "name fewer layers, heads or steps, or keep `received`",
    "received": "received(groups=('all',))",
    "row_top_key": "top_keys(every_row=False)",
    "row_top_mass": "top_keys(every_row=False)",
    "row_entropy": "entropy(rows=False)",
    "row_diagonal": "diagonal(rows=False)",
    "residual_norm": "norms(residual=False)",
    **{f"each_{name}": "qk_geometry(keys=False)" for name in ("cosine", "norm_product", "logit")},
    **{f"each_{name}_norm": "norms(keys=False)" for name in ("key", "value", "contribution")},
}
"""Layers and steps of a probe are not here: what it does not look at is kept as absent."""

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """What a run will do and keep."""

    forward_passes: int
    """At most; a decoding may stop earlier."""
    fields: tuple[Field, ...]

    @property
    def disk_bytes(self) -> int:
        """Before compression."""
        return sum(field.num_bytes for field in self.fields)

    @property
    def peak_bytes(self) -> int:
        """Memory above what plain generation takes: the fields in float32, and a few tiles."""
        return sum(_held_bytes(field) for field in self.fields) + _TILES_BYTES

    def within(self, budget: float, block: int | None = None) -> Plan:
        """This plan, or a refusal that names the cheaper probe; `block` steps are held at once."""
        if not isinstance(budget, int | float | np.number) or isinstance(budget, bool):
            raise SpecError(f"budget={budget!r} is not a number of bytes: say 8_000_000_000")
        held: dict[str, int] = {}
        for field in self.fields:  # several runs have several of a name
            held[field.name] = held.get(field.name, 0) + _held_bytes(field, block)
        peak = sum(held.values()) + _TILES_BYTES
        if peak <= budget:
            return self
        what = "the run" if len(held) == len(self.fields) else "these runs together"
        said = f"{what} would keep {limits.size(peak)} and the budget is {limits.size(budget)}"
        if not held:
            raise SpecError(f"{said}: give a budget of at least {peak}")
        worst = max(held, key=held.__getitem__)
        name = worst.removeprefix("blind_").removesuffix("_before_rotary")
        cheaper = _CHEAPER.get(name, f"leave the probe of {name} out, or decode in fewer steps")
        fewer = "" if what == "the run" else ", or fewer prompts at a time"
        raise SpecError(
            f"{said}: {worst} alone takes {limits.size(held[worst])}; try {cheaper}{fewer}"
        )

    def __str__(self) -> str:
        rows = [f"{self.forward_passes} forward passes"]
        for field in sorted(self.fields, key=lambda field: -field.num_bytes):
            dims = " x ".join(
                f"{dim} {size}" for dim, size in zip(field.dims, field.sizes, strict=True)
            )
            rows.append(
                f"  {limits.size(field.num_bytes):>9}  {field.name}  {field.dtype}  [{dims}]"
            )
        rows.append(
            f"{limits.size(self.disk_bytes)} on disk, {limits.size(self.peak_bytes)} in memory"
        )
        return "\n".join(rows)


def probe_list(given: Any) -> tuple[Probe, ...]:
    """The probes of a list (or of a generator, which is read once here); all else is refused."""
    return _values(given, "probes", Probe, "aw.probes.received()")


def edit_list(given: Any) -> tuple[Edit, ...]:
    """The edits of a list; all else is refused."""
    return _values(given, "edits", Edit, "aw.edits.hide_keys([0])")


def _values(given: Any, name: str, kind: type[T], example: str) -> tuple[T, ...]:
    wrong = given
    if isinstance(given, Iterable) and not isinstance(given, str | Mapping):
        held = tuple(given)
        if all(isinstance(one, kind) for one in held):
            return held
        wrong = next(one for one in held if not isinstance(one, kind))
    got = f"the class {wrong.__name__}" if isinstance(wrong, type) else f"{wrong!r:.60}"
    raise SpecError(f"{name} is a list of values, for example [{example}]: got {got}")


def fields_of(
    probes: Sequence[Probe], shape: RunShape, edits: Sequence[Edit] = ()
) -> dict[str, Field]:
    """Every field of probes and edits, each once; two probes that disagree are refused."""
    found: dict[str, Field] = {}
    common: dict[str, tuple[Any, ...]] = {}
    for probe in probes:
        _fits(probe, shape)
        kind = type(probe).__name__
        if common.setdefault(kind, probe.common) != probe.common:
            raise SpecError(f"two probes give {kind} differently: ask for one of them")
        for one in probe.fields(shape):
            if found.setdefault(one.name, one) != one:
                raise SpecError(f"two probes give {one.name} differently: ask for one of them")
    for name in list(found) if shape.branches == 2 else ():
        found[f"blind_{name}"] = replace(found[name], name=f"blind_{name}")
    return found | {one.name: one for one in edit_fields(tuple(edits), shape)}


def _fits(probe: Probe, shape: RunShape) -> None:
    """Refuse a probe that asks for what a run of this shape does not have."""
    kind = type(probe).__name__
    if probe.needs_regions and not shape.regions:
        raise SpecError(
            f"{kind} needs regions: aw.run(..., regions={{'passage': 'some words of it'}}), "
            "or aw.replay(..., regions=...) for a trace"
        )
    rolls, before = isinstance(probe, region_rollout), getattr(probe, "rotary", None) == "before"
    if shape.cached and (rolls or before):
        raise SpecError(f"{probe!r} needs all rows at once: use LeftToRight(cache=False)")
    sizes = {"layers": shape.layers, "heads": shape.heads, "hidden": shape.positions}
    for name, size in sizes.items():
        for place in getattr(probe, name, None) or ():
            if place >= size:
                what = f"{kind}({name}=[{place}])"
                raise SpecError(f"{what} is not there: this run has 0 to {size - 1}")
    if probe.steps is not None and min(probe.steps) >= shape.steps:  # a run may stop early
        what = f"{kind}(steps={list(probe.steps)})"
        raise SpecError(f"{what} would measure nothing: this run has 0 to {shape.steps - 1}")
    known = (*GROUPS, *shape.regions)
    for group in getattr(probe, "groups", ()):
        if group not in known:
            raise SpecError(
                f"no query group is called {group!r}: expected one of {', '.join(known)}"
            )


def check_edits(edits: Sequence[Edit], shape: RunShape) -> None:
    """Refuse edits that a run of this shape cannot have, alone or together."""
    for edit in edits:
        _edit_fits(edit, shape)
    for place, edit in enumerate(edits):
        for other in edits[place + 1 :]:
            if why := _contradiction(edit, other, shape):
                raise SpecError(f"{edit!r} and {other!r} contradict each other: {why}")


def _edit_fits(edit: Edit, shape: RunShape) -> None:
    kind, pairs = type(edit).__name__, isinstance(edit, knock_out)
    heads = () if edit.heads is None else edit.heads
    asked = {
        "layers": (edit.layers or tuple(pair[0] for pair in heads if pairs), shape.layers),
        "heads": (tuple(pair[1] for pair in heads) if pairs else heads, shape.heads),
        "positions": (getattr(edit, "positions", ()), shape.positions),
    }
    for name, (places, size) in asked.items():
        if places and max(places) >= size:
            what = f"{kind}({name}=[{max(places)}])"
            raise SpecError(f"{what} is not there: this run has {name} 0 to {size - 1}")
    if edit.steps is not None and min(edit.steps) >= shape.steps:
        what = f"{kind}(steps={list(edit.steps)})"
        raise SpecError(f"{what} would change nothing: this run has 0 to {shape.steps - 1}")
    if edit.ranks >= shape.positions:
        raise SpecError(
            f"{kind} would hide {edit.ranks} keys of {shape.positions}: hide fewer than there are"
        )
    if isinstance(edit, Detecting):
        _detecting_fits(edit, shape)


def _detecting_fits(edit: Detecting, shape: RunShape) -> None:
    kind, known = type(edit).__name__, (*GROUPS, *shape.regions)
    if edit.eligible not in known:
        raise SpecError(
            f"eligible={edit.eligible!r} is unknown: expected one of {', '.join(known)}"
        )
    if edit.remembers and edit.steps == (0,):
        raise SpecError(
            f"{kind}(steps=[0]) has no step before it to decide by: use detect='same_shadow'"
        )
    if isinstance(edit.unedited, Oracle):
        _oracle_fits(edit.unedited, shape)


def _oracle_fits(oracle: Oracle, shape: RunShape) -> None:
    if oracle.shares is None:
        raise SpecError(
            "a manifest knows only the digest of the oracle's trace: give the trace again, "
            "hide_sinks(..., detect='oracle', unedited=trace)"
        )
    steps, *theirs = oracle.shares.shape
    if theirs != [shape.layers, shape.heads, shape.positions]:
        raise SpecError(
            "the oracle's trace has other layers, heads or positions than this run: "
            "give the unedited run of the same prompt and decoding"
        )
    if steps < shape.steps:
        raise SpecError(
            f"the oracle's trace ends before this run: it has {steps} steps of {shape.steps}; "
            "give the unedited run of the same decoding"
        )


def _contradiction(one: Edit, two: Edit, shape: RunShape) -> str | None:
    """Why two edits cannot act together, in words; None where they can."""
    if not _meet(one, two, shape):
        return None
    if isinstance(one, knock_out) and isinstance(two, knock_out) and one.form != two.form:
        return "a head is taken out in one way; give each its own heads or steps"
    if not (isinstance(one, Hiding) and isinstance(two, Hiding)):
        return None
    if (one.form, one.penalty) == (two.form, two.penalty):
        return None
    if isinstance(one, hide_keys) and isinstance(two, hide_keys):
        both = sorted(set(one.positions) & set(two.positions))
        return f"a key is hidden in one form, {both[0]} has two" if both else None
    return "both may find the same key and hide it in two forms; give both one form"


def _meet(one: Edit, two: Edit, shape: RunShape) -> bool:
    """Whether there is a head and a step at which both act."""
    steps = set(range(shape.steps) if one.steps is None else one.steps)
    if not steps & set(range(shape.steps) if two.steps is None else two.steps):
        return False
    (low, high), (lower, higher) = one.progress or (0, 1), two.progress or (0, 1)
    if max(low, lower) >= min(high, higher):
        return False
    return any(
        set(one.heads_at(layer, shape.heads)) & set(two.heads_at(layer, shape.heads))
        for layer in range(shape.layers)
    )


def _held_bytes(field: Field, block: int | None = None) -> int:
    """What a field takes in memory: floats are float32 there, of all steps or of a block."""
    sizes, copies = field.sizes, 1
    if block is not None and field.dims[0] == "step":
        sizes = (block, *sizes[1:])
    elif block is not None:
        copies = 2  # one on its way to disk
    return copies * math.prod(sizes) * max(np.dtype(field.dtype).itemsize, 4)
