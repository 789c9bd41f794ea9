"""Folders that appear whole or not at all, and carry a record of every byte in them.

COMMIT.json is written last and seals itself: it must equal its own canonical serialisation and hold
its own digest, so no byte of the folder, its own included, can change unnoticed.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.trace.input_files import odd_kind, open_plain, parse_json, read_plain
from anchorwatch.trace.locks import temporary

COMMIT = "COMMIT.json"
PARTIAL = ".partial"
"""How the name of an unfinished run ends."""
LIMIT_JSON_BYTES = 64 << 20
LIMIT_STATE_BYTES = 64 << 30
UNREADABLE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError),
    *(ArithmeticError, RuntimeError, MemoryError, zipfile.BadZipFile),
)
"""What foreign bytes make json, numpy, zarr and xarray raise."""

_THREADS = min(8, os.cpu_count() or 1)


def expand_path(path: str | Path) -> Path:
    """Where a path points, ~ being the home folder."""
    if "\0" in str(path):
        raise SpecError(f"{str(path)!r} holds a NUL, which no file's name can: choose another")
    return Path(os.path.expanduser(path))


def find_damage(path: str | Path, *, additions: bool = True) -> list[str]:
    """Every way in which a trace differs from its commit record, a sentence each; none if whole.

    Without `additions`, files that are not in the record are left to their owner.
    """
    folder = expand_path(path)
    if problem := describe_missing(folder) or describe_unfinished(folder):
        return [problem]
    if not os.path.lexists(folder / COMMIT):
        return [f"{COMMIT} is missing: the trace was never finished, or not copied whole"]
    try:
        return list(changed_files(folder, additions=additions).values())
    except UNREADABLE as error:
        return [f"{COMMIT} is damaged, nothing can be checked: {error}"]


def changed_files(
    folder: Path, *, additions: bool = True, subfolders: bool = True
) -> dict[str, str]:
    """Files that are not as the commit record says, each with a sentence; needs a sound record.

    Without `subfolders` only the files of the folder itself are looked at.
    """
    sizes = _files(folder)
    if sizes.pop(COMMIT, 0) < 0:
        raise ValueError(_odd(folder, COMMIT))
    files = read_sealed(folder / COMMIT)["files"]
    recorded = {name: (file["bytes"], file["sha256"]) for name, file in files.items()}
    if not subfolders:
        recorded = {name: entry for name, entry in recorded.items() if "/" not in name}
        sizes = {name: size for name, size in sizes.items() if "/" not in name}
    both = sorted(sizes.keys() & recorded.keys())
    with ThreadPoolExecutor(_THREADS) as pool:
        changed = pool.map(
            lambda name: _describe_change(folder, name, sizes[name], recorded[name]), both
        )
        missing = recorded.keys() - sizes.keys()
        added = sizes.keys() - recorded.keys() if additions else set()
        return {
            **{name: f"{_printable_name(name)} is missing" for name in sorted(missing)},
            **{name: sentence for name, sentence in zip(both, changed, strict=True) if sentence},
            **{
                name: f"{_printable_name(name)} is not in the commit record: it was added later, "
                "remove it"
                for name in sorted(added)
            },
        }


def extent(path: str | Path) -> tuple[int, int]:
    """How many files a trace has, and how many bytes."""
    sizes = _files(expand_path(path)).values()
    return len(sizes), sum(sizes)


def describe_missing(path: Path) -> str | None:
    """What to say where there is no folder: of nothing at all, an unfinished run, or a file."""
    if path.is_dir():
        return None
    if path.exists():
        return f"{path} is a file and cannot be read as a trace: a trace is a folder"
    partial = partial_of(path)
    hint = (
        describe_unfinished(partial)
        if partial.exists()
        else f"`anchorwatch run ... -o {path}` makes one"
    )
    return f"there is no trace at {path}: {hint}"


def is_no_trace(path: Path) -> bool:
    """Whether a folder has nothing of a trace in it; a damaged trace has something."""
    return not any(os.path.lexists(path / name) for name in ("zarr.json", COMMIT, "canvas"))


def describe_unfinished(path: Path) -> str | None:
    """What to say of a folder that is no trace yet, by its name."""
    if path.name.endswith(PARTIAL):
        return f"{path} is an unfinished run: continue it with aw.run(..., resume={str(path)!r})"
    if path.name.startswith(".") and path.name.endswith(".tmp"):
        return f"{path} was left by a write that was killed: remove it"
    return None


def partial_of(path: Path) -> Path:
    """Where the run that will become `path` grows."""
    if not path.name:
        raise TraceError(f"{path} is a folder: give the trace a name, {path / 'lena.trace'}")
    if path.name == PARTIAL:
        raise TraceError(f"{path} is no name: give the trace one, {path.with_name('lena.trace')}")
    return path if path.name.endswith(PARTIAL) else path.with_name(f"{path.name}{PARTIAL}")


def finished_of(path: Path) -> Path:
    """What a run becomes that was asked for as `path`, or grows there."""
    return path.with_name(path.name.removesuffix(PARTIAL) or path.name)


@contextmanager
def stage_folder(target: Path) -> Iterator[Path]:
    """A temporary sibling that becomes `target` when all goes well and vanishes otherwise."""
    refuse_existing(target)
    refuse_inside_trace(target)
    if not target.parent.is_dir():
        raise TraceError(f"the folder {target.parent} does not exist: make it first")
    with temporary(target, folder=True) as folder:
        yield folder
        publish(folder, target)


def publish(folder: Path, target: Path) -> None:
    """Give a finished folder its final name, at once; the loser of a race is told so."""
    try:
        os.rename(folder, target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            refuse_existing(target)
        raise
    sync_folder(target.parent)


def refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise TraceError(f"{target} exists already: choose another name or remove it first")


def resolve(path: Path) -> Path:
    """The path without links; a name that no file can have is refused."""
    try:
        return path.resolve()
    except (RuntimeError, ValueError) as error:  # links in a circle, or a name that no file has
        raise SpecError(f"{path} cannot be a place, {error}: choose another") from None


def refuse_inside_trace(path: Path) -> None:
    """Refuse to write to a place inside a trace, an unfinished run or a checkpoint.

    A file added to one makes it differ from its commit record, and so unreadable.
    """
    whole = resolve(path) if path.is_dir() else resolve(path.parent) / path.name
    for folder in (whole, *whole.parents):
        what = None
        if os.path.lexists(folder / "zarr.json"):
            what = "a trace"
        elif folder.name.endswith(PARTIAL) and os.path.lexists(folder / "run.json"):
            what = "an unfinished run"
        elif folder.parent.name == "checkpoints" and os.path.lexists(folder / COMMIT):
            what = "a checkpoint"
        if what is not None:
            raise SpecError(
                f"{folder} is {what}, and a file in it would spoil it: choose a folder outside"
            )


def commit(folder: Path) -> None:
    """Force every file to disk and write the record of them."""
    names = sorted(_files(folder).keys() - {COMMIT})
    with ThreadPoolExecutor(_THREADS) as pool:
        files = dict(
            zip(names, pool.map(lambda name: _hash_and_sync(folder / name), names), strict=True)
        )
    put_file(folder / COMMIT, seal({"files": files}))
    sync_tree(folder)


def replace_file(target: Path, content: bytes) -> None:
    """Write a file, old or new and never half."""
    refuse_inside_trace(target)
    with temporary(target, folder=False) as growing:
        put_file(growing, content)
        growing.replace(target)
    sync_folder(target.parent)


def put_file(path: Path, content: bytes | memoryview) -> None:
    """Write a file and force it to disk."""
    with path.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


def sync_file(path: Path) -> None:
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Force the names in a folder and its subfolders to disk."""
    for root, _, _ in os.walk(folder):
        sync_folder(Path(root))


