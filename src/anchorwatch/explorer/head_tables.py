"""Tables of metrics in the head grid: what `anchorwatch measure --by layer,head` wrote of a run.

A row is one quantity of one head, with its null and interval; all of them go to the page. A plain
table, as `head_types` has it, is a row for each head: its numbers, and its verdict in a word. Rows
of other runs are left out, and a table that is about none of the runs shown is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError
from anchorwatch.explorer.measures import HeadMeasure
from anchorwatch.metrics.table_files import KINDS, parquet_reader, read_json_table
from anchorwatch.trace.atomic_io import UNREADABLE
from anchorwatch.trace.escape import csv_cell, one_line
from anchorwatch.trace.trace import Trace

BESIDE = ("null", "lift", "low", "high", "n")
"""What stands beside a value; absent where the table has no such column."""
_PLACES = ("model", "trace", "layer", "head", "step", "quantity")
_OF_TRACES = ("prompt", "seed", "decoding")
_NULLS = {"frontier_hit": "frontier_null"}
_MOST_WORDS = 32
_HOW = "measure it with --by layer,head (and step, trace)"
_LONGEST = 60


@dataclass(frozen=True, eq=False)
class MetricTable:
    """A table and what the page calls it."""

    name: str
    rows: pd.DataFrame
    """A row is a quantity of a head."""
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of quantities that are verdicts, what each number stands for."""


def check_table(name: str, rows: pd.DataFrame) -> MetricTable:
    """A table with a number for each head, or a sentence that says how to get one."""
    shown = one_line(name)[:_LONGEST] or "table"
    words: dict[str, tuple[str, ...]] = {}
    if "quantity" not in rows and {"layer", "head"} <= set(rows.columns):
        rows, words = _melt(rows)
    if missing := [word for word in ("layer", "head", "quantity", "value") if word not in rows]:
        raise SpecError(f"{shown} has no column {', '.join(missing)}: {_HOW}")
    keys = list(rows.columns[: list(rows.columns).index("quantity")])
    if more := [key for key in keys if key not in (*_PLACES, *_OF_TRACES)]:
        raise SpecError(f"{shown} is split by {', '.join(map(str, more))} too: {_HOW}")
    if "model" not in rows and "trace" not in rows:
        raise SpecError(f"{shown} does not say which model or trace it is about: {_HOW}")
    return MetricTable(shown, rows, words)


def _melt(rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, tuple[str, ...]]]:
    """A plain table as a row for each quantity of a head; words become numbers with a list."""
    keys = [name for name in rows.columns if name in (*_PLACES, *_OF_TRACES)]
    parts: list[pd.DataFrame] = []
    words: dict[str, tuple[str, ...]] = {}
    nulls = {_NULLS.get(str(name), f"{name}_null") for name in rows.columns}
    for name in (item for item in rows.columns if item not in keys and item not in nulls):
        column, null = rows[name], _NULLS.get(str(name), f"{name}_null")
        value = pd.to_numeric(column, errors="coerce")
        if value.isna().all() and column.notna().any():
            listed = sorted({one_line(str(item))[:_LONGEST] for item in column.dropna()})
            if len(listed) > _MOST_WORDS:
                continue
            words[str(name)] = tuple(listed)
            codes = {word: code for code, word in enumerate(listed)}
            spelled = column.map(lambda item: one_line(str(item))[:_LONGEST], na_action="ignore")
            value = spelled.map(codes)
        long = rows[keys].assign(quantity=str(name), value=pd.to_numeric(value))
        parts.append(long.assign(null=rows[null]) if null in rows else long)
    return (pd.concat(parts, ignore_index=True) if parts else rows), words


def read_table(path: str | Path) -> MetricTable:
    """A .csv, .json or .parquet file, as `anchorwatch measure -o` writes it."""
    file = Path(path)
    kind = file.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise SpecError(
            f"{file.name} is no table: its name ends in {', '.join(f'.{kind}' for kind in KINDS)}"
        )
    if not file.is_file():
        raise SpecError(f"there is no table {file}: `anchorwatch measure -o` writes one")
    try:
        return check_table(file.stem, _READERS[kind](file))
    except UNREADABLE as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(
            f"{file.name} cannot be read as a table of `anchorwatch measure`: "
            f"{one_line(str(error))[:200]}"
        ) from error


def _read_json(path: Path) -> pd.DataFrame:
    return pd.DataFrame(read_json_table(path)["rows"])


def _read_parquet(path: Path) -> pd.DataFrame:
    return parquet_reader().read_table(path, page_checksum_verification=True).to_pandas()


_READERS = {
    "csv": lambda place: pd.read_csv(place, dtype={"trace": str}, encoding="utf-8"),
    "json": _read_json,
    "parquet": _read_parquet,
}


