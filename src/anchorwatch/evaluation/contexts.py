"""Contexts: what an item is shown with, as values with a name.

`closed` shows nothing, `open5` the first five passages as they stand (`open` all), `gold` the
evidence, `gold+4` the evidence somewhere among four random distractors (`gold+4hard`,
`gold+4counterfactual`), `gold@2/5` as the second of five, `irrelevant3/5` five of which three are
about something else, the others hard ones (`irrelevant1/3`: a random and a hard distractor).
Evidence of two hops is placed by `adjacent+4`, `far+4` (first and last), `reversed+4` and
`far-reversed+4` (second hop first). After a ~ stands what is done to it: `~shuffle` (`~shuffle2` is
another order), `~typos10` (a tenth of the words misspelt, never those of an answer), `~paraphrase`
(the question in other words), `~masks32` (so many masked positions after those of the answer).

Chance comes from the item and the seed alone, never from other items, and is shared by contexts:
the distractors of `gold+2` are among those of `gold+4`.

>>> context("gold+4hard~typos10")
Context('gold+4hard~typos10')
>>> context("gold@2/5").total
5
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from anchorwatch.errors import ItemError, SpecError
from anchorwatch.evaluation.scores import holds, normalise_text
from anchorwatch.evaluation.synthetic import Draw, Item, Passage
from anchorwatch.evaluation.synthetic.world import NO_HOP
from anchorwatch.evaluation.tasks import item_key

LONGEST_NUMBER = 9
"""Digits of a number of passages, typos or masks."""
LAYOUTS = ("adjacent", "far", "reversed", "far-reversed")
DISTRACTORS = ("random", "hard", "counterfactual")
_ORDER = ("closed", "open", "gold", "irrelevant", *LAYOUTS)
_KIND = r"(?P<kind>hard|counterfactual)?"
_BASES = (
    r"(?P<base>closed)",
    r"(?P<base>open|shuffle)(?P<total>\d+)?",
    rf"(?P<base>gold)(\+(?P<others>\d+){_KIND})?",
    rf"(?P<base>gold)@(?P<place>\d+)/(?P<total>\d+){_KIND}",
    r"(?P<base>irrelevant)(?P<others>\d+)/(?P<total>\d+)",
    rf"(?P<base>{'|'.join(sorted(LAYOUTS, key=len, reverse=True))})\+(?P<others>\d+){_KIND}",
)
_CHANGE = re.compile(
    r"(?P<paraphrase>paraphrase)|shuffle(?P<shuffle>\d*)|typos(?P<typos>\d+)|masks(?P<masks>\d+)"
)
_WORD = re.compile(r"[^\W\d_]{4,}")
_LETTERS = re.compile(r"[^\W_]+")
_FRAMES = (
    "Please answer this: {}",
    "Here is what I want to know. {}",
    "{} Please tell me.",
    "I have a question. {}",
)


@dataclass(frozen=True, repr=False)
class Context:
    """One way to show an item; `context(name)` makes it, `apply` shows the item so."""

    base: str
    total: int | None = None
    """Passages in all, where the base says so."""
    others: int = 0
    """Distractors beside the evidence; of `irrelevant`, how many are about something else."""
    place: int | None = None
    """Where the evidence stands, from 1."""
    kind: str = "random"
    shuffle: int = 0
    typos: int = 0
    """Misspelt words in a hundred."""
    paraphrase: bool = False
    masks: int = 0
    """Masked positions after those of the answer; a model without masks has none."""

    def __post_init__(self) -> None:
        if self.place is not None and not 1 <= self.place <= (self.total or 0):
            raise SpecError(
                f"gold@{self.place}/{self.total} is not there: places run from 1 to {self.total}"
            )
        if self.base == "irrelevant" and not 0 < self.others < (self.total or 0):
            raise SpecError(
                f"irrelevant{self.others}/{self.total} leaves no place for the evidence, or shows "
                f"none that is irrelevant: say irrelevant1/{max(self.total or 0, 2)}"
            )
        if self.base == "open" and self.total == 0:
            raise SpecError("open0 shows nothing: say closed")
        if self.typos > 100:
            raise SpecError(f"typos{self.typos} is more than all words: say typos100 at most")

    @property
    def name(self) -> str:
        """As it is asked for."""
        kind = "" if self.kind == "random" else self.kind
        name = self.base
        if self.place is not None:
            name = f"gold@{self.place}/{self.total}{kind}"
        elif self.base == "irrelevant":
            name += f"{self.others}/{self.total}"
        elif self.others or self.base in LAYOUTS:
            name += f"+{self.others}{kind}"
        elif self.total is not None:
            name += str(self.total)
        name += f"~shuffle{self.shuffle if self.shuffle > 1 else ''}" if self.shuffle else ""
        name += f"~typos{self.typos}" if self.typos else ""
        name += "~paraphrase" if self.paraphrase else ""
        return name + (f"~masks{self.masks}" if self.masks else "")

    @property
    def order(self) -> tuple[Any, ...]:
        """Where it stands among others: the bare ones first, then more of everything."""
        place_in_order = (
            _ORDER.index(self.base),
            self.total or 0,
            DISTRACTORS.index(self.kind),
            self.others,
        )
        changes = self.shuffle, self.typos, self.paraphrase, self.masks
        return (any(changes), *place_in_order, self.place or 0, *changes)

    @property
    def needs_pool(self) -> bool:
        """Whether it takes random distractors, which an item may have to borrow."""
        drawn = self.base == "irrelevant" or self.others > 0 or self.place is not None
        return drawn and self.kind == "random"

    def apply(self, item: Item, pool: Sequence[str] = (), seed: int = 0) -> Item:
        """The item with these passages and this question; ItemError says why it cannot be."""
        key = item_key(item)
        passages = self._choose_passages(item, _ItemDraws(key, seed), pool)
        if self.shuffle:
            passages = Draw("shuffle", seed, key, self.shuffle).shuffle(passages)
        question = _reword_question(item, key, seed) if self.paraphrase else item.question
        if self.typos:
            spared = _words_of(item.answers)
            question = _misspell_words(question, self.typos, spared, Draw("typos", seed, key, 0))
            passages = [
                dataclasses.replace(
                    passage,
                    text=_misspell_words(
                        passage.text, self.typos, spared, _typo_draw(seed, key, passage)
                    ),
                )
                for passage in passages
            ]
        return dataclasses.replace(item, question=question, passages=tuple(passages))

    def _choose_passages(
        self, item: Item, chance: _ItemDraws, pool: Sequence[str]
    ) -> list[Passage]:
        if self.base == "closed":
            return []
        if self.base == "open":
            return _first_passages(item, self.total)
        gold = gold_passages(item)
        if self.base in LAYOUTS:
            return self._lay_out(gold, chance.distractors(item, self.kind, self.others, pool))
        if self.place is not None:
            if len(gold) > 1:
                raise ItemError(
                    f"its evidence is {len(gold)} passages: adjacent+n and far+n place those"
                )
            distractors = chance.distractors(item, self.kind, (self.total or 1) - 1, pool)
            return [*distractors[: self.place - 1], *gold, *distractors[self.place - 1 :]]
        if self.base == "irrelevant":
            near = (self.total or 0) - self.others - len(gold)
            if near < 0:
                raise ItemError(f"its evidence is {len(gold)} passages, too many for {self.name}")
            distractors = chance.distractors(item, "hard", near, pool)
            return chance.mix_in(
                gold, distractors + chance.distractors(item, "random", self.others, pool)
            )
        return chance.mix_in(gold, chance.distractors(item, self.kind, self.others, pool))

    def _lay_out(self, gold: list[Passage], others: list[Passage]) -> list[Passage]:
        if len(gold) != 2:
            raise ItemError(f"its evidence is {len(gold)} passage, and {self.name} places two")
        first, last = reversed(gold) if "reversed" in self.base else gold
        if self.base.startswith("far"):
            return [first, *others, last]
        middle = len(others) // 2  # adjacent and far have the same mean place
        return [*others[:middle], first, last, *others[middle:]]

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Context({self.name!r})"


def context(name: str | Context) -> Context:
    """The context of that name."""
    if isinstance(name, Context):
        return name
    base, *changes = str(name).split("~")
    match_of_base = next((match for form in _BASES if (match := re.fullmatch(form, base))), None)
    if match_of_base is None:
        raise SpecError(f"no context is called {name!r}: expected {_EXAMPLES}")
    given = {key: value for key, value in match_of_base.groupdict().items() if value is not None}
    fields: dict[str, object] = {
        key: _parse_number(str(name), value) if value.isdigit() else value
        for key, value in given.items()
    }
    if fields["base"] == "shuffle":  # short for all that is open, in another order
        fields |= {"base": "open", "shuffle": 1}
    for change in changes:
        fields |= _parse_change(str(name), change)
    return Context(**fields)  # type: ignore[arg-type]


def contexts(names: str | Sequence[str | Context]) -> tuple[Context, ...]:
    """Several, each once: a list, or words with commas between them."""
    listed = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
    chosen = tuple(context(name) for name in listed if name != "")
    if not chosen:
        raise SpecError("no context is named: say contexts=['closed', 'gold']")
    if twice := [shown.name for index, shown in enumerate(chosen) if shown in chosen[:index]]:
        raise SpecError(f"the context {twice[0]} is named twice: name each once")
    return chosen


def gold_passages(item: Item) -> list[Passage]:
    """The first gold passage of each hop, in the order of hops."""
    by_hop: dict[int, Passage] = {}
    for passage in item.passages:
        if passage.gold:
            by_hop.setdefault(passage.hop, passage)
    if not by_hop:
        raise ItemError("none of its passages is gold")
    return [by_hop[hop] for hop in sorted(by_hop)]


_EXAMPLES = (
    "closed, open5, gold, gold+4, gold+4hard, gold@2/5, irrelevant3/5, adjacent+4, far+4, "
    "reversed+4, and after it ~shuffle, ~typos10, ~paraphrase or ~masks32"
)


@dataclass(frozen=True)
class _ItemDraws:
    """What is drawn for one item."""

    key: str
    seed: int

    def distractors(self, item: Item, kind: str, count: int, pool: Sequence[str]) -> list[Passage]:
        """So many passages without an answer: the item's own of that kind, then borrowed ones."""
        own = [passage for passage in item.passages if passage.kind == kind and not passage.gold]
        had = {passage.text for passage in item.passages}
        borrowed = [text for text in pool if text not in had] if kind == "random" else []
        far = [Passage(text, False, NO_HOP, "random") for text in borrowed]
        every = chain(self._order_by_text(own), self._order_by_text(far))
        chosen = list(
            islice((passage for passage in every if not holds(passage.text, item.answers)), count)
        )
        if len(chosen) < count:
            raise ItemError(f"it has {len(chosen)} {kind} distractors of the {count} needed")
        return chosen

    def _order_by_text(self, passages: Sequence[Passage]) -> Iterator[Passage]:
        """Each by its own text: an order that fewer distractors share with more."""
        key = ("order", self.seed, self.key)
        yield from sorted(passages, key=lambda passage: Draw(*key, passage.text).word())

    def mix_in(self, gold: list[Passage], others: list[Passage]) -> list[Passage]:
        """The evidence at any places among the others, hops in order."""
        total = len(gold) + len(others)
        draw = Draw("places", self.seed, self.key, total)
        places = sorted(draw.shuffle(range(total))[: len(gold)])
        mixed = list(others)
        for index, passage in zip(places, gold, strict=True):
            mixed.insert(index, passage)
        return mixed


