"""Tables as files: CSV for spreadsheets, JSON and Parquet that also hold what made them."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anchorwatch import __version__
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.trace.atomic_io import (
    UNREADABLE,
    plain,
    refuse_inside_trace,
    replace_file,
    resolve,
    with_digest,
    without_digest,
)
from anchorwatch.trace.escape import csv_cell
from anchorwatch.trace.input_files import parse_json, read_plain

KINDS = ("csv", "json", "parquet")
_KEY = "anchorwatch"
LIMIT_BYTES = 1 << 30


def save(table: pd.DataFrame, path: str | Path) -> Path:
    """Write a .csv, .json or .parquet, whole or not at all; a table of that name is replaced."""
    target, kind = check_target(path, "table", KINDS)
    writers = {"csv": as_csv, "json": as_json}
    replace_file(target, writers[kind](table).encode() if kind in writers else _parquet(table))
    return Path(path)


def check_target(path: str | Path, what: str, kinds: Sequence[str]) -> tuple[Path, str]:
    """Where a table or figure goes, and as what; refused if it cannot, or would spoil a trace."""
    named = Path(path)
    kind = named.suffix.lower().removeprefix(".")
    if kind not in kinds:
        raise SpecError(
            f"a {what} cannot be saved as {named.name!r}: "
            f"the name ends in {', '.join(f'.{ending}' for ending in kinds)}"
        )
    target = resolve(named)
    if not target.parent.is_dir():
        raise SpecError(f"the folder {target.parent} does not exist: make it first")
    if target.is_dir():
        raise SpecError(f"{target} is a folder: choose another name")
    refuse_inside_trace(target)
    return target, kind


def as_csv(table: pd.DataFrame) -> str:
    """Rows and a header; an absent number is an empty cell.

    Text is neutralised (`escape.csv_cell`): it is of models and prompts, and spreadsheets run it.
    """
    safe = table.rename(columns=lambda name: csv_cell(str(name)))
    # Only text can be a formula to a spreadsheet.
    for index, kind in enumerate(table.dtypes):
        if not pd.api.types.is_numeric_dtype(kind):
            safe.isetitem(
                index,
                [
                    csv_cell(cell) if isinstance(cell, str) else cell
                    for cell in table.iloc[:, index]
                ],
            )
    return str(safe.to_csv(index=False, lineterminator="\n"))


def as_json(table: pd.DataFrame) -> str:
    """`{"about", "traces", "rows", "digest"}`; an absent or infinite number is null."""
    plain_rows = table.astype(object).where(table.notna(), None)
    rows = [
        {str(name): _plain(value) for name, value in row.items()}
        for row in plain_rows.to_dict(orient="records")
    ]
    return json.dumps(with_digest(plain(_origin(table)) | {"rows": rows}), indent=1)


def read_json_table(path: Path) -> dict[str, Any]:
    """What `as_json` wrote; ValueError where it is something else or was changed."""
    record = parse_json(read_plain(path, most=LIMIT_BYTES))
    if not isinstance(record, dict) or not isinstance(record.get("rows"), list):
        raise ValueError("it holds no rows")
    if unknown := sorted(record.keys() - {_KEY, "about", "traces", "rows", "digest"}):
        raise ValueError(f"it holds {unknown[0]!r:.40} too")
    return without_digest(record)


def read_origin(path: str | Path) -> dict[str, Any]:
    """What made a table file: the metric and its settings, our version, and each trace."""
    target = Path(path)
    if not target.is_file():
        raise TraceError(f"there is no table at {target}: expected a .json or .parquet file")
    try:
        if target.suffix.lower() == ".parquet":
            kept = parquet_reader().read_schema(target).metadata[_KEY.encode()]
            record = without_digest(parse_json(kept))
        else:
            record = read_json_table(target)
        return {name: record[name] for name in ("anchorwatch", "about", "traces")}
    except UNREADABLE as error:
        if isinstance(error, SpecError):  # without pyarrow
            raise
        raise TraceError(
            f"{target} does not say what made it: tables that `anchorwatch measure -o` writes as "
            ".json or .parquet do"
        ) from error


def _origin(table: pd.DataFrame) -> dict[str, Any]:
    attrs = {name: table.attrs.get(name, {}) for name in ("about", "traces")}
    return {_KEY: __version__} | attrs


def _plain(value: Any) -> Any:
    number = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(number, float) and not math.isfinite(number) else number


def _parquet(table: pd.DataFrame) -> bytes:
    parquet = parquet_reader()
    import pyarrow

    bare = table.copy()
    bare.attrs = {}
    written = pyarrow.Table.from_pandas(bare, preserve_index=False)
    record = {_KEY.encode(): json.dumps(with_digest(plain(_origin(table)))).encode()}
    buffer = io.BytesIO()
    # The record of the metric and its traces goes into the schema's metadata.
    signed = written.replace_schema_metadata((written.schema.metadata or {}) | record)
    parquet.write_table(signed, buffer, write_page_checksum=True)
    return buffer.getvalue()


def parquet_reader() -> Any:
    """pyarrow's, or a sentence that says how to do without."""
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise SpecError(
            "a .parquet file needs pyarrow: pip install pyarrow, or save as .csv or .json"
        ) from None
    return pyarrow.parquet