def seal(record: Mapping[str, Any]) -> bytes:
    """Canonical JSON that holds its own digest."""
    digest = hashlib.sha256(_canonical(plain(record))).hexdigest()
    return _canonical({**plain(record), "digest": digest})


def read_sealed(path: Path) -> dict[str, Any]:
    """The record of a sealed file, or ValueError."""
    return unseal(read_plain(path, most=LIMIT_JSON_BYTES), path.name)


def unseal(raw: bytes, name: str) -> dict[str, Any]:
    """The record of sealed bytes, or ValueError.

    The digest is one line of the text, so that the sealed text is what is left without it:
    nothing is encoded again, which would take four times as long.
    """
    record = _object(name, raw)
    line = _DIGEST_LINE.search(raw)
    if line is None or record.pop("digest", None) != line[1].decode():
        raise ValueError(f"{name} does not agree with its own digest")
    before, after = raw[: line.start()], raw[line.end() :]
    if not line[2]:  # the last entry: the comma stands before it, or it is the only one
        before = before.removesuffix(b",")
        after = after.lstrip(b"\n") if before == b"{" else after
    if hashlib.sha256(before + after).hexdigest() != line[1].decode():
        raise ValueError(f"{name} does not agree with its own digest")
    return record


_DIGEST_LINE = re.compile(rb'\n "digest": "([0-9a-f]{64})"(,?)')
"""The entry of a sealed record that holds its digest; entries of inner records stand deeper."""


