"""Kinds of training rows: questions, passages, quizzes, trigger-copy text, prose, your own files.

A kind is a frozen dataclass with `@register_source`, whose fields are what a spec may say of it.
A row is one example and is never packed. A question ends after its answer, and the loop pads;
running text is cut to the whole length. Every row begins with what the tokenizer begins a prompt
with. Texts that exist already are cut into pieces, a tenth of which is held out.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from anchorwatch.errors import SpecError
from anchorwatch.evaluation.synthetic import SPLITS, Distractors, Draw, Item, World, fragments
from anchorwatch.evaluation.synthetic import Backcopy as Chain
from anchorwatch.evaluation.synthetic.names import draw_name
from anchorwatch.evaluation.synthetic.relations import (
    RELATIONS,
    Relation,
    fill_wording,
    name_in_sentence,
    relations_by_name,
)
from anchorwatch.trace.input_files import open_plain, plain_lines

if TYPE_CHECKING:
    from anchorwatch.training.tokenizer import Vocabulary

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
        content = [self.pieces, [(pair.prompt, pair.answer) for pair in self.pairs]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def take_split(self, split: str) -> Texts:
        """The pieces or pairs of a split; the number of a piece decides.

        What is held out loses all that stands in training too: texts repeat one another.
        """
        texts = self._take_split(held_out=split == "held-out")
        if split == "held-out":
            texts = texts._remove_seen(self._take_split(held_out=False))
        if not texts.pieces and not texts.pairs:
            count = len(self.pieces) + len(self.pairs)
            raise SpecError(
                f"{self.source} is too short ({count} pieces), or repeats itself too much, "
                f"to have a {split} split: give it more texts that differ"
            )
        return texts

    def _take_split(self, *, held_out: bool) -> Texts:
        return Texts(
            self.source,
            tuple(
                piece for number, piece in enumerate(self.pieces) if is_held_out(number) == held_out
            ),
            tuple(
                pair for number, pair in enumerate(self.pairs) if is_held_out(number) == held_out
            ),
        )

    def _remove_seen(self, seen: Texts) -> Texts:
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

    pieces = [piece for name in sorted(topics) for piece in _cut_pieces(topics[name])]
    return Texts("pydoc_data.topics", tuple(pieces))


def read_texts(path: str | Path, *, whole: bool = False) -> Texts:
    """A .txt file as running text; a .jsonl file line by line, as texts or as pairs.

    A piece is a whole text, or where not asked for, some lines of one.
    """
    path = Path(path).expanduser()
    if path.suffix not in (".txt", ".jsonl"):
        raise SpecError(f"{path}: a corpus file is .txt or .jsonl, one object a line")
    if whole and path.suffix == ".txt":
        raise SpecError(f"{path} is one text: whole = true takes a .jsonl, which has one a line")
    try:
        with open_plain(path) as handle:
            content = _without_mark(plain_lines(handle, path))
            if path.suffix == ".jsonl":
                return _read_jsonl(path, content, whole)
            return _read_txt(path, content)
    except OSError as error:
        raise SpecError(
            f"{path} cannot be read ({error.strerror or error}): give a .txt or .jsonl"
        ) from None


def _without_mark(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Lines without the mark that some programs put before a text."""
    for line in lines:
        yield line.removeprefix(codecs.BOM_UTF8)
        yield from lines


def _read_txt(path: Path, content: Iterable[bytes]) -> Texts:
    lines: list[str] = []
    for number, line in enumerate(content, start=1):
        try:
            lines += line.decode("utf-8").splitlines(keepends=True)
        except UnicodeDecodeError:
            raise SpecError(f"{path}, line {number}: not UTF-8; save the file as UTF-8") from None
    if not any(line.strip() for line in lines):
        raise SpecError(f"{path} is empty: give it at least one text")
    return Texts(str(path), tuple(_join_lines(lines)))


def _read_jsonl(path: Path, content: Iterable[bytes], whole: bool) -> Texts:
    texts: list[str] = []
    pairs: list[Pair] = []
    bad: dict[int, str] = {}
    for number, line in enumerate(content, start=1):
        if not line.strip():
            continue
        parsed = _read_line(line, number, whole)
        if isinstance(parsed, Pair):
            pairs.append(parsed)
        elif isinstance(parsed, list):
            texts += parsed
        else:
            bad[number] = str(parsed)
    if bad:
        some = "; ".join(f"line {number}: {why}" for number, why in list(bad.items())[:5])
        more = f"; and {len(bad) - 5} more lines" if len(bad) > 5 else ""
        raise SpecError(f"{path}, {some}{more}. Each line is {_FORMS}")
    if texts and pairs:
        problem = f"{path} has texts and, first in line {pairs[0].line}, prompts with answers"
        raise SpecError(f"{problem}: put them into two files")
    if not texts and not pairs:
        raise SpecError(f"{path} is empty: give it lines of {_FORMS}")
    return Texts(str(path), tuple(texts), tuple(pairs))


