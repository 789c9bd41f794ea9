"""Kinds of training rows, as frozen values whose fields are what a spec may say.

A row is one example and is never packed. A question item ends after its answer, and the loop pads;
running text, passages and trigger-copy text are cut to the whole length. Every row begins with what
the tokenizer begins a prompt with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from anchorwatch.errors import SpecError
from anchorwatch.evaluation.synthetic import SPLITS, Distractors, Draw, Item, World, fragments
from anchorwatch.evaluation.synthetic import Backcopy as Chain
from anchorwatch.training.texts import Pair, Texts, python_prose, read_texts
from anchorwatch.training.tokenizer import Vocabulary

_TRIES = 64
_ANOTHER = 1 << 40
"""How far away the item is that stands in for one, or the text that follows it."""


@dataclass(frozen=True, eq=False)
class Example:
    """One row: a text, perhaps with a prompt that may be kept clear."""

    ids: np.ndarray
    """[token] int32, without padding."""
    scored: np.ndarray
    """[token] bool: the answer and its ends; everything where there is no prompt."""
    kind: str


Rows = Callable[[int], Example]
"""Row number i, a function of i."""


@dataclass(frozen=True)
class Place:
    """Where a source writes: with which vocabulary, how long, for which split and seed."""

    vocabulary: Vocabulary
    length: int
    split: str
    seed: int

    def plain(self, ids: list[int], kind: str) -> Example:
        """A row without a prompt, cut to the length."""
        row = np.array((self.vocabulary.start + ids)[: self.length], dtype=np.int32)
        return Example(row, np.ones(len(row), dtype=bool), kind)

    def answered(self, prompt: list[int], answer: list[int], ends: int, kind: str) -> Example:
        """A row with a prompt; `ends` end tokens follow the answer."""
        row = np.array(prompt + answer + [self.vocabulary.end] * ends, dtype=np.int32)
        return Example(row, np.arange(len(row)) >= len(prompt), kind)

    def draw(self, *what: str | int) -> Draw:
        return Draw("row", self.split, self.seed, *what)


@dataclass(frozen=True)
class Source:
    """A kind of row."""

    kind: ClassVar[str] = ""

    def open(self, place: Place) -> Rows:
        """Rows at a place; what cannot be written there is refused now."""
        raise NotImplementedError

    def learned(self, seed: int, count: int) -> Iterator[str]:
        """Text of the training split for a tokenizer to learn from, about `count` rows of it."""
        raise NotImplementedError

    def content(self) -> str:
        """Digest of what was read from elsewhere; empty where all is drawn."""
        return ""


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

    def open(self, place: Place) -> Rows:
        if self.chat and place.vocabulary.roles is None:
            raise SpecError("the tokenizer has no <|user|> and <|answer|> tokens: say chat = 0")
        return partial(self._row, place, self.world(place.split, place.seed))

    def _row(self, place: Place, world: World, index: int) -> Example:
        draw = place.draw(self.kind, index)
        chat, wish = draw.chance(self.chat), draw.word()
        shortest = []
        for attempt in range(_TRIES):
            item = world[index + attempt * _ANOTHER]
            answer = place.vocabulary.ids(" " + item.answers[0])
            prompt = _fit_prompt(item, place, chat, len(answer) + 1, draw)
            free = place.length - len(prompt) - len(answer)
            if free >= 1:
                ends = max(1, min(free, self.room - len(answer)))
                return place.answered(prompt, answer, 1 + (wish * ends >> 64), self.kind)
            shortest.append(place.length - free + 1)
        raise SpecError(
            f"questions of {self.hops} hops do not fit into length {place.length}: "
            f"the shortest of {_TRIES} takes {min(shortest)}; raise length, or lower extra"
        )

    def learned(self, seed: int, count: int) -> Iterator[str]:
        world = self.world("train", seed)
        for index in range(count):
            item = world[index]
            yield from fragments(f"{item.prompt()} {item.answers[0]}")


@dataclass(frozen=True)
class Worldly(Source):
    """Rows from a world of one-hop items; its fields are refused when the source is made."""

    def __post_init__(self) -> None:
        self._world("train", 0)

    def open(self, place: Place) -> Rows:
        return partial(self._row, place, self._world(place.split, place.seed))

    def _world(self, split: str, seed: int) -> World:
        raise NotImplementedError

    def _row(self, place: Place, world: World, index: int) -> Example:
        """Tellings of one item after another, cut to the length."""
        ids: list[int] = []
        more = index
        while len(ids) < place.length:
            ids += place.vocabulary.ids("".join(self._told(world, more)))
            more += _ANOTHER
        return place.plain(ids, self.kind)

    def _told(self, world: World, index: int) -> Iterator[str]:
        """What a row or a tokenizer reads of an item."""
        raise NotImplementedError

    def learned(self, seed: int, count: int) -> Iterator[str]:
        world = self._world("train", seed)
        for index in range(count):
            for text in self._told(world, index):
                yield from fragments(text)


@dataclass(frozen=True)
class Passages(Worldly):
    """Passages one after another, without questions; cut to the length."""

    extra: int = 3
    filler: float = 0.25
    kind: ClassVar[str] = "passages"

    def _world(self, split: str, seed: int) -> World:
        return World(split, 1, seed, Distractors(random=3), extra=self.extra, filler=self.filler)

    def _told(self, world: World, index: int) -> Iterator[str]:
        return (f"{passage.text}\n" for passage in world[index].passages)


@dataclass(frozen=True)
class Quiz(Worldly):
    """One passage and a question for each of its facts; every answer is scored.

    An answer of one question is a few tokens of a row: here many names are asked back.
    """

    extra: int = 3
    reverse: float = 0.25
    filler: float = 0.25
    kind: ClassVar[str] = "quiz"

    def _world(self, split: str, seed: int) -> World:
        return World(split, 1, seed, extra=self.extra, reverse=self.reverse, filler=self.filler)

    def _row(self, place: Place, world: World, index: int) -> Example:
        vocabulary = place.vocabulary
        for attempt in range(_TRIES):
            told, asked = world.quiz(index + attempt * _ANOTHER)
            ids = vocabulary.start + vocabulary.ids(f"Passage: {told}")
            scored = [False] * len(ids)
            for question, answer in asked:
                prompt = vocabulary.ids(f"\nQuestion: {question}\nAnswer:")
                given = [*vocabulary.ids(f" {answer}"), vocabulary.end]
                if len(ids) + len(prompt) + len(given) > place.length:
                    break  # the questions that fit
                ids += prompt + given
                scored += [False] * len(prompt) + [True] * len(given)
            if any(scored):
                return Example(np.array(ids, dtype=np.int32), np.array(scored), self.kind)
        raise SpecError(f"no passage with a question fits into length {place.length}: raise length")

    def _told(self, world: World, index: int) -> Iterator[str]:
        told, asked = world.quiz(index)
        yield f"Passage: {told}"
        yield from (f"\nQuestion: {question}\nAnswer: {answer}" for question, answer in asked)


@dataclass(frozen=True)
class Retold(Worldly):
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

    def _told(self, world: World, index: int) -> Iterator[str]:
        yield "".join(f"Passage: {text}\n" for text in world.retold(index, self.times))


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

    def open(self, place: Place) -> Rows:
        return partial(self._row, place, self._chain())

    def _row(self, place: Place, chain: Chain, index: int) -> Example:
        number = index + SPLITS.index(place.split) * _ANOTHER
        words = chain.words(place.seed, number, place.length)  # a word is a token or more
        return place.plain(place.vocabulary.ids(" " + " ".join(words)), self.kind)

    def learned(self, seed: int, count: int) -> Iterator[str]:
        chain = self._chain()
        return (" " + " ".join(chain.words(seed, index, 100)) for index in range(count))


@dataclass(frozen=True)
class Reading(Source):
    """Text that exists already: running text, of which a row is any window, or prompts with
    answers, a row each."""

    @cached_property
    def texts(self) -> Texts:
        """What there is to read."""
        raise NotImplementedError

    def content(self) -> str:
        return self.texts.digest

    def learned(self, seed: int, count: int) -> Iterator[str]:
        some = self.texts.of_split("train")
        yield from some.pieces
        yield from (text for pair in some.pairs for text in (pair.prompt, " " + pair.answer))

    def open(self, place: Place) -> Rows:
        some, vocabulary = self.texts.of_split(place.split), place.vocabulary
        if some.pairs:
            return partial(
                self._pair, place, [_encode_pair(p, place, some.source) for p in some.pairs]
            )
        ids = (i for piece in some.pieces for i in (*vocabulary.ids(piece), vocabulary.end))
        return partial(self._window, place, np.fromiter(ids, dtype=np.int32))

    def _pair(self, place: Place, pairs: list[tuple[list[int], list[int]]], index: int) -> Example:
        prompt, answer = place.draw(self.kind, index).pick(pairs)
        return place.answered(prompt, answer, 1, self.kind)

    def _window(self, place: Place, stream: np.ndarray, index: int) -> Example:
        size = place.length - len(place.vocabulary.start)
        begin = place.draw(self.kind, index).below(max(1, len(stream) - size + 1))
        return place.plain(stream[begin : begin + size].tolist(), self.kind)


@dataclass(frozen=True)
class Prose(Reading):
    """English prose: the language reference that CPython carries (PSF licence)."""

    kind: ClassVar[str] = "prose"

    @cached_property
    def texts(self) -> Texts:
        return python_prose()


@dataclass(frozen=True)
class File(Reading):
    """A .txt or .jsonl of the user's."""

    path: str = ""
    kind: ClassVar[str] = "file"

    def __post_init__(self) -> None:
        if not self.path:
            raise SpecError("a file needs a path: say path = 'texts.jsonl'")

    @cached_property
    def texts(self) -> Texts:
        return read_texts(self.path)