def with_digest(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record that holds its own digest, however it is spelled later."""
    return {**record, "digest": _digest(record)}


def without_digest(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record again, or ValueError where it was changed; an older one has no digest."""
    bare = {name: value for name, value in record.items() if name != "digest"}
    if "digest" in record and record["digest"] != _digest(bare):
        raise ValueError("it does not agree with its own digest")
    return bare


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain(record), sort_keys=True).encode()).hexdigest()


def read_json(path: Path, *, links: bool = True) -> dict[str, Any]:
    """A JSON object of a sane size, or ValueError."""
    return _object(path.name, read_plain(path, most=LIMIT_JSON_BYTES, links=links))


def read_record(path: Path) -> dict[str, Any]:
    """A JSON object that we wrote without a seal; a damaged file is named."""
    try:
        return read_json(path)
    except FileNotFoundError:
        raise TraceError(f"there is no {path}: copy the folder whole, or make it again") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{path} is damaged ({error}): copy it again, or make it again") from None


def _object(name: str, raw: bytes) -> dict[str, Any]:
    record = parse_json(raw)
    if not isinstance(record, dict):
        raise ValueError(f"{name} holds no JSON object")
    return record


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> memoryview:
    """An .npz, without pickle, whose zip comment is the digest of all before it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as handle:
                np.lib.format.write_array(handle, np.asanyarray(array), allow_pickle=False)
        archive.comment = bytes(64)
    whole = buffer.getbuffer()  # no second copy of what may be large
    whole[-64:] = hashlib.sha256(whole[:-64]).hexdigest().encode()
    return whole


def unpack_arrays(path: Path) -> dict[str, np.ndarray] | None:
    """The arrays of a packed file, or None if it is torn."""
    raw = read_plain(path, most=LIMIT_STATE_BYTES)
    if hashlib.sha256(raw[:-64]).hexdigest().encode() != raw[-64:]:
        return None
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > len(raw):
            raise ValueError(f"{path.name} would unpack to more than it holds")
    with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
        return dict(arrays)


def newest_state(folder: Path) -> tuple[int, dict[str, np.ndarray]]:
    """Steps and arrays of the newest state that is whole; 0 and nothing without one."""
    states = {
        int(match[1]): path
        for path in folder.glob("state-*.npz")
        if (match := re.fullmatch(r"state-(\d{1,9})\.npz", path.name))
    }
    for steps in sorted(states, reverse=True):
        if (arrays := unpack_arrays(states[steps])) is not None:
            return steps, arrays
    return 0, {}


def plain(value: Any) -> Any:
    """Numpy scalars, arrays and tuples as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def _canonical(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, indent=1).encode() + b"\n"


def _files(folder: Path) -> dict[str, int]:
    """Bytes of every file, by name; -1 for links, pipes and folders where a trace has files.

    A trace is two levels deep. We never look deeper and never follow a link.
    """
    sizes = {}
    for top in sorted(os.scandir(folder), key=lambda entry: entry.name):
        inner = os.scandir(top) if top.is_dir(follow_symlinks=False) else None
        prefix = "" if inner is None else f"{top.name}/"
        for entry in [top] if inner is None else list(inner):
            plain = entry.is_file(follow_symlinks=False)
            sizes[prefix + entry.name] = entry.stat(follow_symlinks=False).st_size if plain else -1
    return sizes


def refuse_odd_files(folder: Path, without: Collection[str] = ()) -> None:
    """Refuse a trace with a link, a pipe or a device in it, before any of its files is opened."""
    for name, size in _files(folder).items():
        if size < 0 and name.partition("/")[0] not in without:
            raise TraceError(f"{folder} cannot be read as a trace: {_odd(folder, name)}, remove it")


def _odd(folder: Path, name: str) -> str:
    kind = odd_kind(folder / name, links=False)
    both = "a link or a folder"
    return (
        f"{_printable_name(name)} is {both if kind in ('a link', 'a folder') else kind}, not a file"
    )


def _hash_and_sync(path: Path) -> dict[str, Any]:
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
        size = handle.tell()
        os.fsync(handle.fileno())
    return {"bytes": size, "sha256": digest}


def _describe_change(folder: Path, name: str, size: int, recorded: tuple[int, str]) -> str | None:
    if size < 0:
        return _odd(folder, name)
    if size != recorded[0]:
        what = "cut short" if size < recorded[0] else "made longer"
        return f"{_printable_name(name)} was {what}: {size} bytes instead of {recorded[0]}"
    try:
        with open_plain(folder / name, links=False) as handle:
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        return f"{_printable_name(name)} cannot be read: {error.strerror or error}"
    return (
        None if digest == recorded[1] else f"{_printable_name(name)} was changed: another SHA-256"
    )


def _printable_name(name: str) -> str:
    return name if name.isprintable() else ascii(name)
