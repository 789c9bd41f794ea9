"""Results on disk and in memory: a line for each item of each cell, on disk before the next.

A cell is one model, context and edit of one task. Its folder is named by the digest of everything
that decides its answers, so that asking again finds them. Each line holds its own check: a line
that a kill cut short is taken off, any other damage is named. How many lines were written stands
beside them, so that lines that are gone are counted.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pandas as pd

from anchorwatch.errors import AnchorwatchWarning, TraceError
from anchorwatch.evaluation.contexts import context
from anchorwatch.evaluation.scores import SCORES
from anchorwatch.trace.atomic_io import (
    expand_path,
    plain,
    put_file,
    read_sealed,
    replace_file,
    seal,
    sync_folder,
)
from anchorwatch.trace.input_files import LongLineError, bounded_lines, open_plain
from anchorwatch.trace.locks import Lock
from anchorwatch.trace.model_identity import DIGESTS, identity_digest

MANIFEST, ITEMS, TRACES, ASKED = "manifest.json", "items.jsonl", "traces", "asked.json"
COUNT = "count.json"
UNEDITED = "none"
_UNDECIDING = ("source", "revision", "notes", "config")
"""What a manifest says of a model that its answers do not depend on, or that a digest covers."""
COLUMNS = ("model", "kind", "context", "edit", "item")


@dataclass(frozen=True, eq=False)
class Results:
    """Every item of every cell, as rows, and what made them."""

    rows: pd.DataFrame
    """A row for each item of each cell: its scores, or why it could not be asked (`unfit`)."""
    manifests: Mapping[str, Mapping[str, Any]]
    """What made each cell, by its digest."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Counts of the task: items, duplicates, bad lines."""

    def __repr__(self) -> str:
        cells = self.rows.groupby(["model", "context", "edit"], sort=False).ngroups
        items = self.rows["item"].nunique()
        return f"Results({cells} cells of {items} items, {self.num_unfit} unfit)"

    @property
    def num_unfit(self) -> int:
        """Rows that could not be asked."""
        return int((self.rows["unfit"] != "").sum())

    @property
    def num_narrow(self) -> int:
        """Rows with a decision whose margin was under 1e-5: another batch could turn those."""
        return int((self.rows["narrow"] > 0).sum())

    def unfit(self) -> pd.DataFrame:
        """How many items of each cell could not be asked, by reason."""
        lost = self.rows[self.rows["unfit"] != ""]
        keys = ["model", "context", "edit", "unfit"]
        return lost.groupby(keys, sort=False).size().rename("items").reset_index()


@dataclass(frozen=True)
class ItemsRecord:
    """Which items of which file a cell was asked last: its other lines are of an earlier file."""

    file: str
    """SHA-256 of the file's bytes."""
    items: frozenset[str]
    when: int = 0
    """Nanoseconds of the clock."""

    @classmethod
    def read(cls, folder: Path) -> ItemsRecord | None:
        """What a cell's folder says; None where items are made and no file can change."""
        if not os.path.lexists(folder / ASKED):
            return None
        fields = _read_sealed(folder / ASKED)
        try:
            return cls(fields["file"], frozenset(fields["items"]), fields["when"])
        except (KeyError, TypeError) as error:
            raise TraceError(f"{folder / ASKED} lacks {error}: remove it, and ask again") from None

    def write(self, folder: Path) -> None:
        """Say it; items of the same file that were asked before stay among them."""
        before = ItemsRecord.read(folder)
        same = before is not None and before.file == self.file
        items = self.items | before.items if before and same else self.items
        fields = {"file": self.file, "items": sorted(items), "when": time.time_ns()}
        replace_file(folder / ASKED, seal(fields))


