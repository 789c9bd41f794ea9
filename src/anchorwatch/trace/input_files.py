"""Files of others: plain files only, and lines of a bounded size.

A pipe without a writer waits for ever and a device never ends. So what a file is gets checked
before it is opened, and once more on what was opened. No torch and no numpy here.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import IO, Any

from anchorwatch.errors import SpecError

LONGEST_LINE = 64 << 20
"""Bytes of one line of a text file, a .jsonl or a .csv."""
_SKIP = 1 << 20
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
}


def odd_kind(path: Path, *, links: bool = True) -> str | None:
    """What stands there instead of a plain file, in words; None for a plain file.

    With `links` a link counts as what it leads to. Nothing is opened.
    """
    return _kind(path.stat(follow_symlinks=links).st_mode)


def open_plain(
    path: Path, *, links: bool = True, write: bool = False
) -> BufferedReader | BufferedRandom:
    """Open a plain file for reading, or for reading and writing; anything else is an OSError."""
    if kind := odd_kind(path, links=links):
        raise _odd(path, kind)
    flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK
    handle = os.open(path, flags | (0 if links else os.O_NOFOLLOW))
    if kind := _kind(os.fstat(handle).st_mode):  # it was exchanged since
        os.close(handle)
        raise _odd(path, kind)
    return os.fdopen(handle, "r+b") if write else os.fdopen(handle, "rb")


def read_plain(path: Path, *, most: int, links: bool = True) -> bytes:
    """The bytes of a plain file; ValueError where there are more than `most`."""
    with open_plain(path, links=links) as handle:
        if (size := os.fstat(handle.fileno()).st_size) > most:
            raise ValueError(f"{path.name} has {size} bytes, more than the {most} that are read")
        return handle.read(size)


def read_bounded(handle: IO[bytes], most: int) -> bytes | None:
    """All that is left to read; None where it is more than `most` bytes, which are not kept."""
    parts, size = [], 0
    while part := handle.read(_SKIP):
        parts.append(part)
        size += len(part)
        if size > most:
            return None
    return b"".join(parts)


def parse_json(text: str | bytes) -> Any:
    """A JSON value; whatever is wrong with it, too deep a nesting too, is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


class LongLineError(ValueError):
    """A line has more bytes than are read."""

    def __init__(self, number: int, most: int) -> None:
        self.number = number
        super().__init__(f"is longer than the {most >> 20} MiB that a line may have: break it up")


def bounded_lines(handle: IO[bytes], most: int = LONGEST_LINE) -> Iterator[bytes | LongLineError]:
    """Lines with their ends; one that is too long comes as an error, is skipped and never kept."""
    number = 0
    while line := handle.readline(most + 1):
        number += 1
        if len(line) <= most:
            yield line
            continue
        while not line.endswith(b"\n") and (line := handle.readline(_SKIP)):
            pass
        yield LongLineError(number, most)


def plain_lines(handle: IO[bytes], name: object, most: int = LONGEST_LINE) -> Iterator[bytes]:
    """Lines with their ends; one that is too long is a SpecError that names file and line."""
    for line in bounded_lines(handle, most):
        if isinstance(line, LongLineError):
            raise SpecError(f"{name}, line {line.number} {line}") from None
        yield line


def _kind(mode: int) -> str | None:
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no file")


def _odd(path: Path, kind: str) -> OSError:
    return OSError(f"{path.name} is {kind}, not a plain file")
