"""Tables as files: CSV for eyes and spreadsheets, JSON and Parquet that remember what made them."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anchorwatch._version import __version__
from anchorwatch.commits import replace_file
from anchorwatch.errors import SpecError, TraceError

KINDS = ("csv", "json", "parquet")
_KEY = "anchorwatch"


def save(table: pd.DataFrame, path: str | Path) -> Path:
    """Write a .csv, .json or .parquet, whole or not at all; a table of that name is replaced."""
    target, kind = place(path, "table", KINDS)
    writers = {"csv": as_csv, "json": as_json}
    replace_file(target, writers[kind](table).encode() if kind in writers else _parquet(table))
    return Path(path)


def place(path: str | Path, what: str, kinds: Sequence[str]) -> tuple[Path, str]:
    """Where a table or figure goes, and as what; refused if it cannot, or would spoil a trace."""
    named = Path(path)
    kind = named.suffix.lower().removeprefix(".")
    if kind not in kinds:
        raise SpecError(
            f"a {what} cannot be saved as {named.name!r}: "
            f"the name ends in {', '.join(f'.{one}' for one in kinds)}"
        )
    target = _resolved(named)
    if not target.parent.is_dir():
        raise SpecError(f"the folder {target.parent} does not exist: make it first")
    if target.is_dir():
        raise SpecError(f"{target} is a folder: choose another name")
    refuse_traces(target.parent)
    return target, kind


def refuse_traces(folder: Path) -> None:
    """A file added to a trace makes it differ from its commit record, and so unreadable."""
    whole = _resolved(folder)
    for one in (whole, *whole.parents):
        if (one / "zarr.json").exists():
            raise SpecError(f"{one} is a trace, and a file in it would spoil it: choose a folder")


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (RuntimeError, ValueError) as error:  # links in a circle, or a name that no file has
        raise SpecError(f"{path} cannot be a place, {error}: choose another") from None


def as_csv(table: pd.DataFrame) -> str:
    """Rows and a header; an absent number is an empty cell."""
    return str(table.to_csv(index=False, lineterminator="\n"))


def as_json(table: pd.DataFrame) -> str:
    """`{"about", "traces", "rows"}`; an absent or infinite number is null."""
    held = table.astype(object).where(table.notna(), None)
    rows = [
        {str(name): _plain(value) for name, value in row.items()}
        for row in held.to_dict(orient="records")
    ]
    return json.dumps(_origin(table) | {"rows": rows}, indent=1)


def origin(path: str | Path) -> dict[str, Any]:
    """What made a table file: the metric and its settings, our version, and each trace."""
    target = Path(path)
    if not target.is_file():
        raise TraceError(f"there is no table at {target}: expected a .json or .parquet file")
    try:
        if target.suffix.lower() == ".parquet":
            return json.loads(parquet_reader().read_schema(target).metadata[_KEY.encode()])
        held = json.loads(target.read_text())
        return {name: held[name] for name in ("anchorwatch", "about", "traces")}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise TraceError(
            f"{target} does not say what made it: tables that `anchorwatch measure -o` writes as "
            ".json or .parquet do"
        ) from error


def _origin(table: pd.DataFrame) -> dict[str, Any]:
    held = {name: table.attrs.get(name, {}) for name in ("about", "traces")}
    return {_KEY: __version__} | held


def _plain(value: Any) -> Any:
    held = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(held, float) and not math.isfinite(held) else held


def _parquet(table: pd.DataFrame) -> bytes:
    parquet = parquet_reader()
    import pyarrow

    bare = table.copy()
    bare.attrs = {}
    held = pyarrow.Table.from_pandas(bare, preserve_index=False)
    made = {_KEY.encode(): json.dumps(_origin(table)).encode()}
    buffer = io.BytesIO()
    parquet.write_table(held.replace_schema_metadata((held.schema.metadata or {}) | made), buffer)
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
