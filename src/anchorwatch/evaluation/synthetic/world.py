"""Question items, and the made-up worlds that they are drawn from.

An `Item` is a question with its answers and passages, as every task has it. A `World` draws names
and facts for every item again, so that the answer can only come from the passages. Item i is a
function of the world and of i, and its question and gold passages do not depend on its distractors:
`gold + 1` and `gold + 4` ask the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from anchorwatch import renamed_method
from anchorwatch.errors import SpecError
from anchorwatch.evaluation.synthetic import names, relations
from anchorwatch.evaluation.synthetic.draws import Draw
from anchorwatch.evaluation.synthetic.relations import (
    Fact,
    Relation,
    fill_wording,
    name_in_sentence,
    write_passage,
)

PASSAGE_KINDS = ("gold", "random", "hard", "counterfactual")
NO_HOP = -1


@dataclass(frozen=True)
class Passage:
    """One text of the context."""

    text: str
    gold: bool
    """Whether the answer follows from it, with the other gold passages."""
    hop: int = NO_HOP
    """1 or 2 for evidence, -1 for the rest."""
    kind: str = "gold"
    """gold; or a distractor: random, hard (same relation, another subject) or counterfactual (same
    subject and relation, another object)."""
    rivals: tuple[str, ...] = ()
    """Names in it of the answer's kind that are not the answer."""


def region_names(passages: Sequence[Passage]) -> list[str]:
    """A name for each passage: its evidence by hop where hops differ, else by order."""
    hops = [passage.hop for passage in passages if passage.gold]
    apart = len(set(hops)) == len(hops)
    names, golds, others = [], 0, 0
    for passage in passages:
        if passage.gold:
            golds += 1
            names.append("gold" if len(hops) == 1 else f"gold {passage.hop if apart else golds}")
        else:
            others += 1
            names.append(f"distractor {others}")
    return names


@dataclass(frozen=True)
class Item:
    """A question, what answers it, and what there is to read."""

    question: str
    answers: tuple[str, ...]
    passages: tuple[Passage, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Plain values that JSON can hold."""

    def prompt(self) -> str:
        """What a model is given; without passages, the closed book."""
        return self.message() + "\nAnswer:"

    def message(self) -> str:
        """The prompt as one message of a chat, whose template asks for the answer."""
        context = "".join(f"Passage: {passage.text}\n" for passage in self.passages)
        return f"{context}Question: {self.question}"

    def regions(self) -> dict[str, tuple[int, int]]:
        """Parts of the prompt in characters, as `aw.run(..., regions=)` takes them.

        `gold` (of two: `gold 1` and `gold 2`, by hop), `distractor 1` and so on as they stand,
        `question`.
        """
        spans, begin = {}, 0
        for name, passage in zip(region_names(self.passages), self.passages, strict=True):
            begin += len("Passage: ")
            spans[name] = begin, begin + len(passage.text)
            begin += len(passage.text) + 1
        begin += len("Question: ")
        spans["question"] = begin, begin + len(self.question)
        return spans

    def arrange(self, order: Iterable[int]) -> Item:
        """The item with these of its passages, in this order."""
        places = list(order)
        if len(set(places)) < len(places) or not set(places) <= set(range(len(self.passages))):
            raise SpecError(
                f"order={places} does not arrange {len(self.passages)} passages: "
                f"name places from 0 to {len(self.passages) - 1}, each at most once"
            )
        return dataclasses.replace(self, passages=tuple(self.passages[index] for index in places))

    def keep(self, *kinds: str) -> Item:
        """The item with its passages of these kinds; without kinds, the closed book."""
        for kind in kinds:
            if kind not in PASSAGE_KINDS:
                known = ", ".join(PASSAGE_KINDS)
                raise SpecError(f"no passage is of the kind {kind!r}: expected {known}")
        places = (index for index, passage in enumerate(self.passages) if passage.kind in kinds)
        return self.arrange(places)

    arranged = renamed_method("arranged", "arrange")
    keeping = renamed_method("keeping", "keep")

    @property
    def rivals(self) -> tuple[str, ...]:
        """Names in the passages that would answer by their kind alone: the guesser's null."""
        return tuple(dict.fromkeys(name for p in self.passages for name in p.rivals))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a line of JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Item:
        """What `as_dict` gave, also after JSON has made its tuples lists."""
        passages = tuple(
            Passage(**{**passage, "rivals": tuple(passage["rivals"])})
            for passage in fields["passages"]
        )
        metadata = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in fields["metadata"].items()
        }
        return cls(fields["question"], tuple(fields["answers"]), passages, metadata)