def _first_passages(item: Item, count: int | None) -> list[Passage]:
    if not item.passages:
        raise ItemError("it has no passages")
    if count is not None and len(item.passages) < count:
        raise ItemError(f"it has {len(item.passages)} passages of the {count} needed")
    return list(item.passages[:count])


def _parse_change(name: str, change: str) -> dict[str, object]:
    match = _CHANGE.fullmatch(change)
    if match is None:
        raise SpecError(f"{name}: ~{change} is unknown: expected {_EXAMPLES}")
    word, number = next(
        (key, value) for key, value in match.groupdict().items() if value is not None
    )
    return {word: True if word == "paraphrase" else _parse_number(name, number or "1")}


def _parse_number(name: str, digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise SpecError(
            f"{name:.40}: {digits[:12]}... has {len(digits)} digits, and {LONGEST_NUMBER} are the "
            f"most: expected {_EXAMPLES}"
        )
    return int(digits)


def _reword_question(item: Item, key: str, seed: int) -> str:
    """The question as its maker would also ask it, or inside another sentence."""
    draw = Draw("paraphrase", seed, key)
    others = [
        wording for wording in item.metadata.get("paraphrases", ()) if wording != item.question
    ]
    return draw.pick(others) if others else draw.pick(_FRAMES).format(item.question)


def _words_of(answers: Sequence[str]) -> list[str]:
    """Words of answers, parted by marks and with these dropped: O, Brien and obrien."""
    parted = (word for answer in answers for word in _LETTERS.findall(answer))
    return list(dict.fromkeys([*parted, *" ".join(map(normalise_text, answers)).split()]))


def _typo_draw(seed: int, key: str, passage: Passage) -> Draw:
    return Draw("typos", seed, key, passage.text)


def _misspell_words(text: str, percent: int, spared: list[str], draw: Draw) -> str:
    """A share of the longer words with two letters swapped, one lost or one doubled, inside."""

    def typo(match: re.Match[str]) -> str:
        word, hit, how = match[0], draw.below(100) < percent, draw.below(3)
        index = 1 + draw.below(len(word) - 2)
        if not hit or holds(word, spared):
            return word
        middle = (
            word[index + 1] + word[index],
            word[index + 1],
            word[index] * 2 + word[index + 1],
        )[how]
        return word[:index] + middle + word[index + 2 :]

    return _WORD.sub(typo, text)
