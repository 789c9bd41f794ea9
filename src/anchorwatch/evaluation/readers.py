"""Records out of files, one at a time: JSON lines, JSON arrays, SQuAD, CSV, Parquet; gzip too.

What a file is, its first bytes say, not its name. A record comes with its place in words, so that
whatever is wrong with it can be found again; a line that is no record comes as a `Bad` one. Only
SQuAD's one object is read whole; all else is streamed.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from anchorwatch.errors import SpecError
from anchorwatch.trace.input_files import (
    LONGEST_LINE,
    LongLineError,
    bounded_lines,
    open_plain,
    plain_lines,
    read_bounded,
)

CHUNK = 2**16
LONGEST = LONGEST_LINE
"""Characters of one element of a JSON array; a longer one is taken for a damaged file."""
LARGEST = 2**29
"""Bytes of SQuAD's one object, which is read whole."""
_LFS, _GZIP, _PARQUET = b"version https://git-lfs", b"\x1f\x8b", b"PAR1"
_DAMAGED = (OSError, EOFError, zlib.error)
_READS = "JSON lines, a JSON array, SQuAD's JSON, .csv, .tsv or .parquet, also as .gz"


@dataclass(frozen=True)
class Record:
    """Fields of one item as they stand in the file."""

    where: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class BadRecord:
    """A place of the file that holds no record."""

    where: str
    says: str


def read_records(path: Path) -> Iterator[Record | BadRecord]:
    """Everything the file holds, in its order."""
    if not path.is_file():
        what = "is a folder: name a file in it" if path.is_dir() else "does not exist"
        raise SpecError(f"{path} {what}; a task is a file of {_READS}, or synthetic/one-hop")
    with _open_unpacked(path) as handle:
        kind = detect_kind(path, handle)
    if kind == "parquet":
        yield from _read_parquet(path)
        return
    with _open_unpacked(path) as handle:
        if kind == "array":
            yield from _read_array(path, handle)
        elif kind == "object":
            yield from _read_squad(path, handle)
        elif kind == "lines":
            yield from _read_lines(handle)
        else:
            yield from _read_table(path, handle, "\t" if kind == "tsv" else ",")


def detect_kind(path: Path, handle: BinaryIO) -> str:
    """lines, array, object, csv, tsv or parquet, by the first bytes and then the name."""
    try:
        first = handle.read(CHUNK)
    except _DAMAGED as error:
        raise SpecError(f"{path} cannot be unpacked, {error}: fetch it again") from None
    if first.startswith(_LFS):
        raise SpecError(f"{path} is a Git LFS pointer, not the data: run `git lfs pull` first")
    if first.startswith(_PARQUET):
        return "parquet"
    begin = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not begin:
        raise SpecError(f"{path} is empty: expected {_READS}")
    names = [suffix.lower() for suffix in path.suffixes]
    if begin.startswith(b"["):
        return "lines" if _is_array_line(begin) else "array"
    if begin.startswith(b"{"):
        whole = ".jsonl" in names or _is_record_line(begin) or _has_record_next(begin)
        return "lines" if whole else "object"
    for kind in ("csv", "tsv"):
        if f".{kind}" in names:
            return kind
    if ".jsonl" in names or _has_record_next(begin):
        return "lines"  # whose first line is bad, and will be named
    raise SpecError(f"{path} begins with {begin[:12]!r}, which is none of {_READS}")


def _is_record_line(begin: bytes) -> bool:
    """Whether the first line is a record by itself, and not SQuAD's object in one line."""
    line, newline, _ = begin.partition(b"\n")
    if (record := _parse_line(line)) is None:
        # too long for one look, yet a line is a line: SQuAD's object names its data early
        return b'"paragraphs"' not in begin and not newline and len(begin) > CHUNK // 2
    return isinstance(record, dict) and not isinstance(record.get("data"), list)


def _is_array_line(begin: bytes) -> bool:
    """Whether the first line is an array by itself, and not the file's only one."""
    line, _, rest = begin.partition(b"\n")
    return bool(rest.strip()) and _parse_line(line) is not None