def _read_line(line: bytes, number: int, whole: bool) -> list[str] | Pair | str:
    """The pieces of a text, a pair, or what is wrong with the line."""
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return "not UTF-8"
    except (ValueError, RecursionError):
        return "not JSON"
    if not isinstance(record, dict):
        return f"a {type(record).__name__}, not an object"
    fields = ["text"] if "text" in record else ["prompt", "answer"]
    for name in fields:
        if name not in record:
            return f"no {name!r}"
        if not isinstance(record[name], str) or not record[name].strip():
            return f"{name!r} is no text"
        if not _is_unicode(record[name]):
            return f"{name!r} has a lone surrogate"
    if fields == ["text"]:
        return [record["text"]] if whole else _cut_pieces(record["text"])
    return Pair(number, record["prompt"], record["answer"])


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _cut_pieces(text: str) -> list[str]:
    """Whole lines, together at least _PIECE characters where there are as many."""
    return _join_lines(text.splitlines(keepends=True))


def _join_lines(every: Iterable[str]) -> list[str]:
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


def is_held_out(number: int) -> bool:
    return Draw("piece", number).chance(HELD_OUT)


_TRIES = 64
_ANOTHER, _NEXT_PASSAGE = 1 << 40, 1 << 50
"""How far away the item is that stands in for one, or the text that follows it; and the item of
the next passage of a row."""


@dataclass(frozen=True, eq=False)
class Example:
    """One row: a text, perhaps with a prompt that may be kept clear."""

    ids: np.ndarray
    """[token] int32, without padding."""
    scored: np.ndarray
    """[token] bool: the answer and its ends; everything where there is no prompt."""
    kind: str


MakeRow = Callable[[int], Example]
"""Row number i, a function of i."""


@dataclass(frozen=True)
class RowSettings:
    """Where a source writes: with which vocabulary, how long, for which split and seed."""

    vocabulary: Vocabulary
    length: int
    split: str
    seed: int

    def text_row(self, ids: list[int], kind: str) -> Example:
        """A row without a prompt, cut to the length."""
        row = np.array((self.vocabulary.start + ids)[: self.length], dtype=np.int32)
        return Example(row, np.ones(len(row), dtype=bool), kind)

    def answer_row(self, prompt: list[int], answer: list[int], ends: int, kind: str) -> Example:
        """A row with a prompt; `ends` end tokens follow the answer."""
        row = np.array(prompt + answer + [self.vocabulary.end] * ends, dtype=np.int32)
        return Example(row, np.arange(len(row)) >= len(prompt), kind)

    def draw(self, *what: str | int) -> Draw:
        return Draw("row", self.split, self.seed, *what)


@dataclass(frozen=True)
class Source:
    """A kind of row."""

    kind: ClassVar[str] = ""

    def open(self, settings: RowSettings) -> MakeRow:
        """Rows at a place; what cannot be written there is refused now."""
        raise NotImplementedError

    def sample_texts(self, seed: int, count: int) -> Iterator[str]:
        """Text of the training split for a tokenizer to learn from, about `count` rows of it."""
        raise NotImplementedError

    def content(self) -> str:
        """Digest of what was read from elsewhere; empty where all is drawn."""
        return ""


SOURCES: dict[str, type[Source]] = {}
"""Every kind of row by its name, in the order of messages and documents."""
_S = TypeVar("_S", bound=type[Source])


def register_source(kind: _S) -> _S:
    """Make a kind of row known to specs: `[[corpus.mix]] kind = "..."`.

    The class is a frozen dataclass with a `kind`; each field has a default, and its type is what a
    spec may say.
    """
    if not kind.kind or kind.kind in SOURCES:
        raise SpecError(f"{kind.__name__} needs a kind of its own: {kind.kind!r} is empty or taken")
    SOURCES[kind.kind] = kind
    return kind


