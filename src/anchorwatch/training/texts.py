"""Texts that exist already: English prose that comes with Python, and files of the user's."""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from anchorwatch.errors import SpecError
from anchorwatch.evaluation.synthetic import Draw
from anchorwatch.trace.input_files import open_plain, plain_lines

HELD_OUT = 0.1
"""Share of the pieces of a text that is held out."""
_PIECE = 2000  # characters; a piece ends with its line
_SEEN = 40
"""Characters, spaces around lines aside, of shared lines that a held-out piece loses."""
_FORMS = '{"text": "..."} or {"prompt": "...", "answer": "..."}'


@dataclass(frozen=True)
class Pair:
    """A prompt and its answer, and the line that held them."""

    line: int
    prompt: str
    answer: str

    @property
    def words(self) -> tuple[str, str]:
        return self.prompt.strip(), self.answer.strip()


@dataclass(frozen=True)
class Texts:
    """What was read: pieces of running text, or pairs of prompt and answer; never both."""

    source: str
    pieces: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of what was read."""
        said = [self.pieces, [(pair.prompt, pair.answer) for pair in self.pairs]]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()

    def of_split(self, split: str) -> Texts:
        """The pieces or pairs of a split; the number of a piece decides.

        What is held out loses all that stands in training too: texts repeat one another.
        """
        found = self._numbered(held_out=split == "held-out")
        if split == "held-out":
            found = found._without(self._numbered(held_out=False))
        if not found.pieces and not found.pairs:
            count = len(self.pieces) + len(self.pairs)
            raise SpecError(
                f"{self.source} is too short ({count} pieces), or repeats itself too much, "
                f"to have a {split} split: give it more texts that differ"
            )
        return found

    def _numbered(self, *, held_out: bool) -> Texts:
        return Texts(
            self.source,
            tuple(piece for at, piece in enumerate(self.pieces) if _held_out(at) == held_out),
            tuple(pair for at, pair in enumerate(self.pairs) if _held_out(at) == held_out),
        )

    def _without(self, seen: Texts) -> Texts:
        """What is left when equal pieces and pairs, and runs of shared lines, are taken out."""
        pieces, pairs = set(seen.pieces), {pair.words for pair in seen.pairs}
        lines = {line.strip() for piece in seen.pieces for line in piece.splitlines()}
        left = (_drop_seen_lines(piece, lines) for piece in self.pieces if piece not in pieces)
        return Texts(
            self.source,
            tuple(piece for piece in left if piece.strip()),
            tuple(pair for pair in self.pairs if pair.words not in pairs),
        )


def python_prose() -> Texts:
    """The language reference that CPython carries for `help()` (PSF licence, version 2).

    Its words depend on the version of Python; the corpus digest says when they differ.
    """
    from pydoc_data.topics import topics

    pieces = [piece for name in sorted(topics) for piece in _cut(topics[name])]
    return Texts("pydoc_data.topics", tuple(pieces))


def read_texts(path: str | Path) -> Texts:
    """A .txt file as running text; a .jsonl file line by line, as texts or as pairs."""
    path = Path(path).expanduser()
    if path.suffix not in (".txt", ".jsonl"):
        raise SpecError(f"{path}: a corpus file is .txt or .jsonl, one object a line")
    try:
        with open_plain(path) as handle:
            content = _without_mark(plain_lines(handle, path))
            return _lines(path, content) if path.suffix == ".jsonl" else _running(path, content)
    except OSError as error:
        raise SpecError(
            f"{path} cannot be read ({error.strerror or error}): give a .txt or .jsonl"
        ) from None


def _without_mark(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Lines without the mark that some programs put before a text."""
    for line in lines:
        yield line.removeprefix(codecs.BOM_UTF8)
        yield from lines


def _running(path: Path, content: Iterable[bytes]) -> Texts:
    lines: list[str] = []
    for number, line in enumerate(content, start=1):
        try:
            lines += line.decode("utf-8").splitlines(keepends=True)
        except UnicodeDecodeError:
            raise SpecError(f"{path}, line {number}: not UTF-8; save the file as UTF-8") from None
    if not any(line.strip() for line in lines):
        raise SpecError(f"{path} is empty: give it at least one text")
    return Texts(str(path), tuple(_joined(lines)))


def _lines(path: Path, content: Iterable[bytes]) -> Texts:
    texts: list[str] = []
    pairs: list[Pair] = []
    bad: dict[int, str] = {}
    for number, line in enumerate(content, start=1):
        if not line.strip():
            continue
        found = _read_line(line, number)
        if isinstance(found, Pair):
            pairs.append(found)
        elif isinstance(found, list):
            texts += found
        else:
            bad[number] = str(found)
    if bad:
        some = "; ".join(f"line {number}: {why}" for number, why in list(bad.items())[:5])
        more = f"; and {len(bad) - 5} more lines" if len(bad) > 5 else ""
        raise SpecError(f"{path}, {some}{more}. Each line is {_FORMS}")
    if texts and pairs:
        said = f"{path} has texts and, first in line {pairs[0].line}, prompts with answers"
        raise SpecError(f"{said}: put them into two files")
    if not texts and not pairs:
        raise SpecError(f"{path} is empty: give it lines of {_FORMS}")
    return Texts(str(path), tuple(texts), tuple(pairs))


def _read_line(line: bytes, number: int) -> list[str] | Pair | str:
    """The pieces of a text, a pair, or what is wrong with the line."""
    try:
        said = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return "not UTF-8"
    except (ValueError, RecursionError):
        return "not JSON"
    if not isinstance(said, dict):
        return f"a {type(said).__name__}, not an object"
    fields = ["text"] if "text" in said else ["prompt", "answer"]
    for name in fields:
        if name not in said:
            return f"no {name!r}"
        if not isinstance(said[name], str) or not said[name].strip():
            return f"{name!r} is no text"
        if not _is_unicode(said[name]):
            return f"{name!r} has a lone surrogate"
    if fields == ["text"]:
        return _cut(said["text"])
    return Pair(number, said["prompt"], said["answer"])


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _cut(text: str) -> list[str]:
    """Whole lines, together at least _PIECE characters where there are as many."""
    return _joined(text.splitlines(keepends=True))


def _joined(every: Iterable[str]) -> list[str]:
    pieces: list[str] = []
    lines: list[str] = []
    size = 0
    for line in every:
        lines.append(line)
        size += len(line)
        if size >= _PIECE:
            pieces.append("".join(lines))
            lines, size = [], 0
    return [*pieces, "".join(lines)] if lines else pieces


def _drop_seen_lines(piece: str, seen: Set[str]) -> str:
    """The lines of a piece but for those in a row that all were seen, if they say enough.

    A short line alone, such as a bracket, is nobody's; many together are an example.
    """
    left: list[str] = []
    for shared, run in groupby(piece.splitlines(keepends=True), lambda line: line.strip() in seen):
        lines = list(run)
        if not shared or sum(len(line.strip()) for line in lines) < _SEEN:
            left += lines
    return "".join(left)


def _held_out(number: int) -> bool:
    return Draw("piece", number).chance(HELD_OUT)