_MADE = frozenset({"split", "hops", "entities"})
"""What the metadata of an item have whose names a world drew."""


def guesser_chance(item: Item) -> float:
    """How often a guesser is right who picks among the passages' names of the answer's kind.

    Without passages among all names of the split; NaN where nobody knows the names, as of a file.
    """
    made = item.metadata.keys() >= _MADE
    if not item.passages:
        return _closed_chance(item.metadata["split"], item.metadata["hops"]) if made else math.nan
    if not made and not item.rivals:
        return math.nan
    last = item.metadata["hops"] if made else None
    answered = any(passage.gold and last in (None, passage.hop) for passage in item.passages)
    return 1 / (1 + len(item.rivals)) if answered else 0.0


@cache
def _closed_chance(split: str, hops: int) -> float:
    """Of a world's items without their passages, as the made tasks draw them."""
    return World(split, hops=hops).closed_book_chance()


_SUBJECTS = ("person", "town", "land", "book", "ship")
_ALIKE = 0.5
"""Share of the hard distractors about people whose name is like the right one's."""
_OWN = 0.5
"""Share of the two-hop items whose first subject has the second relation itself, where it can."""


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


@dataclass(frozen=True)
class Distractors:
    """How many passages without the answer stand beside the gold ones."""

    random: int = 0
    """About anything else."""
    hard: int = 0
    """The asked relation of another subject, perhaps of a similar name."""
    counterfactual: int = 0
    """The asked subject and relation with another object; `counter_answers` says which."""

    def __post_init__(self) -> None:
        for kind, count in vars(self).items():
            if not _is_count(count):
                raise SpecError(
                    f"distractors: {kind}={count!r} is no number of passages, 0 or more"
                )


