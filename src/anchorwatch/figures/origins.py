"""What made a figure: written into the file itself, read back by `whence`. Without matplotlib.

The record is ASCII JSON: in a PDF the Keywords of the info dictionary, in an SVG the description of
its metadata, in a PNG a text chunk. Reading parses foreign bytes and trusts none of them.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from anchorwatch import __version__
from anchorwatch.errors import SpecError, TraceError
from anchorwatch.trace.atomic_io import plain, without_digest
from anchorwatch.trace.input_files import parse_json, read_plain
from anchorwatch.trace.provenance import origin
from anchorwatch.trace.trace import Trace

PNG_KEY = "anchorwatch"
LIMIT_BYTES = 1 << 30

_PNG = b"\x89PNG\r\n\x1a\n"
_DESCRIPTION = "{http://purl.org/dc/elements/1.1/}description"
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}


def build_record(
    name: str, settings: Mapping[str, Any], traces: Sequence[Trace | Mapping[str, Any]]
) -> dict[str, Any]:
    """The record of a figure; a trace is given as itself or as its `origin`."""
    record = {
        "anchorwatch": __version__,
        "figure": name,
        "settings": dict(settings),
        "traces": [origin(trace) if isinstance(trace, Trace) else dict(trace) for trace in traces],
    }
    try:
        return json.loads(to_json(record))
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"the settings of {name} cannot be written down ({error}): "
            "give finite numbers, text, lists and None"
        ) from None


def to_json(record: Mapping[str, Any]) -> str:
    """The record as ASCII JSON, the same for the same record."""
    return json.dumps(plain(record), sort_keys=True, allow_nan=False)


def whence(path: str | Path) -> dict[str, Any]:
    """What made a figure file: its name and settings, our version, and every trace it shows."""
    file = Path(path)
    if not file.is_file():
        raise TraceError(f"there is no figure at {file}: expected a .pdf, .png or .svg file")
    try:
        raw = read_plain(file, most=LIMIT_BYTES)
    except (OSError, ValueError) as error:
        raise TraceError(f"{file} cannot be read ({error}): copy it again") from None
    for text in _records(raw):
        try:
            record = parse_json(text)
            if _is_ours(record):
                return without_digest(record)
        except ValueError:
            continue
    raise TraceError(
        f"{file} does not say what made it: `whence` reads .pdf, .png and .svg files that "
        "`figure.save` wrote and no other program rewrote"
    )


def _is_ours(record: Any) -> bool:
    kinds = {"anchorwatch": str, "figure": str, "settings": dict, "traces": list}
    return (
        isinstance(record, dict)
        and record.keys() - {"digest"} == kinds.keys()
        and all(isinstance(record.get(name), kind) for name, kind in kinds.items())
        and all(isinstance(trace, dict) for trace in record["traces"])
    )


def _records(raw: bytes) -> Iterator[str]:
    """Every text of the file that may be a record."""
    if raw.startswith(_PNG):
        return _png_texts(raw)
    if raw.startswith(b"%PDF-"):
        return _pdf_keywords(raw)
    return _svg_descriptions(raw)


def _png_texts(raw: bytes) -> Iterator[str]:
    """The text chunks that bear our key; a damaged chunk ends the search."""
    offset = len(_PNG)
    while offset + 12 <= len(raw):
        size, kind = struct.unpack(">I4s", raw[offset : offset + 8])
        body, check = (
            raw[offset + 8 : offset + 8 + size],
            raw[offset + 8 + size : offset + 12 + size],
        )
        if len(check) < 4 or zlib.crc32(kind + body) != int.from_bytes(check, "big"):
            return
        key, _, text = body.partition(b"\0")
        if kind == b"tEXt" and key == PNG_KEY.encode():
            yield text.decode("latin-1")
        offset += 12 + size


def _svg_descriptions(raw: bytes) -> Iterator[str]:
    try:
        for _, element in ElementTree.iterparse(io.BytesIO(raw)):
            if element.tag == _DESCRIPTION and element.text:
                yield element.text
    except ElementTree.ParseError:
        return


def _pdf_keywords(raw: bytes) -> Iterator[str]:
    """Keywords of the info dictionary the last trailer names."""
    trailer = raw.rfind(b"trailer")
    named = (
        re.search(rb"/Info\s+(\d{1,9})\s+(\d{1,5})\s+R", raw[trailer:]) if trailer >= 0 else None
    )
    if named is None:
        return
    start = re.compile(rb"(?<!\d)%s\s+%s\s+obj\b" % named.groups())
    for match in start.finditer(raw):
        end = raw.find(b"endobj", match.end())
        dictionary = raw[match.end() : end if end >= 0 else len(raw)]
        for key in re.finditer(rb"/Keywords\s*\(", dictionary):
            yield _literal(dictionary[key.end() :])


def _literal(raw: bytes) -> str:
    """A PDF literal string from after its opening parenthesis; as far as it goes if it is torn."""
    text, depth = bytearray(), 0
    for part in re.finditer(rb"\\([0-7]{1,3})|\\(\r\n|.)|([()])|([^\\()]+)", raw, re.DOTALL):
        octal, escaped, bracket, rest = part.groups()
        if bracket is not None:
            depth += 1 if bracket == b"(" else -1
            if depth < 0:
                break
        if octal is not None:
            text.append(int(octal, 8) & 255)
        elif escaped is not None:
            text += b"" if escaped in (b"\n", b"\r", b"\r\n") else _ESCAPES.get(escaped, escaped)
        else:
            text += bracket or rest
    return text.decode("latin-1")