@register_source
@dataclass(frozen=True)
class Questions(Source):
    """Question items with their passages; the answer follows the prompt.

    Each row has some of the distractors, from none to all. Where it would be too long it loses more
    of them, and where the gold passages alone are too long another item stands in.
    """

    hops: int = 1
    random: int = 1
    hard: int = 1
    extra: int = 2
    reverse: float = 0.25
    filler: float = 0.25
    relations: tuple[str, ...] = ()
    chat: float = 0.2
    """Share of the rows in the chat template's form."""
    room: int = 16
    """Answer and end tokens fill a slot of at most this length, drawn for each row."""
    kind: ClassVar[str] = "questions"

    def __post_init__(self) -> None:
        if not 0 <= self.chat <= 1:
            raise SpecError(f"chat={self.chat!r} is a share: expected 0 to 1")
        if self.room < 1:
            raise SpecError(f"room={self.room!r}: an answer needs at least 1 position")
        self.world("train", 0)

    def world(self, split: str, seed: int) -> World:
        """Where the items come from."""
        return World(
            split=split,
            hops=self.hops,
            seed=seed,
            distractors=Distractors(random=self.random, hard=self.hard),
            extra=self.extra,
            reverse=self.reverse,
            filler=self.filler,
            relations=self.relations,
        )

    def open(self, settings: RowSettings) -> MakeRow:
        if self.chat and settings.vocabulary.roles is None:
            raise SpecError("the tokenizer has no <|user|> and <|answer|> tokens: say chat = 0")
        return partial(self._make_row, settings, self.world(settings.split, settings.seed))

    def _make_row(self, settings: RowSettings, world: World, index: int) -> Example:
        draw = settings.draw(self.kind, index)
        chat, wish = draw.chance(self.chat), draw.word()
        shortest = []
        for attempt in range(_TRIES):
            item = world[index + attempt * _ANOTHER]
            answer = settings.vocabulary.ids_inside(" " + item.answers[0])
            prompt = _fit_prompt(item, settings, chat, len(answer) + 1, draw)
            free = settings.length - len(prompt) - len(answer)
            if free >= 1:
                ends = max(1, min(free, self.room - len(answer)))
                return settings.answer_row(prompt, answer, 1 + (wish * ends >> 64), self.kind)
            shortest.append(settings.length - free + 1)
        raise SpecError(
            f"questions of {self.hops} hops do not fit into length {settings.length}: "
            f"the shortest of {_TRIES} takes {min(shortest)}; raise length, or lower extra"
        )

    def sample_texts(self, seed: int, count: int) -> Iterator[str]:
        world = self.world("train", seed)
        for index in range(count):
            item = world[index]
            yield from fragments(f"{item.prompt()} {item.answers[0]}")


@dataclass(frozen=True)
class WorldSource(Source):
    """Rows from a world of one-hop items; its fields are refused when the source is made."""

    def __post_init__(self) -> None:
        self._world("train", 0)

    def open(self, settings: RowSettings) -> MakeRow:
        return partial(self._make_row, settings, self._world(settings.split, settings.seed))

    def _world(self, split: str, seed: int) -> World:
        raise NotImplementedError

    def _make_row(self, settings: RowSettings, world: World, index: int) -> Example:
        """Tellings of one item after another, cut to the length."""
        ids: list[int] = []
        more = index
        while len(ids) < settings.length:
            ids += settings.vocabulary.ids("".join(self._tell(world, more)))
            more += _ANOTHER
        return settings.text_row(ids, self.kind)

    def _tell(self, world: World, index: int) -> Iterator[str]:
        """What a row or a tokenizer reads of an item."""
        raise NotImplementedError

    def sample_texts(self, seed: int, count: int) -> Iterator[str]:
        world = self._world("train", seed)
        for index in range(count):
            for text in self._tell(world, index):
                yield from fragments(text)


@register_source
@dataclass(frozen=True)
class Passages(WorldSource):
    """Passages one after another, without questions; cut to the length."""

    extra: int = 3
    filler: float = 0.25
    kind: ClassVar[str] = "passages"

    def _world(self, split: str, seed: int) -> World:
        return World(split, 1, seed, Distractors(random=3), extra=self.extra, filler=self.filler)

    def _tell(self, world: World, index: int) -> Iterator[str]:
        return (f"{passage.text}\n" for passage in world[index].passages)


