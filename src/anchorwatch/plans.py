"""What a run will cost, said before it starts: forward passes, bytes on disk, bytes in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorwatch.errors import SpecError
from anchorwatch.fields import Field

BUDGET_BYTES = 8_000_000_000
"""What a run may keep in memory unless it is told otherwise."""

_TILES_BYTES = 64_000_000

_CHEAPER = {
    "pattern": "name fewer layers, heads or steps, or keep `received`",
    "received": "fewer groups or steps, or received(layers=[...])",
    "row_top_key": "top_keys(every_row=False)",
    "row_top_mass": "top_keys(every_row=False)",
    "row_entropy": "entropy(rows=False)",
    "row_diagonal": "diagonal(rows=False)",
}


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
        held = sum(
            int(np.prod(field.sizes)) * max(np.dtype(field.dtype).itemsize, 4)
            for field in self.fields
        )
        return held + _TILES_BYTES

    def within(self, budget: int) -> Plan:
        """This plan, or a refusal that names the cheaper probe."""
        if self.peak_bytes <= budget:
            return self
        worst = max(self.fields, key=lambda field: field.num_bytes)
        name = worst.name.removeprefix("blind_")
        cheaper = _CHEAPER.get(name, f"leave the probe of {name} out, or name its steps")
        raise SpecError(
            f"the run would keep {_size(self.peak_bytes)} and the budget is {_size(budget)}: "
            f"{worst.name} alone takes {_size(worst.num_bytes)}; try {cheaper}"
        )

    def __str__(self) -> str:
        rows = [f"{self.forward_passes} forward passes"]
        for field in sorted(self.fields, key=lambda field: -field.num_bytes):
            dims = " x ".join(
                f"{dim} {size}" for dim, size in zip(field.dims, field.sizes, strict=True)
            )
            rows.append(f"  {_size(field.num_bytes):>9}  {field.name}  {field.dtype}  [{dims}]")
        rows.append(f"{_size(self.disk_bytes)} on disk, {_size(self.peak_bytes)} in memory")
        return "\n".join(rows)


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
