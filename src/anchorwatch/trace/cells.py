"""A folder of runs: each cell is named by the digest of all that decides it, and is there or not.

On this machine, or on any disk that its machines share:

    RUNS/sweeps/DIGEST.json   what was asked for: a sealed record for each sweep
    RUNS/cells/CELL/          cell.json and run.trace, by one rename of a finished folder
    RUNS/failed/CELL.json     why a cell could not be made; removed when it is made after all
    RUNS/claims/CELL.lock     locked (flock) by whoever computes it, until that process ends
    RUNS/growing/             what is being written; what a killed process left is removed
    RUNS/journal/WORKER.jsonl when each cell was begun and ended: times, no results

A bucket (s3://, gs://, memory://, whatever fsspec opens) has no rename and no lock. There a cell's
files are sent first and `done/CELL.json` last, which is what counts; two workers may compute the
same cell, and send the same bytes. Only sealed JSON and traces are read from a folder, no pickle.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import shutil
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from anchorwatch.errors import AnchorwatchError, SpecError, TraceError
from anchorwatch.trace import atomic_io
from anchorwatch.trace.locks import Lock, temporary

RECORD, TRACE = "cell.json", "run.trace"
SWEEPS, CELLS, DONE, FAILED = "sweeps", "cells", "done", "failed"
CLAIMS, GROWING, JOURNAL, INDEX = "claims", "growing", "journal", "index.parquet"
STUDY_RUNS = "runs.csv"
"""In the folder of a study: which traces its claims were judged on."""
_CELL = re.compile(r"[0-9a-f]{32}")
_RECORD_NAME = re.compile(r"[0-9a-f]{32}\.json")
_LONGEST_REASON = 4000


class Claim:
    """The right to compute a cell, held until `release`."""

    def __init__(self, lock: Lock | None) -> None:
        self._lock = lock

    def release(self) -> None:
        if self._lock is not None:
            self._lock.remove()


class CellFolder(ABC):
    """Cells of one or more sweeps."""

    path: str

    @abstractmethod
    def done(self) -> set[str]:
        """Cells that are there, whole."""

    @abstractmethod
    def is_done(self, cell: str) -> bool:
        """Whether a cell is there."""

    @abstractmethod
    def running(self) -> dict[str, str]:
        """Cells that a living process computes, and which; a bucket does not know."""

    @abstractmethod
    def claim(self, cell: str) -> Claim | None:
        """The right to compute a cell; None where another living process has it."""

    @abstractmethod
    def commit(self, cell: str, folder: Path) -> None:
        """Make a finished folder the cell; where it is there already, it stays as it is."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Names of the files of a folder of records, in order."""

    @abstractmethod
    def read_bytes(self, name: str) -> bytes:
        """A file by its name in the folder."""

    @abstractmethod
    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file, old or new and never half."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file that may be there."""

    @abstractmethod
    def trace_path(self, cell: str) -> Path:
        """Where the trace of a cell can be read; from a bucket it is brought here first."""

    @contextmanager
    def stage(self) -> Iterator[Path]:
        """A folder on this machine to fill and commit; nothing of it stays."""
        with tempfile.TemporaryDirectory(prefix="anchorwatch-") as folder:
            yield Path(folder)

    def log(self, worker: str, line: Mapping[str, Any]) -> None:
        """Add a line to a worker's journal; a bucket keeps none."""
        return

    def journal(self) -> Iterator[dict[str, Any]]:
        """Lines of all journals; a line that a kill cut short is left out."""
        yield from ()

    def record(self, cell: str) -> dict[str, Any]:
        """What cell.json says."""
        return self.sealed(self.record_name(cell))

    def record_name(self, cell: str) -> str:
        return f"{CELLS}/{cell}/{RECORD}"

    def sealed(self, name: str) -> dict[str, Any]:
        """A sealed record; damage is named, with what to remove."""
        try:
            return atomic_io.unseal(self.read_bytes(name), name)
        except (OSError, ValueError) as error:
            what = self.cell_path(name.split("/")[1]) if name.endswith(RECORD) else "it"
            raise TraceError(
                f"{self.path}/{name} is damaged ({error}): remove {what}, and run the sweep again"
            ) from None

    def cell_path(self, cell: str) -> str:
        """What to remove where a cell is to be made again."""
        return f"{self.path}/{CELLS}/{cell}"

    def fail(self, cell: str, record: Mapping[str, Any]) -> None:
        """Keep why a cell could not be made."""
        self.write_bytes(f"{FAILED}/{cell}.json", atomic_io.seal(record))

    def forget_failure(self, cell: str) -> None:
        self.remove(f"{FAILED}/{cell}.json")

    def failures(self) -> dict[str, dict[str, Any]]:
        """Why cells could not be made; a damaged record says so in place of its reason."""
        failures: dict[str, dict[str, Any]] = {}
        for name in self.records(FAILED):
            try:
                failures[name.removesuffix(".json")] = self.sealed(f"{FAILED}/{name}")
            except TraceError as error:
                failures[name.removesuffix(".json")] = {"reason": str(error)}
        return failures

    def records(self, folder: str) -> list[str]:
        """The names of a folder that are records' names, and not somebody's notes."""
        return [name for name in self.names(folder) if _RECORD_NAME.fullmatch(name)]

    def put_sweep(self, record: Mapping[str, Any], digest: str) -> None:
        """Keep what was asked for, once; a damaged record of it is written again."""
        name = f"{SWEEPS}/{digest}.json"
        try:
            self.sealed(name)
        except TraceError:
            self.write_bytes(name, atomic_io.seal(record))

    def sweeps(self) -> dict[str, dict[str, Any]]:
        """What was asked for, by the names of the records."""
        return {name: self.sealed(f"{SWEEPS}/{name}") for name in self.records(SWEEPS)}