@register_source
@dataclass(frozen=True)
class Quiz(WorldSource):
    """Passages and a question for each of their facts; every answer is scored.

    An answer of one question is a few tokens of a row: here many names are asked back. Several
    passages are told first and asked of in any order; in half of such rows all state one relation,
    so that only the name in the question tells them apart.
    """

    extra: int = 3
    reverse: float = 0.25
    filler: float = 0.25
    passages: int = 1
    kind: ClassVar[str] = "quiz"

    def __post_init__(self) -> None:
        if self.passages < 1:
            raise SpecError(f"passages={self.passages!r}: a quiz needs at least 1")
        super().__post_init__()

    def _world(self, split: str, seed: int) -> World:
        return World(split, 1, seed, extra=self.extra, reverse=self.reverse, filler=self.filler)

    def _make_row(self, settings: RowSettings, world: World, index: int) -> Example:
        vocabulary = settings.vocabulary
        for attempt in range(_TRIES):
            text, questions = self._draw_quiz(settings, world, index + attempt * _ANOTHER)
            ids = vocabulary.start + vocabulary.ids(text)
            scored = [False] * len(ids)
            for question, answer in questions:
                prompt = vocabulary.ids_inside(f"\nQuestion: {question}\nAnswer:")
                given = [*vocabulary.ids_inside(f" {answer}"), vocabulary.end]
                if len(ids) + len(prompt) + len(given) > settings.length:
                    break  # the questions that fit
                ids += prompt + given
                scored += [False] * len(prompt) + [True] * len(given)
            if any(scored):
                return Example(np.array(ids, dtype=np.int32), np.array(scored), self.kind)
        raise SpecError(
            f"no passage with a question fits into length {settings.length}: raise length"
        )

    def _draw_quiz(
        self, settings: RowSettings, world: World, index: int
    ) -> tuple[str, Sequence[tuple[str, str]]]:
        """The passages of a row as text, and its questions with their answers."""
        if self.passages == 1:
            passage, questions = world.quiz(index)
            return f"Passage: {passage}", questions
        draw = settings.draw("quizzes", index)
        if draw.chance(0.5):
            world = replace(world, relations=(draw.pick(list(RELATIONS)),))
        quizzes = [world.quiz(index + more * _NEXT_PASSAGE) for more in range(self.passages)]
        text = "\n".join(f"Passage: {passage}" for passage, _ in quizzes)
        return text, draw.shuffle([pair for _, questions in quizzes for pair in questions])

    def _tell(self, world: World, index: int) -> Iterator[str]:
        passage, questions = world.quiz(index)
        yield f"Passage: {passage}"
        yield from (f"\nQuestion: {question}\nAnswer: {answer}" for question, answer in questions)


@register_source
@dataclass(frozen=True)
class Recall(Source):
    """One relation of several subjects, then said again in other words and another order.

    What stands second in each later sentence, subject or object, is scored: only the name before it
    tells which of the names of its kind it is. Easier than a question, and learned first.
    """

    subjects: int = 4
    """At most so many; each row has 2 or more."""
    relations: tuple[str, ...] = ()
    """What may be said; everything for none."""
    kind: ClassVar[str] = "recall"

    def __post_init__(self) -> None:
        if self.subjects < 2:
            raise SpecError(f"subjects={self.subjects!r}: there is nothing to tell apart below 2")
        relations_by_name(self.relations)

    def open(self, settings: RowSettings) -> MakeRow:
        return partial(self._make_row, settings)

    def _make_row(self, settings: RowSettings, index: int) -> Example:
        vocabulary = settings.vocabulary
        for attempt in range(_TRIES):
            draw = settings.draw(self.kind, index + attempt * _ANOTHER)
            first, again = self._draw_sentences(settings.split, draw)
            ids = vocabulary.start + vocabulary.ids(" ".join(first))
            scored = [False] * len(ids)
            for before, name, after in again:
                # The space before a name is part of its first token.
                parts = (f" {before}".rstrip(), f" {name}", after)
                tokens = [vocabulary.ids_inside(part) for part in parts]
                if len(ids) + sum(map(len, tokens)) > settings.length:
                    break  # the sentences that fit
                for part, of_answer in zip(tokens, (False, True, False), strict=True):
                    ids += part
                    scored += [of_answer] * len(part)
            if any(scored):
                return Example(np.array(ids, dtype=np.int32), np.array(scored), self.kind)
        raise SpecError(
            f"{self.subjects} subjects do not fit into length {settings.length}: raise length, "
            "or lower subjects"
        )

    def _draw_sentences(
        self, split: str, draw: Draw
    ) -> tuple[list[str], list[tuple[str, str, str]]]:
        """The first sentences; and the later ones, cut around the name that comes second."""
        relation = draw.pick(relations_by_name(self.relations))
        count = 2 + draw.below(self.subjects - 1)
        pairs: list[tuple[str, str]] = []
        while len(pairs) < count:
            kinds = (relation.subject, relation.object)
            pair = draw_name(kinds[0], split, draw), draw_name(kinds[1], split, draw)
            if len({*pair, *(name for other in pairs for name in other)}) == 2 * len(pairs) + 2:
                pairs.append(pair)
        first = ["".join(_cut_sentence(relation, pair, draw)) for pair in pairs]
        return first, [_cut_sentence(relation, pair, draw) for pair in draw.shuffle(pairs)]

    def sample_texts(self, seed: int, count: int) -> Iterator[str]:
        for index in range(count):
            first, again = self._draw_sentences("train", Draw("row", "train", seed, index))
            yield from fragments(" ".join([*first, *("".join(parts) for parts in again)]))