def _has_record_next(begin: bytes) -> bool:
    """Whether the second line is a record by itself: then the first is one that is bad."""
    record = _parse_line(begin.partition(b"\n")[2].lstrip().partition(b"\n")[0])
    return isinstance(record, dict) and "paragraphs" not in record  # an article of SQuAD's


def _parse_line(line: bytes) -> Any:
    """What a line spells; None where it spells nothing."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


@contextmanager
def _open_unpacked(path: Path) -> Iterator[BinaryIO]:
    """The file, unpacked on the way where it is packed."""
    with open_plain(path) as handle:
        packed = handle.read(2) == _GZIP
        handle.seek(0)
        if not packed:
            yield handle
            return
        with gzip.GzipFile(fileobj=handle, mode="rb") as inner:
            yield inner  # type: ignore[misc]


def _read_lines(handle: BinaryIO) -> Iterator[Record | BadRecord]:
    lines, number = bounded_lines(handle), 0
    while True:
        number += 1
        try:
            line = next(lines, None)
        except _DAMAGED as error:
            yield BadRecord(f"line {number}", f"cannot be unpacked ({error}), and nothing after it")
            return
        if line is None:
            return
        if isinstance(line, LongLineError):
            yield BadRecord(f"line {number}", str(line))
        elif line.strip():
            yield _read_line(f"line {number}", line)


def _read_line(where: str, line: bytes) -> Record | BadRecord:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return BadRecord(where, f"is not UTF-8 at byte {error.start}")
    except (ValueError, RecursionError) as error:
        return BadRecord(where, f"is not JSON: {str(error).splitlines()[0][:80]}")
    if not isinstance(record, dict):
        return BadRecord(
            where, f"is no JSON object but {type(record).__name__}, and a line is one object"
        )
    return Record(where, record)


def _read_array(path: Path, handle: BinaryIO) -> Iterator[Record | BadRecord]:
    for number, element in enumerate(read_elements(path, handle), start=1):
        where = f"element {number}"
        if isinstance(element, dict):
            yield Record(where, element)
        else:
            yield BadRecord(where, f"is no JSON object but {type(element).__name__}")


def read_elements(path: Path, handle: BinaryIO) -> Iterator[Any]:
    """Elements of one JSON array, each parsed as soon as it is there."""
    decoder, letters = json.JSONDecoder(), codecs.getincrementaldecoder("utf-8-sig")()
    buffer, position, number, size = "", 0, 1, CHUNK
    opened, parted = False, True  # whether [ was seen, and whether a comma stands before us
    while True:
        while position < len(buffer) and (
            buffer[position].isspace() or (buffer[position] == "," and not parted)
        ):
            parted, position = parted or buffer[position] == ",", position + 1
        if position < len(buffer) and not opened:
            opened, position = True, position + 1  # kind_of saw that it is [
            continue
        if position < len(buffer) and buffer[position] == "]":
            return _refuse_rest(path, handle, letters, buffer[position + 1 :], number)
        try:
            if position == len(buffer) or not parted:
                raise ValueError("an element is expected")
            element, position = decoder.raw_decode(buffer, position)
        except (ValueError, RecursionError) as error:
            more = _read_more(path, handle, letters, size, number)
            if not more or len(buffer) - position > LONGEST:
                raise SpecError(
                    f"{path}: element {number} is not JSON ({str(error).splitlines()[0][:60]}), "
                    "and nothing after it can be read: repair the file, or make it JSON lines"
                ) from None
            buffer, position, size = buffer[position:] + more, 0, 2 * size
            continue
        number, size, parted = number + 1, CHUNK, False
        yield element


def _refuse_rest(
    path: Path, handle: BinaryIO, letters: codecs.IncrementalDecoder, rest: str, number: int
) -> None:
    while not rest.strip():
        if not (rest := _read_more(path, handle, letters, CHUNK, number)):
            return
    raise SpecError(
        f"{path}: after the array's {number - 1} elements stands {rest.strip()[:20]!r}, "
        "which nothing reads: make it one array, or JSON lines"
    )


def _read_more(
    path: Path, handle: BinaryIO, letters: codecs.IncrementalDecoder, size: int, number: int
) -> str:
    """The next text; nothing at the end of the file, also where a letter is cut in two."""
    try:
        while raw := handle.read(size):
            if text := letters.decode(raw):
                return text
        return letters.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{path}: element {number} or one soon after is not UTF-8 ({error.reason}): "
            "convert it first, for example with iconv -t utf-8"
        ) from None
    except _DAMAGED as error:
        problem = f"{path} cannot be unpacked after element {number - 1}, {error}: fetch it again"
        raise SpecError(problem) from None


def _read_squad(path: Path, handle: BinaryIO) -> Iterator[Record | BadRecord]:
    """Questions of SQuAD's articles; each knows the other paragraphs of its article."""
    try:
        whole = read_bounded(handle, LARGEST)
        if whole is None:
            raise SpecError(
                f"{path} is one JSON object of more than {LARGEST >> 20} MiB: make it JSON lines"
            )
        dataset = json.loads(whole.decode("utf-8-sig"))
    except SpecError:
        raise
    except (ValueError, RecursionError, *_DAMAGED) as error:
        raise SpecError(f"{path} is not JSON: {str(error).splitlines()[0][:80]}") from None
    if not isinstance(dataset, dict) or not isinstance(dataset.get("data"), list):
        raise SpecError(f"{path} is one JSON object without a list `data`: expected {_READS}")
    for number, article in enumerate(dataset["data"], start=1):
        where = f"article {number}"
        if not isinstance(article, dict) or not isinstance(article.get("paragraphs"), list):
            yield BadRecord(where, "has no list of paragraphs")
            continue
        yield from _read_article(where, article)


