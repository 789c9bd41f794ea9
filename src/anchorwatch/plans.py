"""What a run will cost, said before it starts: forward passes, bytes on disk, bytes in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from anchorwatch.errors import SpecError
from anchorwatch.fields import Field

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

    def within(self, budget: int, block: int | None = None) -> Plan:
        """This plan, or a refusal that names the cheaper probe; `block` steps are held at once."""
        held = {field.name: _held_bytes(field, block) for field in self.fields}
        peak = sum(held.values()) + _TILES_BYTES
        if peak <= budget:
            return self
        said = f"the run would keep {_size(peak)} and the budget is {_size(budget)}"
        if not held:
            raise SpecError(f"{said}: give a budget of at least {peak}")
        worst = max(held, key=held.__getitem__)
        name = worst.removeprefix("blind_").removesuffix("_before_rotary")
        cheaper = _CHEAPER.get(name, f"leave the probe of {name} out, or decode in fewer steps")
        raise SpecError(f"{said}: {worst} alone takes {_size(held[worst])}; try {cheaper}")

    def __str__(self) -> str:
        rows = [f"{self.forward_passes} forward passes"]
        for field in sorted(self.fields, key=lambda field: -field.num_bytes):
            dims = " x ".join(
                f"{dim} {size}" for dim, size in zip(field.dims, field.sizes, strict=True)
            )
            rows.append(f"  {_size(field.num_bytes):>9}  {field.name}  {field.dtype}  [{dims}]")
        rows.append(f"{_size(self.disk_bytes)} on disk, {_size(self.peak_bytes)} in memory")
        return "\n".join(rows)


def _held_bytes(field: Field, block: int | None = None) -> int:
    """What a field takes in memory: floats are float32 there, of all steps or of a block."""
    sizes, copies = field.sizes, 1
    if block is not None and field.dims[0] == "step":
        sizes = (block, *sizes[1:])
    elif block is not None:
        copies = 2  # one on its way to disk
    return copies * math.prod(sizes) * max(np.dtype(field.dtype).itemsize, 4)


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
