"""Facts and the passages that say them: varied wording, order and layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anchorwatch.evaluation.synthetic.draws import Draw
from anchorwatch.evaluation.synthetic.relations import FILLERS, Relation

_CARDS, _PRONOUNS = 0.2, 0.5  # shares of passages that are cards, of later sentences with a pronoun


@dataclass(frozen=True)
class Fact:
    """One relation that holds between two names."""

    subject: str
    relation: Relation
    object: str


def name_in_sentence(kind: str, name: str) -> str:
    """A name as it stands in a sentence: ships have an article."""
    return f"the {name}" if kind == "ship" else name


def sentence(wording: str, subject: str, object_: str = "") -> str:
    """A wording with its names in place and a capital in front."""
    text = wording.replace("{s}", subject).replace("{o}", object_)
    return text[0].upper() + text[1:]


def passage(facts: Sequence[Fact], draw: Draw, filler: float) -> str:
    """A passage that says these facts, all of one subject, in any order.

    `filler` is the chance of a sentence that says nothing.
    """
    facts = draw.shuffled(facts)
    if draw.chance(_CARDS):
        return _card(facts)
    pronoun = _pronoun(facts[0])
    said: list[str] = []
    for fact in facts:
        relation = fact.relation
        wording = draw.pick(relation.statements)
        later = bool(said) and wording.startswith("{s}") and draw.chance(_PRONOUNS)
        subject = pronoun if later else name_in_sentence(relation.subject, fact.subject)
        said.append(sentence(wording, subject, name_in_sentence(relation.object, fact.object)))
    if draw.chance(filler):
        said.insert(1 + draw.below(len(said)), draw.pick(FILLERS))
    return " ".join(said)


def _card(facts: Sequence[Fact]) -> str:
    said = [f"{fact.relation.label}: {fact.object}" for fact in facts]
    return f"{facts[0].subject}. " + "; ".join(said) + "."


def _pronoun(fact: Fact) -> str:
    """The same for a person in every passage."""
    if fact.relation.subject != "person":
        return "it"
    return Draw("pronoun", fact.subject).pick(("he", "she"))