class Cell:
    """The lines of one cell, on disk (`with cell:`) or, without a folder, in memory."""

    def __init__(
        self, manifest: Mapping[str, Any], out: Path | None, record: ItemsRecord | None = None
    ) -> None:
        self.manifest, self.record = dict(manifest), record
        self.digest = digest_of(manifest)
        self.folder = None if out is None else out / self.digest[:16]
        self.done: dict[str, dict[str, Any]] = {}
        self._handle: IO[bytes] | None = None
        self._lock: Lock | None = None
        self._count = 0

    def __enter__(self) -> Cell:
        if self.folder is None:
            return self
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = Lock.take(self.folder, f"another evaluation is writing to {self.folder}")
        try:
            self._take_over(self.folder)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _take_over(self, folder: Path) -> None:
        """Read what is there and resume after it."""
        path = folder / ITEMS
        if not os.path.lexists(path):
            put_file(path, b"")
            sync_folder(folder)
        replace_file(folder / MANIFEST, seal(self.manifest))  # names are the last ones
        if self.record is not None:
            self.record.write(folder)
        lines, whole = read_lines(path)
        if gone := _count_gone(folder, len(lines)):
            _warn_results(f"{gone}, and are asked again")
        self._handle = open_plain(path, write=True)
        self._handle.truncate(whole)  # what a kill cut short is asked again
        self._handle.seek(whole)
        self._write_count(len(lines))
        self.done |= {line["item"]: line for line in lines}

    def add(self, *records: Mapping[str, Any]) -> None:
        """Keep what was found together; on disk before this returns."""
        if self._handle is not None:
            self._handle.write(b"".join(_add_checksum(record) for record in records))
            self._handle.flush()
            os.fsync(self._handle.fileno())
            self._write_count(self._count + len(records))
        for record in records:  # as a reader will find it
            self.done[str(record["item"])] = json.loads(_to_json(record))

    def _write_count(self, count: int) -> None:
        """After the lines: a kill between them leaves more lines than are counted, never fewer."""
        assert self.folder is not None
        if count != self._count or not (self.folder / COUNT).exists():
            replace_file(self.folder / COUNT, seal({"lines": count}))
        self._count = count

    def __exit__(self, *error: object) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def digest_of(manifest: Mapping[str, Any]) -> str:
    """The digest of what decides answers: all of it but names and places."""
    deciding = {name: value for name, value in manifest.items() if name not in ("edit", "place")}
    model = {k: v for k, v in manifest["model"].items() if k not in _UNDECIDING}
    spelled = json.dumps(plain(deciding | {"model": model}), sort_keys=True)
    return hashlib.sha256(spelled.encode()).hexdigest()


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Whole lines, and how many bytes they take; the rest was being written when it was killed."""
    records, whole = [], 0
    try:
        with open_plain(path) as handle:
            for number, line in enumerate(bounded_lines(handle), start=1):
                if isinstance(line, LongLineError):
                    raise _damaged_line(path, number)
                if not line.endswith(b"\n"):
                    break
                records.append(_parse_record(path, number, line))
                whole += len(line)
    except OSError as error:
        raise TraceError(
            f"{path} cannot be read ({error}): remove {path.parent}, and it is asked again"
        ) from None
    return records, whole


def _count_gone(folder: Path, lines: int) -> str | None:
    """What to say where a cell has fewer lines than were written; older cells have no count."""
    if not os.path.lexists(folder / COUNT):
        return None
    written = _read_sealed(folder / COUNT).get("lines")
    if not isinstance(written, int) or lines >= written:
        return None
    return f"{written - lines} of the {written} answers written to {folder / ITEMS} are gone"


def _warn_results(message: str) -> None:
    warnings.warn(message, AnchorwatchWarning, stacklevel=4)


def read_results(out: str | Path, task: str | None = None) -> Results:
    """The results of an evaluation's `out`, of one task or of all, whether it ended or not.

    Of a file that was changed, those of the version that was asked last; others are warned of.
    """
    folder = expand_path(out)
    cells = sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))
    if not cells:
        raise TraceError(f"there are no results at {folder}: `anchorwatch eval ... -o` makes some")
    manifests = {cell: _read_sealed(cell / MANIFEST) for cell in cells}
    manifests = {
        c: content for c, content in manifests.items() if task in (None, content["task"]["name"])
    }
    recorded = {cell: record for cell in manifests if (record := ItemsRecord.read(cell))}
    last: dict[str, str] = {}
    for cell in sorted(recorded, key=lambda cell: recorded[cell].when):
        last[manifests[cell]["task"]["name"]] = recorded[cell].file
    rows, left, current = [], 0, {}
    for cell, manifest in manifests.items():
        lines = read_lines(cell / ITEMS)[0] if os.path.lexists(cell / ITEMS) else []
        if gone := _count_gone(cell, len(lines)):
            _warn_results(f"{gone}: run the evaluation again, and they are asked again")
        kept = _keep_current(lines, recorded.get(cell), last.get(manifest["task"]["name"]))
        left += len(lines) - len(kept)
        if kept or not lines:
            current[cell.name] = manifest
        rows += [build_row(line, manifest, cell.name) for line in kept]
    if left:
        warnings.warn(
            f"{left} answers at {folder} are to an earlier version of the task's file and are left "
            "out: ask again in all contexts, or give each version a folder of its own",
            AnchorwatchWarning,
            stacklevel=2,
        )
    if not rows:
        of = f" of {task}" if task else ""
        raise TraceError(f"the results at {folder} have no item{of} yet: run the evaluation again")
    return build_results(rows, current, {})


def _keep_current(
    lines: list[dict[str, Any]], record: ItemsRecord | None, last: str | None
) -> list[Any]:
    """The lines that answer items of the file that was asked last."""
    if record is None:
        return lines
    return [line for line in lines if record.file == last and line["item"] in record.items]


def _read_sealed(path: Path) -> dict[str, Any]:
    """A sealed file of a cell."""
    try:
        return read_sealed(path)
    except (OSError, ValueError) as error:
        raise TraceError(
            f"{path} is damaged ({error}): remove {path.parent}, and it is asked again"
        ) from None


def build_results(
    rows: Iterable[Mapping[str, Any]],
    manifests: Mapping[str, Mapping[str, Any]],
    about: Mapping[str, Any],
) -> Results:
    """Rows as a table, in an order that no run decides."""
    table = pd.DataFrame(list(rows))
    described = {cell: manifest["model"] for cell, manifest in manifests.items()}
    parts = {name: {c: str(model.get(name)) for c, model in described.items()} for name in DIGESTS}
    parts["rest"] = {
        cell: identity_digest({k: v for k, v in model.items() if k not in DIGESTS})
        for cell, model in described.items()
    }
    for named in parts.values():  # one source, other weights, another config or tokenizer
        made_of = table["cell"].map(named)
        several = made_of.groupby(table["model"]).transform("nunique") > 1
        table.loc[several, "model"] += "@" + made_of[several].str[:8]
    ordered = {"context": _sort_names(table["context"]), "edit": _edit_names(manifests.values())}
    table = table.sort_values(
        list(COLUMNS),
        kind="stable",
        ignore_index=True,
        key=lambda column: (
            column.map(ordered[column.name].index) if column.name in ordered else column
        ),
    )
    return Results(table, dict(manifests), dict(about))


def _sort_names(names: Iterable[str]) -> list[str]:
    return sorted(set(names), key=lambda name: context(name).order)


def _edit_names(manifests: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of edits as they were given, the model as it is first."""
    orders: dict[str, int] = {}
    for manifest in manifests:
        name, order = manifest.get("edit", UNEDITED), manifest.get("place", 0)
        orders[name] = min(order, orders.get(name, order))
    return sorted(orders, key=lambda name: (name != UNEDITED, orders[name], name))


