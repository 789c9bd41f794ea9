"""How far a folder of runs is: done, running, failed with reasons, time left. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from anchorwatch.errors import TraceError
from anchorwatch.sweeps.spec import keys_of
from anchorwatch.trace.cells import SWEEPS, open_cells
from anchorwatch.trace.escape import one_line

_RECENT = 200
"""Cells whose times say how long the others will take."""


@dataclass(frozen=True)
class SweepStatus:
    """Counts of the cells of all sweeps of a folder."""

    path: str
    cells: int
    done: int
    running: dict[str, str]
    """Which process computes a cell."""
    failed: dict[str, str]
    """Why a cell could not be made."""
    computed: int
    """Times a cell was begun, as the journals say; 0 where a bucket keeps none."""
    seconds_per_cell: float | None
    minutes_left: float | None
    """At the rate of the workers that run now; None where none does or nothing is known yet."""
    sweeps: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each record of a sweep in the folder, how many cells are there, and how many it wants."""

    @property
    def left(self) -> int:
        return self.cells - self.done

    @property
    def exit_code(self) -> int:
        """0: all are there; 3: some are missing; 1: none is there."""
        if not self.left:
            return 0
        return 3 if self.done else 1

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"left": self.left}

    def __str__(self) -> str:
        share = self.done / max(1, self.cells)
        lines = [
            f"{self.done:,} of {self.cells:,} cells done ({share:.0%}), {len(self.running)} "
            f"running, {len(self.failed)} failed, {self.left - len(self.failed)} to do"
        ]
        if self.minutes_left is not None:
            lines.append(
                f"{self.seconds_per_cell:.3g} s a cell, about {self.minutes_left:.3g} min left"
            )
        reasons: dict[str, list[str]] = {}
        for cell, reason in self.failed.items():
            reasons.setdefault(one_line(reason), []).append(cell)
        for reason, cells in sorted(reasons.items(), key=lambda pair: -len(pair[1])):
            lines.append(f"  failed {len(cells)}, such as {cells[0][:12]}: {reason}")
        if len(self.sweeps) > 1:
            lines.append(
                f"{len(self.sweeps)} sweeps share the folder; without its record, what only one of "
                "them wants is not counted"
            )
            for name, (done, wanted) in self.sweeps.items():
                lines.append(f"  {SWEEPS}/{name}: {done:,} of {wanted:,}")
        return "\n".join(lines)


def read_status(path: str | Path) -> SweepStatus:
    """What is there of the sweeps of a folder."""
    folder = open_cells(path)
    sweeps = folder.sweeps()
    if not sweeps:
        raise TraceError(f"there is no sweep at {path}: `anchorwatch sweep SPEC.toml -o` makes one")
    cells = {
        name: {cell.name for cell in keys_of(record).cells()} for name, record in sweeps.items()
    }
    wanted, there = set[str]().union(*cells.values()), folder.done()
    done = there & wanted
    running = {cell: who for cell, who in folder.running().items() if cell in wanted - done}
    failures = folder.failures()
    failed = {
        cell: str(record.get("reason"))
        for cell, record in failures.items()
        if cell in wanted - done and cell not in running
    }
    lines = list(folder.journal())
    each = sorted((x for x in lines if x.get("event") == "done"), key=lambda x: x["when"])
    seconds = median(x["seconds"] for x in each[-_RECENT:]) if each else None
    left = len(wanted) - len(done) - len(failed)
    minutes = None
    if seconds is not None and running:
        minutes = seconds * left / len(running) / 60
    begun = sum(x.get("event") == "begin" for x in lines)
    return SweepStatus(
        folder.path,
        len(wanted),
        len(done),
        running,
        failed,
        begun,
        seconds,
        minutes,
        {name: (len(names & there), len(names)) for name, names in cells.items()},
    )