def head_measures(tables: Iterable[MetricTable], trace: Trace) -> list[HeadMeasure]:
    """What the tables say of the heads of one run."""
    measures: list[HeadMeasure] = []
    for table in tables:
        mine = table.rows[_about(table.rows, trace)]
        # By text that is marked already: pandas cannot hold a lone surrogate.
        quantities = np.array([one_line(str(text)) for text in mine["quantity"]], dtype=object)
        for quantity in dict.fromkeys(quantities):
            rows = mine[quantities == quantity]
            name = f"{quantity} ({table.name})"[:_LONGEST]
            measures.append(
                HeadMeasure(
                    _unique_name(name, measures),
                    _describe(table, rows),
                    partial(dict, _fill_arrays(table, rows, trace)),
                    words=table.words.get(quantity, ()),
                    table=True,
                )
            )
    return measures


def refuse_strangers(tables: Sequence[MetricTable], traces: Sequence[Trace]) -> None:
    """Refuse a table that is about none of the traces."""
    for table in tables:
        if traces and not any(_about(table.rows, trace).any() for trace in traces):
            column = "trace" if "trace" in table.rows else "model"
            about = [one_line(str(text))[:80] for text in table.rows[column].unique()[:3]]
            raise SpecError(
                f"{table.name} is about {', '.join(about) or 'nothing'}, which is not shown: "
                "measure the traces that you look at"
            )


def _about(rows: pd.DataFrame, trace: Trace) -> np.ndarray:
    """[row] whether it is about this run: its model and edits, and its digest where there is one.

    A digest is of what was written: two models may have written the same.
    """
    mine = np.ones(len(rows), dtype=bool)
    if "trace" in rows:
        mine &= rows["trace"].astype(str).eq(trace.digest()[:12]).to_numpy()
    if "model" not in rows:
        return mine
    model = trace.manifest["model"]
    bases = (model["source"], f"{model['source']}@{model['weights'][:8]}")
    names = [", ".join([base, *map(repr, trace.edits)]) for base in bases]
    names += [csv_cell(name) for name in names]  # as a .csv has them
    return mine & rows["model"].astype(str).isin(names).to_numpy()


def _fill_arrays(table: MetricTable, rows: pd.DataFrame, trace: Trace) -> dict[str, np.ndarray]:
    """Rows as arrays over (steps or one, layers, heads)."""
    model = trace.manifest["model"]
    sizes = {"step": trace.num_steps, "layer": model["layers"], "head": model["heads"]}
    split = "step" in rows
    index = [_places(table, rows, name, sizes[name]) for name in ("layer", "head")]
    first = _places(table, rows, "step", sizes["step"]) if split else np.zeros(len(rows), int)
    shape = (sizes["step"] if split else 1, sizes["layer"], sizes["head"])
    flat = np.ravel_multi_index((first, *index), shape)
    if len(np.unique(flat)) < len(flat):
        raise SpecError(f"{table.name} has several rows for one head: {_HOW}")
    arrays = {}
    for name in ("value", *BESIDE):
        array = np.full(shape, np.nan, dtype=np.float32)
        if name in rows:
            array.flat[flat] = pd.to_numeric(rows[name], errors="coerce").to_numpy(np.float32)
        arrays["values" if name == "value" else name] = array
    return arrays


def _places(table: MetricTable, rows: pd.DataFrame, name: str, count: int) -> np.ndarray:
    numbers = pd.to_numeric(rows[name], errors="coerce").to_numpy(float)
    whole = (
        np.isfinite(numbers) & (numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < count)
    )
    if not whole.all():
        wrong = one_line(str(rows[name].to_numpy()[~whole][0]))[:40]
        raise SpecError(f"{table.name} names {name} {wrong}: the run has 0 to {count - 1}")
    return numbers.astype(int)


def _describe(table: MetricTable, rows: pd.DataFrame) -> str:
    when = "by step" if "step" in rows else "over all steps"
    verdicts = sorted(map(str, rows["verdict"].dropna().unique())) if "verdict" in rows else []
    has_null = "null" in rows and rows["null"].notna().any()
    text = f"from {table.name}, {when}" + (", each number with its null" if has_null else "")
    return one_line(text + (f"; verdicts: {', '.join(verdicts)}" if verdicts else ""))[:200]


def _unique_name(name: str, measures: Sequence[HeadMeasure]) -> str:
    """A name that no other has: the page chooses by it."""
    known = {measure.name for measure in measures}
    if name not in known:
        return name
    bare = re.sub(r" #\d+$", "", name)
    numbered = (f"{bare} #{number}" for number in range(2, len(known) + 3))
    return next(other for other in numbered if other not in known)


def read_tables(paths: Iterable[Any]) -> list[MetricTable]:
    """Tables by path, those of a folder too; in a folder, tables without heads are left out."""
    tables: list[MetricTable] = []
    for path in map(Path, paths):
        if not path.is_dir():
            tables.append(read_table(path))
            continue
        inside = sorted(file for file in path.iterdir() if file.suffix.lower()[1:] in KINDS)
        readable = [table for file in inside if (table := _if_of_heads(file)) is not None]
        if not readable:
            raise SpecError(f"{path} has no table with a number for each head: {_HOW}")
        tables += readable
    return tables


def _if_of_heads(path: Path) -> MetricTable | None:
    try:
        return read_table(path)
    except SpecError:
        return None