def _fit_prompt(item: Item, place: Place, chat: bool, after: int, draw: Draw) -> list[int]:
    """Ids of the prompt with some distractors, few enough for `after` more tokens to fit."""
    golds = [at for at, passage in enumerate(item.passages) if passage.gold]
    others = draw.shuffled([at for at, passage in enumerate(item.passages) if not passage.gold])
    kept = draw.below(len(others) + 1)
    while True:
        prompt = _encode_prompt(
            item.arranged(sorted(golds + others[:kept])), place.vocabulary, chat
        )
        if not kept or len(prompt) + after <= place.length:
            return prompt
        kept -= 1


def _encode_prompt(item: Item, vocabulary: Vocabulary, chat: bool) -> list[int]:
    """The prompt as a model is given it, as text or as the one message of a chat."""
    if not chat or vocabulary.roles is None:
        return vocabulary.start + vocabulary.ids(item.prompt())
    user, answer = vocabulary.roles
    told = vocabulary.ids(item.message())
    return [*vocabulary.start, user, *told, vocabulary.end, answer]


def _encode_pair(pair: Pair, place: Place, source: str) -> tuple[list[int], list[int]]:
    """Ids of a prompt and of its answer, a space between them."""
    vocabulary = place.vocabulary
    apart = pair.prompt[-1].isspace() or pair.answer[0].isspace()
    prompt = vocabulary.start + vocabulary.ids(pair.prompt)
    answer = vocabulary.ids(pair.answer if apart else f" {pair.answer}")
    if (needs := len(prompt) + len(answer) + 1) > place.length:
        raise SpecError(
            f"{source}, line {pair.line}: prompt and answer take {needs} tokens "
            f"and length is {place.length}: shorten them, or raise length"
        )
    return prompt, answer