@dataclass(frozen=True)
class QuestionFacts:
    """What is asked, and the facts that answer it."""

    question: str
    wordings: tuple[str, ...]
    answer: str
    kind: str
    """Of the answer."""
    given: str
    """The name in the question."""
    entities: tuple[str, ...]
    """Subject, and the objects in the order of the hops."""
    chain: tuple[Relation, ...]
    reverse: bool
    golds: tuple[tuple[Fact, ...], ...]
    """The facts of each gold passage; the first of each is the evidence."""

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name that a distractor may not use."""
        return frozenset(
            name for facts in self.golds for f in facts for name in (f.subject, f.object)
        )


@dataclass(frozen=True)
class World:
    """How question items are drawn; `world[i]` is one."""

    split: str = "train"
    hops: int = 1
    seed: int = 0
    distractors: Distractors = Distractors()
    extra: int = 2
    """At most so many facts beside the one that matters, in each passage."""
    reverse: float = 0.25
    """Share of the one-hop questions that give the object and ask for the subject."""
    filler: float = 0.25
    """Share of the passages with a sentence that says nothing."""
    relations: tuple[str, ...] = ()
    """What may be asked; everything for none."""

    def __post_init__(self) -> None:
        names.require_split(self.split)
        if self.hops not in (1, 2) or isinstance(self.hops, bool):
            raise SpecError(f"hops={self.hops!r}: a question has 1 hop or 2")
        for what in ("seed", "extra"):
            if not _is_count(getattr(self, what)):
                raise SpecError(
                    f"{what}={getattr(self, what)!r}: expected a whole number, 0 or more"
                )
        for what in ("reverse", "filler"):
            if not 0 <= getattr(self, what) <= 1:
                raise SpecError(f"{what}={getattr(self, what)!r} is a share: expected 0 to 1")
        if not self.chains:
            some = "relations=('mentor', 'birthplace')"
            raise SpecError(f"no two of {self.relations} make two hops: say for example {some}")

    @cached_property
    def chains(self) -> tuple[tuple[Relation, ...], ...]:
        """The relations, or pairs of relations, that can be asked for."""
        some = relations.relations_by_name(self.relations)
        if self.hops == 1:
            return tuple((relation,) for relation in some)
        return tuple((a, b) for a in some for b in some if a.object == b.subject)

    def __getitem__(self, index: int) -> Item:
        if not _is_count(index):
            raise SpecError(f"items are counted from 0: there is no item {index!r}")
        core = self._draw_question(self._draw(index, "core"))
        counter: list[str] = []
        passages: list[tuple[int, Passage]] = []  # with a number each, which orders them
        for hop, facts in enumerate(core.golds, start=1):
            draw = self._draw(index, "gold", hop)
            passages.append(
                (draw.word(), _write_passage(facts, core, draw, self.filler, "gold", hop))
            )
        for kind, count in vars(self.distractors).items():
            for which in range(count):
                draw = self._draw(index, kind, which)
                order, facts = draw.word(), self._draw_distractor(kind, which, core, draw)
                passages.append((order, _write_passage(facts, core, draw, self.filler, kind)))
                if kind == "counterfactual":
                    counter.append(facts[0].subject if core.reverse else facts[0].object)
        shown = tuple(text for _, text in sorted(passages, key=lambda numbered: numbered[0]))
        metadata = {
            "relations": tuple(relation.name for relation in core.chain),
            "hops": self.hops,
            "reverse": core.reverse,
            "entities": core.entities,
            "split": self.split,
            "seed": self.seed,
            "index": index,
            "paraphrases": core.wordings,
            "counter_answers": tuple(counter),
        }
        return Item(core.question, (core.answer,), shown, metadata)

    def retold(self, index: int, times: int = 2) -> tuple[str, ...]:
        """The first gold passage of an item, told so many times in other words and order."""
        facts = self._draw_question(self._draw(index, "core")).golds[0]
        draws = (self._draw(index, "retold", again) for again in range(times))
        return tuple(write_passage(facts, draw, self.filler) for draw in draws)

    def quiz(self, index: int) -> tuple[str, tuple[tuple[str, str], ...]]:
        """The first gold passage of an item, and a question with its answer for each fact in it."""
        draw = self._draw(index, "quiz")
        facts = self._draw_question(self._draw(index, "core")).golds[0]
        text = write_passage(facts, draw, self.filler)
        questions = []
        for fact in draw.shuffle(facts):
            reverse = draw.chance(self.reverse)
            name, answer = (fact.object, fact.subject) if reverse else (fact.subject, fact.object)
            questions.append((draw.pick(_list_wordings((fact.relation,), name, reverse)), answer))
        return text, tuple(questions)

    def closed_book_chance(self) -> float:
        """The best guess without the passages, by one who knows every name of the split."""
        total = 0.0
        for chain in self.chains:
            forward = names.likeliest(chain[-1].object, self.split)
            back = names.likeliest(chain[0].subject, self.split)
            share = self.reverse if self.hops == 1 else 0.0
            total += (1 - share) * forward + share * back
        return total / len(self.chains)

    def _draw(self, index: int, *what: str | int) -> Draw:
        return Draw("world", self.split, self.hops, self.seed, index, *what)

    def _draw_question(self, draw: Draw) -> QuestionFacts:
        chain = draw.pick(self.chains)
        reverse = self.hops == 1 and draw.chance(self.reverse)
        taken: set[str] = set()
        entities = [_draw_fresh_name(chain[0].subject, self.split, draw, taken)]
        entities += [
            _draw_fresh_name(relation.object, self.split, draw, taken) for relation in chain
        ]
        golds = []
        for hop, relation in enumerate(chain):
            facts = [Fact(entities[hop], relation, entities[hop + 1])]
            own = hop == 0 and self.hops == 2 and chain[1].subject == chain[0].subject
            if own and chain[1] != chain[0] and draw.chance(_OWN):
                value = _draw_fresh_name(chain[1].object, self.split, draw, taken)
                facts.append(Fact(entities[0], chain[1], value))
            golds.append(tuple(facts + self._draw_extras(facts, draw, taken)))
        answer, given = (entities[0], entities[-1]) if reverse else (entities[-1], entities[0])
        wordings = _list_wordings(chain, given, reverse)
        return QuestionFacts(
            question=draw.pick(wordings),
            wordings=wordings,
            answer=answer,
            kind=chain[0].subject if reverse else chain[-1].object,
            given=given,
            entities=tuple(entities),
            chain=chain,
            reverse=reverse,
            golds=tuple(golds),
        )

    def _draw_extras(self, facts: Sequence[Fact], draw: Draw, taken: set[str]) -> list[Fact]:
        """Other facts of the same subject."""
        used = {fact.relation for fact in facts}
        subject = facts[0].subject
        others = [r for r in relations.of_kind(facts[0].relation.subject) if r not in used]
        chosen = draw.shuffle(others)[: draw.below(self.extra + 1)]
        return [
            Fact(subject, r, _draw_fresh_name(r.object, self.split, draw, taken)) for r in chosen
        ]

    def _draw_distractor(
        self, kind: str, which: int, core: QuestionFacts, draw: Draw
    ) -> tuple[Fact, ...]:
        """The facts of a distractor; the one that misleads comes first."""
        taken = set(core.names)
        if kind == "random":
            relation = draw.pick(relations.of_kind(draw.pick(_SUBJECTS)))
        else:  # the last hop misleads first, then the first one
            relation = core.chain[-1 - which % self.hops if kind == "hard" else -1]
        if kind == "counterfactual" and not core.reverse:
            other = _draw_fresh_name(relation.object, self.split, draw, taken)
            kept = [fact for fact in core.golds[-1][1:] if draw.chance(0.5)]
            return (Fact(core.golds[-1][0].subject, relation, other), *kept)
        like = ""
        if kind == "hard" and relation.subject == "person" and draw.chance(_ALIKE):
            like = core.golds[core.chain.index(relation)][0].subject
        subject = _draw_fresh_name(relation.subject, self.split, draw, taken, like)
        if kind == "counterfactual":
            first = Fact(subject, relation, core.given)
        else:
            first = Fact(
                subject, relation, _draw_fresh_name(relation.object, self.split, draw, taken)
            )
        return (first, *self._draw_extras([first], draw, taken))


def items(
    split: str = "train",
    hops: int = 1,
    n: int = 100,
    seed: int = 0,
    distractors: Distractors = Distractors(),  # noqa: B008 (a frozen value)
) -> Iterator[Item]:
    """The first n items of a world.

    >>> next(items("held-out", hops=2)).metadata["hops"]
    2
    """
    if not _is_count(n):
        raise SpecError(f"n={n!r} is no number of items: expected a whole number, 0 or more")
    world = World(split=split, hops=hops, seed=seed, distractors=distractors)
    return (world[index] for index in range(n))


def _draw_fresh_name(kind: str, split: str, draw: Draw, taken: set[str], like: str = "") -> str:
    """A name that nobody has yet; from now on it is taken."""
    tries = 8  # there may be few alike; of all others there are enough
    while (name := names.draw_name(kind, split, draw, like if tries > 0 else "")) in taken:
        tries -= 1
    taken.add(name)
    return name


def _list_wordings(chain: tuple[Relation, ...], given: str, reverse: bool) -> tuple[str, ...]:
    """Every way to ask for the same."""
    last = chain[-1]
    if reverse:
        name = name_in_sentence(last.object, given)
        return tuple(fill_wording(wording, "", name) for wording in last.reverse)
    subjects: tuple[str, ...] = (name_in_sentence(chain[0].subject, given),)
    if len(chain) == 2:
        subjects = tuple(phrase.replace("{s}", subjects[0]) for phrase in chain[0].phrases)
    return tuple(fill_wording(wording, s) for s in subjects for wording in last.questions)


def _write_passage(
    facts: tuple[Fact, ...],
    core: QuestionFacts,
    draw: Draw,
    filler: float,
    kind: str,
    hop: int = NO_HOP,
) -> Passage:
    """The facts as a passage, with the names in it that a guesser might take for the answer."""
    seen = [(f.relation.subject, f.subject) for f in facts[:1]]
    seen += [(f.relation.object, f.object) for f in facts]
    known = {core.answer, core.given}
    rivals = tuple(name for of, name in seen if of == core.kind and name not in known)
    return Passage(write_passage(facts, draw, filler), kind == "gold", hop, kind, rivals)
