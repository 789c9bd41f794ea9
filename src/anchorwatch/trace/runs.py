"""A folder of runs as one table and lazily opened traces.

`index.parquet` holds a row for each cell. It is made of the cells and can be made again at any
time: cells that it lacks are read, those that are gone are left out.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, overload

import pandas as pd

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.trace.atomic_io import UNREADABLE, find_damage
from anchorwatch.trace.cells import INDEX, CellFolder, is_study, open_cells
from anchorwatch.trace.study_runs import read_study_runs
from anchorwatch.trace.trace import Trace, read

LABELS = ("model", "prompt", "context", "decoding", "edit", "seed")
COLUMNS = ("cell", *LABELS, "steps", "positions", "left_masked", "bytes", "answer", "trace")
CLAIMS = "claims"
"""Of a study's runs: the claims that were judged on each, with spaces between them."""
Wanted = str | int | Iterable[str | int] | None
"""A label, or several."""
_NUMBERS = ("seed", "steps", "positions", "left_masked", "bytes")


class TraceFolder(Protocol):
    """Where the traces of a table are."""

    path: str

    def trace_path(self, cell: str) -> Path: ...
    def record(self, cell: str) -> dict[str, Any]: ...


class Runs(Sequence[Trace]):
    """Cells of a folder: `table` has a row for each, and `runs[i]` opens the trace of row i.

    A `Runs` is a sequence of traces, which metrics and figures take as they take a list.
    """

    def __init__(self, folder: TraceFolder, table: pd.DataFrame) -> None:
        self._folder = folder
        self.table = table
        """A row for each cell: what it is of, its answer, steps and bytes."""

    @property
    def path(self) -> str:
        return self._folder.path

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, index: int) -> Trace: ...
    @overload
    def __getitem__(self, index: slice) -> Runs: ...
    def __getitem__(self, index: int | slice) -> Trace | Runs:
        if isinstance(index, slice):
            return Runs(self._folder, self.table.iloc[index].reset_index(drop=True))
        return read(self.trace_path(index))

    def trace_path(self, index: int) -> Path:
        """Where the trace of a row can be read; from a bucket it is brought here first."""
        return self._folder.trace_path(str(self.table["cell"].iloc[index]))

    def __iter__(self) -> Iterator[Trace]:
        return (self[index] for index in range(len(self)))

    def select(
        self,
        words: str = "",
        /,
        *,
        model: Wanted = None,
        prompt: Wanted = None,
        context: Wanted = None,
        decoding: Wanted = None,
        edit: Wanted = None,
        seed: Wanted = None,
    ) -> Runs:
        """The runs with these labels, and with all of the words somewhere in their row.

        `runs.select(edit="none", seed=[0, 1])`; `runs.select("lab/mdm oslo")`.
        """
        table = self.table
        labels = dict(zip(LABELS, (model, prompt, context, decoding, edit, seed), strict=True))
        for name, value in labels.items():
            if value is None:
                continue
            wanted = [value] if isinstance(value, str | int) else value
            table = table[table[name].isin(list(wanted))]
        if words.split():
            text = searchable_text(table)
            for word in words.lower().split():
                keep = text.str.contains(word, regex=False)
                table, text = table[keep], text[keep]
        return Runs(self._folder, table.reset_index(drop=True))

    def damage(self) -> dict[str, str]:
        """Cells whose trace or record is not as it was written, each with a sentence."""
        damage = {}
        for index, cell in enumerate(self.table["cell"]):
            try:
                self._folder.record(cell)
                problems = find_damage(self.trace_path(index))
            except TraceError as error:
                problems = [str(error)]
            if problems:
                damage[str(cell)] = problems[0]
        return damage

    def __repr__(self) -> str:
        counts = ", ".join(f"{self.table[name].nunique()} {name}s" for name in LABELS[:2])
        return f"Runs({len(self)} cells at {self.path}: {counts})"


def parse_labels(words: Iterable[str]) -> dict[str, list[str | int]]:
    """Labels as `Runs.select` takes them.

    >>> parse_labels(["edit=none", "seed=0", "seed=1"])
    {'edit': ['none'], 'seed': [0, 1]}
    """
    labels: dict[str, list[str | int]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in LABELS:
            raise SpecError(f"{word!r} is no label of a run: expected {', '.join(LABELS)} = ...")
        if name == "seed" and not value.isdecimal():
            raise SpecError(f"{word!r} is no seed: say seed=0")
        labels.setdefault(name, []).append(int(value) if name == "seed" else value)
    return labels


def searchable_text(table: pd.DataFrame) -> pd.Series:
    """The words of each row, in small letters."""
    columns = [name for name in (*LABELS, "answer", "cell") if name in table]
    joined = table[columns[0]].astype(str)
    for name in columns[1:]:
        joined = joined.str.cat(table[name].astype(str), sep=" ")
    return joined.str.lower()


def open_runs(path: str | Path) -> Runs:
    """The runs of a folder that `anchorwatch sweep` made, also while it is still at it.

    Of the folder of a study, the runs that its claims were judged on: a column `claims` says which.

    Args:
        path: a folder, or an address that fsspec opens: s3://, gs://, memory://.
    """
    if is_study(path):
        traces, rows = read_study_runs(path, (*COLUMNS, CLAIMS))
        return Runs(traces, _typed(rows, path))
    folder = open_cells(path)
    table = build_index(folder, keep=False)
    if table.empty and not folder.sweeps():
        raise TraceError(
            f"there are no runs at {path}: `anchorwatch sweep SPEC.toml -o` makes some"
        )
    return Runs(folder, table)


def build_index(folder: CellFolder, *, keep: bool = True, anew: bool = False) -> pd.DataFrame:
    """The table of all cells; `keep` writes it as index.parquet, `anew` reads no older one."""
    there = folder.done()
    before = _table([]) if anew else _read_index(folder)
    known = before[before["cell"].isin(there)]
    new = sorted(there - set(known["cell"]))
    rows = [_row(folder, cell) for cell in new]
    table = pd.concat([known, _table(rows)], ignore_index=True) if rows else known
    table = table.sort_values(["model", "prompt", "decoding", "edit", "seed", "cell"])
    table = table.reset_index(drop=True)
    if keep and (new or len(known) < len(before) or anew):
        buffer = io.BytesIO()
        table.to_parquet(buffer, index=False, write_page_checksum=True)
        folder.write_bytes(INDEX, buffer.getvalue())
    return table


def _row(folder: CellFolder, cell: str) -> dict[str, Any]:
    record = folder.record(cell)
    if record.get("cell") != cell:
        raise TraceError(f"{folder.path} has {record.get('cell')} under the name {cell}: remove it")
    labels = record["labels"]
    return {name: labels[name] if name in LABELS else record[name] for name in COLUMNS}


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return _typed(pd.DataFrame(rows, columns=list(COLUMNS)))


def _typed(table: pd.DataFrame, path: str | Path = "") -> pd.DataFrame:
    try:
        return table.astype({n: "int64" if n in _NUMBERS else "str" for n in table.columns})
    except ValueError as error:
        raise TraceError(f"the runs of {path} have no such number: {error}") from None


def _read_index(folder: CellFolder) -> pd.DataFrame:
    """The index as it was written last; empty where it is missing, damaged or of other columns."""
    try:
        content = io.BytesIO(folder.read_bytes(INDEX))
        table = pd.read_parquet(content, page_checksum_verification=True)
        if tuple(table.columns) != COLUMNS:
            return _table([])
        return table.astype({name: "int64" if name in _NUMBERS else "str" for name in COLUMNS})
    except UNREADABLE:
        return _table([])
