"""One question with its answers and passages, as every task has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anchorwatch.errors import SpecError

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
        found, at, others = {}, 0, 0
        golds = sum(passage.gold for passage in self.passages)
        for passage in self.passages:
            at += len("Passage: ")
            if passage.gold:
                name = "gold" if golds == 1 else f"gold {passage.hop}"
            else:
                others += 1
                name = f"distractor {others}"
            found[name] = at, at + len(passage.text)
            at += len(passage.text) + 1
        at += len("Question: ")
        found["question"] = at, at + len(self.question)
        return found

    def arranged(self, order: Iterable[int]) -> Item:
        """The item with these of its passages, in this order."""
        places = list(order)
        if len(set(places)) < len(places) or not set(places) <= set(range(len(self.passages))):
            raise SpecError(
                f"order={places} does not arrange {len(self.passages)} passages: "
                f"name places from 0 to {len(self.passages) - 1}, each at most once"
            )
        return dataclasses.replace(self, passages=tuple(self.passages[place] for place in places))

    def keeping(self, *kinds: str) -> Item:
        """The item with its passages of these kinds; without kinds, the closed book."""
        for kind in kinds:
            if kind not in PASSAGE_KINDS:
                known = ", ".join(PASSAGE_KINDS)
                raise SpecError(f"no passage is of the kind {kind!r}: expected {known}")
        places = (at for at, passage in enumerate(self.passages) if passage.kind in kinds)
        return self.arranged(places)

    @property
    def rivals(self) -> tuple[str, ...]:
        """Names in the passages that would answer by their kind alone: the guesser's null."""
        return tuple(dict.fromkeys(name for p in self.passages for name in p.rivals))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a line of JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Item:
        """What `as_dict` gave, also after JSON has made its tuples lists."""
        passages = tuple(
            Passage(**{**passage, "rivals": tuple(passage["rivals"])})
            for passage in said["passages"]
        )
        metadata = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in said["metadata"].items()
        }
        return cls(said["question"], tuple(said["answers"]), passages, metadata)