class LocalCells(CellFolder):
    """A folder on a disk with rename and locks."""

    def __init__(self, folder: Path, *, create: bool) -> None:
        self.folder = atomic_io.expand_path(folder)
        self.path = str(self.folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise SpecError(f"{folder} is a file: runs are many files, name a folder")
        if not create:
            return
        atomic_io.refuse_inside_trace(self.folder)
        try:
            for name in (SWEEPS, CELLS, FAILED, CLAIMS, GROWING, JOURNAL):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpecError(
                f"{folder} cannot be written, {error.strerror}: choose another place"
            ) from None

    def done(self) -> set[str]:
        try:
            with os.scandir(self.folder / CELLS) as entries:
                return {entry.name for entry in entries if _CELL.fullmatch(entry.name)}
        except FileNotFoundError:
            return set()

    def is_done(self, cell: str) -> bool:
        return (self.folder / CELLS / cell).is_dir()

    def running(self) -> dict[str, str]:
        claims = self.folder / CLAIMS
        owners = {name: Lock.busy(claims, name) for name in self.names(CLAIMS)}
        return {name.removesuffix(".lock"): who for name, who in owners.items() if who}

    def claim(self, cell: str) -> Claim | None:
        lock = Lock.try_take(self.folder / CLAIMS, f"{cell}.lock")
        return None if lock is None else Claim(lock)

    @contextmanager
    def stage(self) -> Iterator[Path]:
        with temporary(self.folder / GROWING / "cell", folder=True) as folder:
            yield folder

    def commit(self, cell: str, folder: Path) -> None:
        atomic_io.sync_tree(folder)
        try:
            os.rename(folder, self.folder / CELLS / cell)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        atomic_io.sync_folder(self.folder / CELLS)
        self.forget_failure(cell)

    def names(self, folder: str) -> list[str]:
        try:
            names = os.listdir(self.folder / folder)
        except FileNotFoundError:
            return []
        return sorted(name for name in names if not name.startswith("."))

    def read_bytes(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def write_bytes(self, name: str, content: bytes) -> None:
        atomic_io.replace_file(self.folder / name, content)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def trace_path(self, cell: str) -> Path:
        return self.folder / CELLS / cell / TRACE

    def log(self, worker: str, line: Mapping[str, Any]) -> None:
        text = json.dumps({**line, "when": time.time()}) + "\n"
        with suppress(OSError), (self.folder / JOURNAL / f"{worker}.jsonl").open("ab") as handle:
            handle.write(text.encode())  # a full disk: times are lost, no result is

    def journal(self) -> Iterator[dict[str, Any]]:
        for name in self.names(JOURNAL):
            for line in (self.folder / JOURNAL / name).read_bytes().splitlines(keepends=True):
                with suppress(ValueError, RecursionError):
                    if line.endswith(b"\n") and _is_journal_line(record := json.loads(line)):
                        yield record


def _is_journal_line(record: Any) -> bool:
    """Whether a line of a journal has the numbers that lines have."""
    if not isinstance(record, dict) or not isinstance(record.get("when"), int | float):
        return False
    return record.get("event") != "done" or isinstance(record.get("seconds"), int | float)


Method = TypeVar("Method", bound=Callable[..., Any])


def _say_bucket_errors(method: Method) -> Method:
    """Make an OSError of what a bucket raises: keys that are missing, a host that is gone."""

    @functools.wraps(method)
    def call(self: BucketCells, *given: Any) -> Any:
        try:
            return method(self, *given)
        except (OSError, AnchorwatchError):
            raise
        except Exception as error:  # every kind of bucket has errors of its own
            text = f"{self.path} cannot be used ({type(error).__name__}: {error})"
            raise OSError(errno.EIO, f"{text}: see to its address and its keys") from error

    return call  # type: ignore[return-value]


class BucketCells(CellFolder):
    """A folder that fsspec opens: no rename, no lock; a cell counts when its record is there."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ModuleNotFoundError as error:
            raise SpecError(f"{url} needs fsspec: pip install 'anchorwatch[sweep]'") from error
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise SpecError(f"{url} cannot be opened ({error}): install what it needs") from None
        self.path = url.rstrip("/")
        self._root = self._root.rstrip("/")
        self._brought: Path | None = None

    @property
    def is_in_memory(self) -> bool:
        """Whether other processes cannot see it."""
        return self.path.startswith("memory://")

    def done(self) -> set[str]:
        names = (name.removesuffix(".json") for name in self.names(DONE))
        return {name for name in names if _CELL.fullmatch(name)}

    @_say_bucket_errors
    def is_done(self, cell: str) -> bool:
        return bool(self._files.exists(f"{self._root}/{DONE}/{cell}.json"))

    def running(self) -> dict[str, str]:
        return {}

    def claim(self, cell: str) -> Claim | None:
        return Claim(None)

    @_say_bucket_errors
    def commit(self, cell: str, folder: Path) -> None:
        # 1. The cell's files; 2. its record under `done`, which makes it count.
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                name = path.relative_to(folder).as_posix()
                self._files.pipe_file(f"{self._root}/{CELLS}/{cell}/{name}", path.read_bytes())
        self.write_bytes(f"{DONE}/{cell}.json", (folder / RECORD).read_bytes())
        self.forget_failure(cell)

    def record_name(self, cell: str) -> str:
        return f"{DONE}/{cell}.json"

    def cell_path(self, cell: str) -> str:
        return f"{self.path}/{DONE}/{cell}.json"

    @_say_bucket_errors
    def names(self, folder: str) -> list[str]:
        self._files.invalidate_cache(f"{self._root}/{folder}")
        try:
            listed = self._files.ls(f"{self._root}/{folder}", detail=False)
        except FileNotFoundError:
            return []
        return sorted(name for path in listed if (name := path.rstrip("/").rpartition("/")[2]))

    @_say_bucket_errors
    def read_bytes(self, name: str) -> bytes:
        return bytes(self._files.cat_file(f"{self._root}/{name}"))

    @_say_bucket_errors
    def write_bytes(self, name: str, content: bytes) -> None:
        self._files.pipe_file(f"{self._root}/{name}", content)

    @_say_bucket_errors
    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{name}")

    @_say_bucket_errors
    def trace_path(self, cell: str) -> Path:
        if self._brought is None:
            self._brought = Path(tempfile.mkdtemp(prefix="anchorwatch-runs-"))
            weakref.finalize(self, shutil.rmtree, self._brought, ignore_errors=True)
        target = self._brought / cell / TRACE
        if target.is_dir():
            return target
        source = f"{self._root}/{CELLS}/{cell}/{TRACE}"
        growing = target.with_name("growing")
        for path in self._files.find(source):
            name = path.removeprefix(source).lstrip("/")
            if ".." in name.split("/"):
                raise TraceError(f"{self.path} has a file called {name}: it is no trace of ours")
            (growing / name).parent.mkdir(parents=True, exist_ok=True)
            (growing / name).write_bytes(self._files.cat_file(path))
        if not growing.is_dir():
            raise TraceError(f"{self.path} has no trace of {cell}: run the sweep again")
        shutil.move(growing, target)
        return target


def open_cells(path: str | Path, *, create: bool = False) -> CellFolder:
    """The cells at a path or an address; `create` makes the folder of a sweep."""
    if "://" in str(path):
        return BucketCells(str(path))
    return LocalCells(Path(path), create=create)


def absolute_address(path: str) -> str:
    """A path from the root, as a process in another folder needs it; an address as it is.

    >>> absolute_address("s3://bucket/runs"), absolute_address("/a/runs")
    ('s3://bucket/runs', '/a/runs')
    """
    return path if "://" in path else os.path.abspath(path)


def as_address(path: str | Path) -> str:
    """A path as it was typed: `Path` takes one of the two slashes of s3://bucket away.

    >>> as_address(Path("s3://bucket/runs")), as_address(Path("runs"))
    ('s3://bucket/runs', 'runs')
    """
    return re.sub(r"^([a-z][a-z0-9+.-]+):/(?=[^/])", r"\1://", str(path))


def is_runs(path: str | Path) -> bool:
    """Whether a path is a folder of runs: a sweep's, or a study's."""
    text = as_address(path)
    return "://" in text or (atomic_io.expand_path(text) / SWEEPS).is_dir() or is_study(text)


def is_study(path: str | Path) -> bool:
    """Whether a path is the folder of a study that says which runs it was judged on."""
    return "://" not in str(path) and (atomic_io.expand_path(path) / STUDY_RUNS).is_file()