def build_row(record: Mapping[str, Any], manifest: Mapping[str, Any], cell: str) -> dict[str, Any]:
    """One line under the names of its cell; scores become columns, absent ones NaN."""
    plain_fields = {name: record[name] for name in record if name not in ("scores", "check")}
    scored = record["scores"] or {}
    nan = float("nan")
    scores = {
        name: nan if scored.get(name) is None else scored[name] for name in (*SCORES, "misled")
    }
    named = {
        "model": manifest["model"]["source"],
        "kind": manifest["model"]["kind"],
        "context": manifest["context"],
        "edit": manifest["edit"],
        "task": manifest["task"]["name"],
        "cell": cell,
    }
    if plain_fields.get("guesser", nan) is None:  # answers of older versions do not have the field
        plain_fields["guesser"] = nan
    return named | plain_fields | scores


def _add_checksum(record: Mapping[str, Any]) -> bytes:
    bare = _to_json(record)
    check = hashlib.sha256(bare).hexdigest()[:12]
    return _to_json(dict(record) | {"check": check}) + b"\n"


def _to_json(record: Mapping[str, Any]) -> bytes:
    return json.dumps(plain(record), sort_keys=True, allow_nan=False).encode()


def _parse_record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
        check = record.pop("check")
        good = hashlib.sha256(_to_json(record)).hexdigest()[:12] == check
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        good = False
    if not good:
        raise _damaged_line(path, number)
    return record


def _damaged_line(path: Path, number: int) -> TraceError:
    return TraceError(
        f"{path}, line {number} is damaged: remove that line, and its item is asked again"
    )