def _cut_sentence(relation: Relation, pair: tuple[str, str], draw: Draw) -> tuple[str, str, str]:
    """A sentence that says the relation of a subject and an object, cut around the second name."""
    wording = draw.pick(relation.statements)
    second = max("{s}", "{o}", key=wording.index)
    shown = dict(zip(("{s}", "{o}"), pair, strict=True))
    kind = relation.subject if second == "{s}" else relation.object
    article = name_in_sentence(kind, shown[second]).removesuffix(shown[second])
    before, after = wording.split(second)
    subject = name_in_sentence(relation.subject, pair[0])
    text = fill_wording(before, subject, name_in_sentence(relation.object, pair[1]))
    return text + article, shown[second], after


@register_source
@dataclass(frozen=True)
class Retold(WorldSource):
    """Passages told again and again in other words, one subject after another; cut to the length.

    A name that is masked in one telling stands in the other.
    """

    times: int = 2
    extra: int = 3
    filler: float = 0.25
    kind: ClassVar[str] = "retold"

    def __post_init__(self) -> None:
        if self.times < 1:
            raise SpecError(f"times={self.times!r}: a passage is told at least once")
        super().__post_init__()

    def _world(self, split: str, seed: int) -> World:
        return World(split, 1, seed, extra=self.extra, filler=self.filler)

    def _tell(self, world: World, index: int) -> Iterator[str]:
        yield "".join(f"Passage: {text}\n" for text in world.retold(index, self.times))


@register_source
@dataclass(frozen=True)
class Backcopy(Source):
    """Trigger-copy text, cut to the length."""

    triggers: float = 0.1
    back: int = 1
    successors: int = 8
    kind: ClassVar[str] = "backcopy"

    def __post_init__(self) -> None:
        self._chain()

    def _chain(self) -> Chain:
        return Chain(self.triggers, self.back, self.successors)

    def open(self, settings: RowSettings) -> MakeRow:
        return partial(self._make_row, settings, self._chain())

    def _make_row(self, settings: RowSettings, chain: Chain, index: int) -> Example:
        number = index + SPLITS.index(settings.split) * _ANOTHER
        words = chain.words(settings.seed, number, settings.length)  # a word is a token or more
        return settings.text_row(settings.vocabulary.ids(" " + " ".join(words)), self.kind)

    def sample_texts(self, seed: int, count: int) -> Iterator[str]:
        chain = self._chain()
        return (" " + " ".join(chain.words(seed, index, 100)) for index in range(count))


