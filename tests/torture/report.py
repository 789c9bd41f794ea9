"""What was tried and what came of it: cases, the table of them, and where it is kept."""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torture.children import Ended

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- begin: make torture -->", "<!-- end: make torture -->"
PART_OF = {
    "SIGKILL": "killed",
    "bit flip": "damaged",
    "truncation": "damaged",
    "bad input": "bad input",
}
PARTS = tuple(dict.fromkeys(PART_OF.values()))
COLUMNS = ("faults", "inputs", "lost", "tracebacks", "hangs")


@dataclass
class Case:
    """One thing that was done to the project."""

    part: str
    """SIGKILL, bit flip, truncation or bad input."""
    about: str
    """The command or the kind of file."""
    faults: int = 0
    inputs: int = 0
    lost: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Temporary files that stayed."""
    folder: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.lost or self.tracebacks or self.hangs)

    def tried(self, what: str, ended: Ended) -> None:
        """Keep a traceback or a hang of a command."""
        if ended.traceback:
            self.tracebacks.append(f"{what} (code {ended.code}): {ended.stderr.strip()[-1500:]}")
        if ended.hung:
            self.hangs.append(what)

    def lose(self, what: str) -> None:
        self.lost.append(what)


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    part: str
    about: str
    faults: int
    inputs: int
    lost: int
    tracebacks: int
    hangs: int


def rows_of(cases: Iterable[Case]) -> list[Row]:
    """A row for each part and command or kind of file; after each part its sums, and all at last."""
    every = list(cases)
    rows: list[Row] = []
    for part in PARTS:
        mine = [case for case in every if PART_OF[case.part] == part]
        kinds: dict[str, list[Case]] = {}
        for case in sorted(mine, key=lambda case: case.about):
            kinds.setdefault(case.about, []).append(case)
        rows += [_row(part, about, held) for about, held in kinds.items()]
        if kinds:
            rows.append(_row(f"**{part}**", "**all**", mine))
    return [*rows, _row("**all**", "", every)]


def _row(part: str, about: str, cases: list[Case]) -> Row:
    return Row(
        part,
        about,
        sum(case.faults for case in cases),
        sum(case.inputs for case in cases),
        sum(len(case.lost) for case in cases),
        sum(len(case.tracebacks) for case in cases),
        sum(len(case.hangs) for case in cases),
    )


def as_text(rows: list[Row]) -> str:
    """The table as Markdown, which a terminal shows as well."""
    head = ("", "", "faults injected", "inputs tried", *COLUMNS[2:])
    lines = [head, ("---", "---", *("---:",) * len(COLUMNS))]
    for row in rows:
        lines.append((row.part, row.about, *(f"{getattr(row, name):,}" for name in COLUMNS)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sentence(cases: list[Case], seed: int, minutes: float) -> str:
    """How the table came about."""
    count = {part: sum(case.faults for case in cases if case.part == part) for part in PART_OF}
    left = sum(len(case.left) for case in cases)
    return (
        f"Seed {seed}, {minutes:.1f} minutes with {os.cpu_count()} cores: {count['SIGKILL']} kills, "
        f"{count['bit flip']} bit flips, {count['truncation']} truncations, "
        f"{sum(case.inputs for case in cases)} bad inputs; {left} temporary files were left over."
    )


def as_json(rows: list[Row], cases: list[Case], about: dict) -> str:
    failed = [asdict(case) for case in cases if case.failed or case.left]
    held = {"about": about, "rows": [asdict(row) for row in rows], "failed": failed}
    return json.dumps(held, indent=1)


def write_table(text: str) -> None:
    """Put the table between the marks of the document."""
    document = DOCUMENT.read_text()
    between = re.compile(f"(?<={re.escape(BEGIN)}\n).*(?={re.escape(END)})", re.DOTALL)
    if not between.search(document):
        raise SystemExit(f"{DOCUMENT} lacks the marks {BEGIN} and {END}")
    DOCUMENT.write_text(between.sub(lambda _: f"\n{text}\n\n", document))
