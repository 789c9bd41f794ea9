"""Traces on disk: Zarr v3 stores that plain xarray opens, and runs still growing into one.

Zarr reads a missing file as fill values and, without checksums, a flipped bit as a number. So each
chunk has a checksum, the folder a commit record, and whoever reads through us an error instead.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import xarray as xr
import zarr
from zarr.abc.store import ByteRequest
from zarr.codecs import ZstdCodec
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore, WrapperStore

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.trace import atomic_io
from anchorwatch.trace.atomic_io import UNREADABLE, extent, find_damage
from anchorwatch.trace.input_files import odd_kind
from anchorwatch.trace.locks import Lock
from anchorwatch.trace.schema import SCHEMA, SCHEMA_VERSION
from anchorwatch.trace.validate import left_out

__all__ = [
    "BLOCK_STEPS",
    "SCHEMA",
    "SCHEMA_VERSION",
    "Partial",
    "Spec",
    "extent",
    "find_damage",
    "open_store",
    "write",
]

BLOCK_STEPS = 8
"""Steps in a file: the unit in which a run is appended."""
Names = Collection[str]
LIMIT_BYTES = 64 << 30
"""Decoded size above which a declared array is taken for hostile."""

_SMALL_BYTES = 1 << 20  # loaded at open
_WHOLE_BYTES = 1 << 16  # a step variable this small is one file
_CHUNK_BYTES = 1 << 12  # smaller chunks cost more time and index than they save
_ITEM_BYTES = {"bool": 1, "string": 16} | {
    np.dtype(code).name: np.dtype(code).itemsize for code in "bBhHiIqQefd"
}
_CONFIG: Any = {"write_empty_chunks": True}  # then a file that is not there is always damage


@dataclass(frozen=True)
class Spec:
    """A variable as it is stored."""

    dims: tuple[str, ...]
    """Names of the axes."""
    sizes: tuple[int, ...]
    """Lengths of the axes; in an unfinished run the first is the most steps there can be."""
    dtype: str
    """The stored dtype; `string` for text."""
    attrs: Mapping[str, Any]
    """Units, long name, and `missing` for integers that may not exist."""


def write(path: str | Path, dataset: xr.Dataset) -> Path:
    """Write a dataset to a folder, whole or not at all; an existing one is never touched.

    Its attrs hold `schema`, `schema_version` and `manifest`. A variable is stored as the dtype in
    its `encoding`, if there is one.
    """
    target = atomic_io.expand_path(path)
    with atomic_io.stage_folder(target) as folder, _wait_for_writes():
        _fill(zarr.create_group(LocalStore(folder), zarr_format=3), dataset)
        atomic_io.commit(folder)
    return target


def open_store(
    path: str | Path, *, check: bool = True, needed: Names = (), without: Names = ()
) -> xr.Dataset:
    """Open a trace: small variables are loaded now, the others when they are used.

    `check` compares every file with the commit record first. Where a `needed` variable is not
    declared it is no trace. Those of `without` are left out, metadata and all.
    """
    target = atomic_io.expand_path(path)
    if problem := atomic_io.describe_missing(target) or atomic_io.describe_unfinished(target):
        raise TraceError(problem)
    if not os.path.lexists(target / "zarr.json"):
        raise TraceError(f"{target} cannot be read as a trace: it is a folder without a zarr.json")
    try:
        _vet(target, needed, without)
        if check and (problems := find_damage(target)):
            more = f" (and {len(problems) - 1} more: `anchorwatch verify`)" if problems[1:] else ""
            raise TraceError(f"{target} is damaged, copy it again: {problems[0]}{more}")
        atomic_io.refuse_odd_files(target, without)
        return _lazy(target, without)
    except TraceError:
        raise
    except UNREADABLE as error:
        raise TraceError(f"{target} cannot be read as a trace: {error}") from error


class Partial:
    """An unfinished run at NAME.trace.partial, appended block by block: a kill costs one block.

    The folder holds the growing store, `run.json` (what was asked) and one `state-STEPS.npz`.
    """

    def __init__(self, folder: Path, variables: Mapping[str, Spec], steps: int, lock: Lock) -> None:
        self.path = folder
        self._lock = lock
        self._store = folder / "store"
        self._variables = dict(variables)
        self._steps = steps  # in blocks that count
        local = LocalStore(self._store)
        self._group = zarr.open_group(local, mode="r+", zarr_format=3, use_consolidated=False)
        self._arrays = {
            name: cast(zarr.Array, self._group[name]).with_config(_CONFIG) for name in variables
        }

    @classmethod
    def create(
        cls, path: str | Path, variables: Mapping[str, Spec], head: Mapping[str, Any]
    ) -> Partial:
        """Start a run that will become `path`; `head` is what a resume must agree with."""
        folder = atomic_io.partial_of(atomic_io.expand_path(path))
        atomic_io.refuse_existing(atomic_io.finished_of(folder))
        if folder.exists():
            if who := Lock.busy(folder):
                raise TraceError(f"{folder} is being written ({who}): choose another name")
            raise TraceError(f"{atomic_io.describe_unfinished(folder)}, or remove it first")
        record = {"head": head, "variables": {n: asdict(spec) for n, spec in variables.items()}}
        with atomic_io.stage_folder(folder) as staged, _wait_for_writes():
            group = zarr.create_group(LocalStore(staged / "store"), zarr_format=3)
            for name, spec in variables.items():
                _array(group, name, spec, appended=True)
            atomic_io.put_file(staged / "run.json", atomic_io.seal(record))
            lock = _take_lock(staged)  # whoever sees the folder finds it locked
            atomic_io.sync_tree(staged)
        return cls(folder, variables, 0, lock)

    @classmethod
    def open(cls, path: str | Path) -> tuple[Partial, int, dict[str, np.ndarray], dict[str, Any]]:
        """Go on with a run: it, the steps done, what `save` kept of them, and the run's head."""
        folder = atomic_io.partial_of(atomic_io.expand_path(path))
        target = atomic_io.finished_of(folder)
        finished = f"{target} is finished already: aw.read({str(target)!r}) reads it"
        if target.exists():
            if folder.is_dir() and not (folder / "store").exists():
                shutil.rmtree(folder, ignore_errors=True)  # killed after it became a trace
            raise TraceError(finished)
        if not folder.is_dir():
            raise TraceError(f"there is no unfinished run at {folder}: start it without resume")
        try:
            lock = _take_lock(folder)
        except SpecError:
            if target.exists():  # another process finished it meanwhile
                raise TraceError(finished) from None
            raise
        try:
            if target.exists():
                raise TraceError(finished)
            return cls._open_locked(folder, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _open_locked(
        cls, folder: Path, lock: Lock
    ) -> tuple[Partial, int, dict[str, np.ndarray], dict[str, Any]]:
        """What `open` gives, once nobody else writes there."""
        try:
            atomic_io.refuse_odd_files(folder / "store")
            record = atomic_io.read_sealed(folder / "run.json")
            variables = {
                name: Spec(tuple(s["dims"]), tuple(s["sizes"]), s["dtype"], s["attrs"])
                for name, s in record["variables"].items()
            }
            steps, arrays = atomic_io.newest_state(folder)
            partial = cls(folder, variables, steps, lock)
            partial._resize(None)  # a finish may have been killed
            partial._agree()
        except TraceError:
            raise
        except UNREADABLE as error:
            raise TraceError(f"{folder} is damaged, start the run again: {error}") from error
        partial._check(steps)
        partial._read_back(steps)
        return partial, steps, arrays, record["head"]

    def put(self, first_step: int, blocks: Mapping[str, np.ndarray]) -> None:
        """Write one block of every variable; only the last block of a run may be short."""
        if blocks.keys() != self._variables.keys():
            raise TraceError(f"a block holds {', '.join(self._variables)}: got {', '.join(blocks)}")
        if first_step != self._steps or first_step % BLOCK_STEPS:
            raise TraceError(f"the next block starts at step {self._steps}, not {first_step}")
        counts = {len(block) for block in blocks.values()}
        if len(counts) != 1 or not 1 <= (count := counts.pop()) <= BLOCK_STEPS:
            raise TraceError(f"a block has 1 to {BLOCK_STEPS} steps, as many for every variable")
        for name, block in blocks.items():
            spec, array = self._variables[name], self._arrays[name]
            if block.shape[1:] != spec.sizes[1:] or first_step + count > spec.sizes[0]:
                raise TraceError(f"{name} is {spec.sizes}: a block of {block.shape} does not fit")
            file = self._file(name, first_step)
            file.unlink(missing_ok=True)  # never merge with what a killed attempt left
            stored = _cast(name, block, spec.dtype)
            with _wait_for_writes():
                array[first_step : first_step + count] = stored
            atomic_io.sync_file(file)
            atomic_io.sync_folder(file.parent)
        self._steps += count

    def save(self, steps_done: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep what a resume after `steps_done` needs, and forget older states."""
        self._check(steps_done)
        state = self.path / f"state-{steps_done}.npz"
        atomic_io.put_file(state.with_suffix(".tmp"), atomic_io.pack_arrays(arrays))
        os.replace(state.with_suffix(".tmp"), state)
        atomic_io.sync_folder(self.path)
        for old in self.path.glob("state-*.npz"):
            if old != state:
                old.unlink()

    def finish(self, steps: int, dataset: xr.Dataset) -> Path:
        """Cut the variables to `steps`, add the dataset and its attrs, and become a trace."""
        self._check(steps)
        target = atomic_io.finished_of(self.path)
        atomic_io.refuse_existing(target)
        if both := sorted(self._variables.keys() & {str(name) for name in dataset.variables}):
            raise TraceError(f"{', '.join(both)} came block by block: leave it out of the dataset")
        try:
            for entry in self._store.iterdir():  # what a killed finish left
                if entry.is_dir() and entry.name not in self._variables:
                    shutil.rmtree(entry)
            for litter in (*self._store.glob("**/*.partial"), self._store / atomic_io.COMMIT):
                litter.unlink(missing_ok=True)
            with _wait_for_writes():
                self._resize(steps)
                _fill(self._group, dataset)
            atomic_io.commit(self._store)
            atomic_io.publish(self._store, target)
            shutil.rmtree(self.path, ignore_errors=True)
        finally:
            self.close()
        return target

    def close(self) -> None:
        """Let others go on with the run."""
        self._lock.release()

    def _file(self, name: str, first_step: int) -> Path:
        rest = ".0" * (len(self._variables[name].dims) - 1)
        return self._store / name / f"c.{first_step // BLOCK_STEPS}{rest}"

    def _resize(self, steps: int | None) -> None:
        """Give the variables so many steps, or as many as there can be."""
        for name, array in self._arrays.items():
            most, *rest = self._variables[name].sizes
            if array.shape[0] != (length := most if steps is None else steps):
                array.resize((length, *rest))

    def _agree(self) -> None:
        """Refuse arrays whose metadata is not what `run.json` says of them."""
        group = zarr.create_group(MemoryStore(), zarr_format=3)
        for name, spec in self._variables.items():
            expected = _array(group, name, spec, appended=True)
            if self._arrays[name].metadata.to_dict() != expected.metadata.to_dict():
                raise ValueError(f"store/{name}/zarr.json was changed")

    def _read_back(self, steps: int) -> None:
        """Refuse blocks that were changed since: there is no commit record yet, only checksums."""
        for name, array in self._arrays.items():
            for first in range(0, steps, BLOCK_STEPS):
                try:
                    array[first : min(first + BLOCK_STEPS, steps)]
                except UNREADABLE as error:
                    lost = self._file(name, first).relative_to(self.path)
                    raise TraceError(
                        f"{self.path} is damaged, start the run again: {lost} cannot be read "
                        f"({error})"
                    ) from None

    def _check(self, steps: int) -> None:
        if self._variables and steps != self._steps:
            raise TraceError(f"{self._steps} steps are in blocks, not {steps}: put them first")
        for name in self._variables:
            for first_step in range(0, steps, BLOCK_STEPS):
                if not (file := self._file(name, first_step)).is_file():
                    lost = file.relative_to(self.path)
                    raise TraceError(f"{self.path} lacks {lost}: start the run again")


def _take_lock(folder: Path) -> Lock:
    """The lock of an unfinished run."""
    return Lock.take(folder, f"{folder} is being written", refusal=TraceError)


class _Strict(WrapperStore[LocalStore]):
    """A store whose chunks must be there: Zarr would read a missing one as fill values."""

    without: Names = ()  # whose metadata Zarr does not see: those of one keep it from all

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        if kind := _odd_kind(self._store.root / key):
            raise TraceError(
                f"{self._store.root.name}/{key} is {kind} and not a file: copy it again"
            )
        value = await super().get(key, prototype, byte_range)
        if value is None and key.rpartition("/")[2].partition(".")[0] == "c":
            raise TraceError(f"{self._store.root.name}/{key} has gone since the trace was opened")
        if value is None or key != "zarr.json":
            return value
        return prototype.buffer.from_bytes(left_out(value.to_bytes(), self.without))


def _odd_kind(path: Path) -> str | None:
    try:
        return odd_kind(path, links=False)
    except FileNotFoundError:
        return None


def _lazy(target: Path, without: Names) -> xr.Dataset:
    strict = _Strict(LocalStore(target, read_only=True))
    strict.without = without
    with _quiet():
        dataset = xr.open_zarr(
            strict,
            chunks=None,
            zarr_format=3,
            consolidated=True,
            mask_and_scale=False,  # nothing we write is scaled, and no integer becomes a float
            decode_times=False,
            decode_timedelta=False,
        )
    for name, variable in list(dataset.variables.items()):
        if variable.dtype.kind in "OT":  # text, whatever numpy calls it
            text = np.array(variable.values.tolist(), dtype=np.str_)
            dataset[name] = (variable.dims, text, variable.attrs)
        elif variable.nbytes <= _SMALL_BYTES:
            variable.load()
    return dataset


def _vet(target: Path, needed: Names, without: Names) -> None:
    """Refuse what is no trace of ours by its metadata alone, before Zarr sees it."""
    root = atomic_io.read_json(target / "zarr.json", links=False)
    attrs = root.get("attributes", {})
    if attrs.get("schema") != SCHEMA:
        raise TraceError(f"{target} is a Zarr store but not a trace: it has no schema {SCHEMA!r}")
    if (version := attrs.get("schema_version")) != SCHEMA_VERSION:
        raise TraceError(
            f"{target} has trace schema {version}; this anchorwatch reads {SCHEMA_VERSION}"
        )
    arrays = root["consolidated_metadata"]["metadata"]
    if lost := sorted({*needed} - arrays.keys()):
        raise TraceError(f"{target} lacks {', '.join(lost)}: it is damaged, copy it again")
    if not isinstance(attrs.get("manifest"), dict):
        raise TraceError(f"{target} lacks its manifest: it is damaged, copy it again")
    for name, array in (
        (name, declared) for name, declared in arrays.items() if name not in without
    ):
        for sizes in (array["shape"], array["chunk_grid"]["configuration"]["chunk_shape"]):
            if not all(type(size) is int and size >= 0 for size in sizes):
                raise ValueError(f"{name} declares the shape {sizes}")
            if (size := math.prod(sizes) * _ITEM_BYTES[array["data_type"]]) > LIMIT_BYTES:
                raise TraceError(
                    f"{target} cannot be read as a trace: {name} declares {size} bytes, "
                    f"more than the {LIMIT_BYTES} that are read"
                )


def _fill(group: zarr.Group, dataset: xr.Dataset) -> None:
    for name, variable in dataset.variables.items():
        dtype = np.dtype(variable.encoding.get("dtype", variable.dtype))
        stored = "string" if variable.dtype.kind in "OUT" else dtype.name
        if stored not in _ITEM_BYTES:
            raise TraceError(f"{name} has dtype {stored}: a trace holds {', '.join(_ITEM_BYTES)}")
        dims = tuple(str(dim) for dim in variable.dims)
        array = _array(group, str(name), Spec(dims, variable.shape, stored, variable.attrs))
        if not dims:
            array[...] = _cast(str(name), variable.values, stored)
            continue
        rows = (array.shards or array.chunks)[0]
        for first in range(0, variable.shape[0], rows):
            values = variable[first : first + rows].values
            array[first : first + rows] = _cast(str(name), values, stored)
    labels = sorted(str(name) for name in set(dataset.coords) - set(dataset.dims))
    attrs = {"coordinates": " ".join(labels)} if labels else {}
    group.attrs.put(atomic_io.plain(dataset.attrs) | attrs)
    with _quiet():
        zarr.consolidate_metadata(group.store)


def _array(group: zarr.Group, name: str, spec: Spec, *, appended: bool = False) -> zarr.Array:
    chunks, shards = _layout(spec, appended)
    kind = "T" if spec.dtype == "string" else np.dtype(spec.dtype).kind
    absent = -1 if kind == "i" and "missing" in spec.attrs else 0
    return group.create_array(
        name,
        shape=spec.sizes,
        dtype=str if kind == "T" else spec.dtype,
        chunks=chunks,
        shards=shards,
        filters=None,
        compressors=ZstdCodec(level=3, checksum=True),
        fill_value={"f": np.nan, "T": "", "b": False}.get(kind, absent),
        dimension_names=spec.dims,
        attributes=atomic_io.plain(spec.attrs),
        chunk_key_encoding={"name": "default", "separator": "."},  # no folder for every axis
        config=_CONFIG,
    )


def _layout(spec: Spec, appended: bool) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Chunks and shards: a file is a block of steps, a chunk in it one step of one layer."""
    item = _ITEM_BYTES[spec.dtype]
    whole = tuple(max(1, size) for size in spec.sizes)
    small = math.prod(whole) * item <= _WHOLE_BYTES
    if spec.dims[:1] != ("step",) or (small and not appended):
        return whole, None
    block = (BLOCK_STEPS, *whole[1:])
    chunk = (1, 1, *whole[2:]) if spec.dims[1:2] == ("layer",) else (1, *whole[1:])
    return (chunk, block) if math.prod(chunk) * item >= _CHUNK_BYTES else (block, None)


def _cast(name: str, values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "string":
        if not all(isinstance(text, str) for text in values.flat):
            raise TraceError(f"{name} holds objects: a trace holds {', '.join(_ITEM_BYTES)}")
        return values
    try:
        with np.errstate(over="raise", invalid="raise"):
            stored = values.astype(dtype, copy=False)
    except FloatingPointError:
        stored = None
    if stored is None or (stored.dtype.kind in "iub" and not np.array_equal(stored, values)):
        raise TraceError(f"{name} holds numbers that {dtype} cannot: store it as {values.dtype}")
    return stored


@contextmanager
def _wait_for_writes() -> Iterator[None]:
    """When a write fails, let those that Zarr began beside it end before anyone cleans up."""
    try:
        yield
    except BaseException:
        sync(_await_writers())
        raise


async def _await_writers() -> None:
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others, timeout=10)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():  # zarr warns that others may not know consolidated metadata
        warnings.filterwarnings("ignore", message="Consolidated metadata is currently not part")
        yield