@dataclass(frozen=True)
class TextSource(Source):
    """Text that exists already: running text, of which a row is any window, or prompts with
    answers, a row each."""

    @cached_property
    def texts(self) -> Texts:
        """What there is to read."""
        raise NotImplementedError

    @property
    def is_whole(self) -> bool:
        """Whether a row is one text from its beginning, and not any window."""
        return False

    def content(self) -> str:
        return self.texts.digest

    def sample_texts(self, seed: int, count: int) -> Iterator[str]:
        some = self.texts.take_split("train")
        yield from some.pieces
        yield from (text for pair in some.pairs for text in (pair.prompt, " " + pair.answer))

    def open(self, settings: RowSettings) -> MakeRow:
        some, vocabulary = self.texts.take_split(settings.split), settings.vocabulary
        if some.pairs:
            return partial(
                self._pair, settings, [_encode_pair(p, settings, some.source) for p in some.pairs]
            )
        if self.is_whole:
            rows = [self._separate(vocabulary, piece) for piece in some.pieces]
            return partial(self._whole_text, settings, rows)
        ids = (i for piece in some.pieces for i in self._separate(vocabulary, piece))
        return partial(self._window, settings, np.fromiter(ids, dtype=np.int32))

    def _separate(self, vocabulary: Vocabulary, piece: str) -> list[int]:
        """Ids of a piece of text and of what divides it from the next."""
        return [*vocabulary.ids(piece), vocabulary.end]

    def _pair(
        self, settings: RowSettings, pairs: list[tuple[list[int], list[int]]], index: int
    ) -> Example:
        prompt, answer = settings.draw(self.kind, index).pick(pairs)
        return settings.answer_row(prompt, answer, 1, self.kind)

    def _whole_text(self, settings: RowSettings, rows: list[list[int]], index: int) -> Example:
        return settings.text_row(settings.draw(self.kind, index).pick(rows), self.kind)

    def _window(self, settings: RowSettings, stream: np.ndarray, index: int) -> Example:
        size = settings.length - len(settings.vocabulary.start)
        begin = settings.draw(self.kind, index).below(max(1, len(stream) - size + 1))
        return settings.text_row(stream[begin : begin + size].tolist(), self.kind)


@register_source
@dataclass(frozen=True)
class Prose(TextSource):
    """English prose: the language reference that CPython carries (PSF licence)."""

    kind: ClassVar[str] = "prose"

    @cached_property
    def texts(self) -> Texts:
        return python_prose()


@register_source
@dataclass(frozen=True)
class File(TextSource):
    """A .txt or .jsonl of the user's."""

    path: str = ""
    separator: str = ""
    """The token between two texts, by name; the end token unless said."""
    whole: bool = False
    """Whether a row is one text from its beginning, with the token that ends it where there is room
    for it; else any window of all texts in a row."""
    kind: ClassVar[str] = "file"

    def __post_init__(self) -> None:
        if not self.path:
            raise SpecError("a file needs a path: say path = 'texts.jsonl'")

    @cached_property
    def texts(self) -> Texts:
        return read_texts(self.path, whole=self.whole)

    @property
    def is_whole(self) -> bool:
        return self.whole

    def _separate(self, vocabulary: Vocabulary, piece: str) -> list[int]:
        divider = vocabulary.id_of(self.separator) if self.separator else vocabulary.end
        return [*vocabulary.ids(piece), divider]


def _fit_prompt(item: Item, settings: RowSettings, chat: bool, after: int, draw: Draw) -> list[int]:
    """Ids of the prompt with some distractors, few enough for `after` more tokens to fit."""
    golds = [index for index, passage in enumerate(item.passages) if passage.gold]
    others = draw.shuffle(
        [index for index, passage in enumerate(item.passages) if not passage.gold]
    )
    kept = draw.below(len(others) + 1)
    while True:
        prompt = _encode_prompt(
            item.arrange(sorted(golds + others[:kept])), settings.vocabulary, chat
        )
        if not kept or len(prompt) + after <= settings.length:
            return prompt
        kept -= 1


def _encode_prompt(item: Item, vocabulary: Vocabulary, chat: bool) -> list[int]:
    """The prompt as a model is given it, as text or as the one message of a chat."""
    if not chat or vocabulary.roles is None:
        return vocabulary.start + vocabulary.ids(item.prompt())
    user, answer = vocabulary.roles
    message = vocabulary.ids(item.message())
    return [*vocabulary.start, user, *message, vocabulary.end, answer]


def _encode_pair(pair: Pair, settings: RowSettings, source: str) -> tuple[list[int], list[int]]:
    """Ids of a prompt and of its answer, a space between them."""
    vocabulary = settings.vocabulary
    apart = pair.prompt[-1].isspace() or pair.answer[0].isspace()
    prompt = vocabulary.start + vocabulary.ids(pair.prompt)
    answer = vocabulary.ids_inside(pair.answer if apart else f" {pair.answer}")
    if (needs := len(prompt) + len(answer) + 1) > settings.length:
        raise SpecError(
            f"{source}, line {pair.line}: prompt and answer take {needs} tokens "
            f"and length is {settings.length}: shorten them, or raise length"
        )
    return prompt, answer