def _read_article(where: str, article: dict[str, Any]) -> Iterator[Record | BadRecord]:
    contexts = [entry.get("context") for entry in article["paragraphs"] if isinstance(entry, dict)]
    for number, paragraph in enumerate(article["paragraphs"], start=1):
        paragraph_name = f"{where}, paragraph {number}"
        if not isinstance(paragraph, dict) or not isinstance(paragraph.get("qas"), list):
            yield BadRecord(paragraph_name, "has no list of questions, qas")
            continue
        own = paragraph.get("context")
        around = {"context": own, "title": article.get("title")}
        around["others"] = [text for text in contexts if isinstance(text, str) and text != own]
        for index, question in enumerate(paragraph["qas"], start=1):
            name = f"{paragraph_name}, question {index}"
            if isinstance(question, dict):
                yield Record(name, question | around)
            else:
                yield BadRecord(name, f"is no JSON object but {type(question).__name__}")


def _read_table(path: Path, handle: BinaryIO, separator: str) -> Iterator[Record | BadRecord]:
    csv.field_size_limit(LONGEST)  # the csv module has one limit for the whole process
    rows = csv.reader(_decode_lines(path, handle), delimiter=separator, strict=True)
    try:
        header = next(rows)
        if twice := {name for name in header if header.count(name) > 1}:
            raise SpecError(f"{path} names the column {min(twice)!r} twice: rename one")
        for row in rows:
            where = f"line {rows.line_num}"
            if not row:
                continue  # a blank line; one of empty cells is a record, and bad
            if len(row) != len(header):
                yield BadRecord(where, f"has {len(row)} cells and the header {len(header)}")
            else:
                yield Record(where, dict(zip(header, row, strict=True)))
    except (UnicodeDecodeError, csv.Error, *_DAMAGED) as error:
        says = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise SpecError(
            f"{path}: after line {rows.line_num} nothing can be read ({says}): repair the file"
        ) from None


def _decode_lines(path: Path, handle: BinaryIO) -> Iterator[str]:
    """Lines with their ends, which may stand inside a quoted cell."""
    first = True
    for line in plain_lines(handle, path):
        yield line.decode("utf-8-sig" if first else "utf-8")
        first = False


def _read_parquet(path: Path) -> Iterator[Record]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise SpecError("a .parquet file needs pyarrow: pip install pyarrow") from None
    try:
        table = parquet.ParquetFile(path)
        number = 0
        for batch in table.iter_batches(batch_size=256):
            for fields in batch.to_pylist():
                number += 1
                yield Record(f"row {number}", fields)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise SpecError(f"{path} cannot be read as Parquet: {str(error)[:100]}") from None
