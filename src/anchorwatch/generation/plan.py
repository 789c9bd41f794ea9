"""What a run will keep and cost, known and checked before it starts: fields, passes, bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from anchorwatch.edits.spec import Edit
from anchorwatch.edits.spec import fields_of as edit_fields
from anchorwatch.errors import SpecError
from anchorwatch.probes.spec import GROUPS, PROBES, Probe
from anchorwatch.trace import machine_limits as limits
from anchorwatch.trace.schema import Field, RunShape

BUDGET_BYTES = 8_000_000_000
"""What a run may keep in memory unless another budget is given."""

_TILES_BYTES = 64_000_000

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """What a run will do and keep."""

    forward_passes: int
    """At most; a decoding may stop earlier."""
    fields: tuple[Field, ...]
    rows: int | None = None
    """Query rows of all passes at most; None where a pass is over the whole text so far."""
    approximate: str | None = None
    """The approximate cache, as a word."""

    @property
    def disk_bytes(self) -> int:
        """Before compression."""
        return sum(field.num_bytes for field in self.fields)

    @property
    def peak_bytes(self) -> int:
        """Memory above what plain generation takes: the fields in float32, and a few tiles."""
        return sum(_memory_bytes(field) for field in self.fields) + _TILES_BYTES

    def within(self, budget: float, block: int | None = None) -> Plan:
        """This plan, or a refusal that names the cheaper probe; `block` steps are held at once."""
        if not isinstance(budget, int | float | np.number) or isinstance(budget, bool):
            raise SpecError(f"budget={budget!r} is not a number of bytes: say 8_000_000_000")
        # 1. Bytes by field; several runs have several of a name.
        sizes: dict[str, int] = {}
        for field in self.fields:
            sizes[field.name] = sizes.get(field.name, 0) + _memory_bytes(field, block)
        peak = sum(sizes.values()) + _TILES_BYTES
        if peak <= budget:
            return self
        # 2. The largest field, and what its probe has that is cheaper.
        what = "the run" if len(sizes) == len(self.fields) else "these runs together"
        problem = f"{what} would keep {limits.size(peak)} and the budget is {limits.size(budget)}"
        if not sizes:
            raise SpecError(f"{problem}: give a budget of at least {peak}")
        worst = max(sizes, key=sizes.__getitem__)
        name = worst.removeprefix("blind_").removesuffix("_before_rotary")
        advice = {field: way for kind in PROBES.values() for field, way in kind.cheaper.items()}
        cheaper = advice.get(name, f"leave the probe of {name} out, or decode in fewer steps")
        fewer = "" if what == "the run" else ", or fewer prompts at a time"
        raise SpecError(
            f"{problem}: {worst} alone takes {limits.size(sizes[worst])}; try {cheaper}{fewer}"
        )

    def __str__(self) -> str:
        rows = [f"{self.forward_passes} forward passes"]
        if self.rows is not None:
            rows[0] += f" of {self.rows} rows"
        if self.approximate is not None:
            rows[0] += f", approximate: {self.approximate}"
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
    # A generator can be read once: it becomes a tuple here and nowhere else.
    if isinstance(given, Iterable) and not isinstance(given, str | Mapping):
        values = tuple(given)
        if all(isinstance(value, kind) for value in values):
            return values
        wrong = next(value for value in values if not isinstance(value, kind))
    got = f"the class {wrong.__name__}" if isinstance(wrong, type) else f"{wrong!r:.60}"
    raise SpecError(f"{name} is a list of values, for example [{example}]: got {got}")


def fields_of(
    probes: Sequence[Probe], shape: RunShape, edits: Sequence[Edit] = ()
) -> dict[str, Field]:
    """Every field of probes and edits, each once; two probes that disagree are refused."""
    fields: dict[str, Field] = {}
    common: dict[str, tuple[Any, ...]] = {}
    for probe in probes:
        _check_probe(probe, shape)
        # Two probes of a kind write the same arrays: they must mean the same by them.
        kind = type(probe).__name__
        if common.setdefault(kind, probe.common) != probe.common:
            raise SpecError(f"two probes give {kind} differently: ask for one of them")
        for field in probe.fields(shape):
            if fields.setdefault(field.name, field) != field:
                raise SpecError(f"two probes give {field.name} differently: ask for one of them")
    # Under guidance the branch without the prompt is measured as well.
    for name in list(fields) if shape.branches == 2 else ():
        fields[f"blind_{name}"] = replace(fields[name], name=f"blind_{name}")
    return fields | {field.name: field for field in edit_fields(tuple(edits), shape)}


def _check_probe(probe: Probe, shape: RunShape) -> None:
    """Refuse a probe that asks for what a run of this shape does not have."""
    kind = type(probe).__name__
    if probe.needs_regions and not shape.regions:
        raise SpecError(
            f"{kind} needs regions: aw.run(..., regions={{'passage': 'some words of it'}}), "
            "or aw.replay(..., regions=...) for a trace"
        )
    if probe.reads_experts and not shape.experts:
        raise SpecError(f"{kind} needs a mixture of experts: this model has none, leave it out")
    if shape.approximate and (probe.needs_all_rows or probe.needs_all_states):
        raise SpecError(
            f"{probe!r} needs all rows at every step, and the decoding's cache leaves rows out: "
            "run it without cache="
        )
    if shape.evicting and probe.needs_map:
        raise SpecError(
            f"{probe!r} reads attention, and evicting hides keys, so that no null is known: leave "
            "it out (probes=()), or use cache=dual"
        )
    if shape.cached and probe.needs_all_rows:
        raise SpecError(f"{probe!r} needs all rows at once: say cache=False in the decoding")
    # Numbers that a probe names must exist in the run.
    sizes = {"layers": shape.layers, "heads": shape.heads, "hidden": shape.positions}
    for name, size in sizes.items():
        for number in getattr(probe, name, None) or ():
            if number >= size:
                what = f"{kind}({name}=[{number}])"
                raise SpecError(f"{what} is not there: this run has 0 to {size - 1}")
    # A run may stop early, so that only a probe whose first step is too late is refused.
    if probe.steps is not None and min(probe.steps) >= shape.steps:  # a run may stop early
        what = f"{kind}(steps={list(probe.steps)})"
        raise SpecError(f"{what} would measure nothing: this run has 0 to {shape.steps - 1}")
    known = (*GROUPS, *shape.regions)
    for group in getattr(probe, "groups", ()):
        if group not in known:
            raise SpecError(
                f"no query group is called {group!r}: expected one of {', '.join(known)}"
            )


def _memory_bytes(field: Field, block: int | None = None) -> int:
    """What a field takes in memory: floats are float32 there, of all steps or of a block."""
    sizes, copies = field.sizes, 1
    if block is not None and field.dims[0] == "step":
        sizes = (block, *sizes[1:])
    elif block is not None:
        copies = 2  # one on its way to disk
    return copies * math.prod(sizes) * max(np.dtype(field.dtype).itemsize, 4)
