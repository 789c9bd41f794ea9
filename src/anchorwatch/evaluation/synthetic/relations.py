"""What can be true of a person, a town, a land, a book or a ship, and how it is told and asked.

In every wording {s} is the subject and {o} the object. A subject may be a phrase ("the mentor of
Tarbo"), which is how questions of two hops are made. A passage states some facts about one subject,
in varied wording, order and layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anchorwatch.errors import SpecError
from anchorwatch.evaluation.synthetic.draws import Draw


@dataclass(frozen=True)
class Relation:
    """One relation with its wordings."""

    name: str
    subject: str
    """Kind of the subject."""
    object: str
    """Kind of the object."""
    label: str
    """Its word on a card: `birthplace: Tarbowick`."""
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    """What is asked of the subject; the object answers."""
    reverse: tuple[str, ...]
    """What is asked of the object; the subject answers."""
    phrases: tuple[str, ...] = ()
    """The object named through the subject; none where nothing is known of the object."""


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


def _relation(head: str, statements: str, questions: str, reverse: str, phrases: str) -> Relation:
    name, subject, _, object_, label = head.split(maxsplit=4)
    wordings = _lines(statements), _lines(questions), _lines(reverse), _lines(phrases)
    return Relation(name, subject, object_, label, *wordings)


RELATIONS: dict[str, Relation] = {
    relation.name: relation
    for relation in (
        _relation(
            "birthplace person to town birthplace",
            """{s} was born in {o}.
            {s} came into the world in {o}.
            {s} is a native of {o}.
            {o} is the birthplace of {s}.
            It was in {o} that {s} was born.""",
            """Where was {s} born?
            In which town was {s} born?
            What is the birthplace of {s}?
            {s} is a native of which town?""",
            """Who was born in {o}?
            Whose birthplace is {o}?
            Who is a native of {o}?""",
            """the town where {s} was born
            the birthplace of {s}""",
        ),
        _relation(
            "home person to town home",
            """{s} lives in {o}.
            {s} has a house in {o}.
            {s} made a home in {o}.
            {o} is the home of {s}.
            The house of {s} stands in {o}.""",
            """Where does {s} live?
            In which town does {s} live?
            What is the home of {s}?
            {s} has a house in which town?""",
            """Who lives in {o}?
            Whose home is {o}?
            Who has a house in {o}?""",
            """the town where {s} lives
            the home of {s}""",
        ),
        _relation(
            "trade person to trade trade",
            """{s} works as a {o}.
            {s} is a {o} by trade.
            {s} earns a living as a {o}.
            The trade of {s} is that of a {o}.""",
            """What is the trade of {s}?
            What does {s} do for a living?
            What does {s} work as?
            By trade, what is {s}?""",
            """Who works as a {o}?
            Who is a {o} by trade?
            Whose trade is that of a {o}?""",
            "",
        ),
        _relation(
            "mentor person to person mentor",
            """{s} was taught by {o}.
            {s} learned everything from {o}.
            {s} was a pupil of {o}.
            {o} was the mentor of {s}.
            {o} taught {s}.""",
            """Who taught {s}?
            Who was the mentor of {s}?
            By whom was {s} taught?
            {s} was a pupil of whom?""",
            """Who was a pupil of {o}?
            Who was taught by {o}?
            Whose mentor was {o}?""",
            """the mentor of {s}
            the person who taught {s}""",
        ),
        _relation(
            "book person to book book",
            """{s} wrote {o}.
            {s} is the author of {o}.
            {s} spent years on {o}.
            {o} was written by {s}.
            {o} is a book by {s}.""",
            """Which book did {s} write?
            What did {s} write?
            What is the book by {s} called?
            {s} is the author of which book?""",
            """Who wrote {o}?
            Who is the author of {o}?
            By whom was {o} written?""",
            """the book by {s}
            the book that {s} wrote""",
        ),
        _relation(
            "birth_year person to year year of birth",
            """{s} was born in the year {o}.
            {s} was a child of the year {o}.
            {s} first saw the sun in {o}.
            The year {o} saw the birth of {s}.""",
            """In which year was {s} born?
            When was {s} born?
            What is the year of birth of {s}?""",
            """Who was born in the year {o}?
            Whose year of birth is {o}?
            Who was a child of the year {o}?""",
            "",
        ),
        _relation(
            "ship person to ship ship",
            """{s} sails on {o}.
            {s} serves aboard {o}.
            {s} went to sea with {o}.
            {o} has {s} among the crew.""",
            """Which ship does {s} sail on?
            On which ship does {s} serve?
            What is the ship of {s} called?
            {s} went to sea with which ship?""",
            """Who sails on {o}?
            Who serves aboard {o}?
            Who went to sea with {o}?""",
            """the ship that {s} sails on
            the ship of {s}""",
        ),
        _relation(
            "founded town to year founded",
            """{s} was founded in {o}.
            {s} dates from {o}.
            {s} has stood since {o}.
            The first stone of {s} was laid in {o}.""",
            """When was {s} founded?
            In which year was {s} founded?
            From which year does {s} date?
            Since when has {s} stood?""",
            """Which town was founded in {o}?
            Which town dates from {o}?
            Which town has stood since {o}?""",
            "",
        ),
        _relation(
            "founder town to person founder",
            """{s} was founded by {o}.
            {s} owes its walls to {o}.
            {o} founded {s}.
            {o} laid out the streets of {s}.""",
            """Who founded {s}?
            By whom was {s} founded?
            Who was the founder of {s}?
            {s} owes its walls to whom?""",
            """Which town did {o} found?
            Which town was founded by {o}?
            Which town owes its walls to {o}?""",
            """the founder of {s}
            the person who founded {s}""",
        ),
        _relation(
            "land town to land land",
            """{s} lies in {o}.
            {s} is a town in {o}.
            {s} belongs to {o}.
            One of the towns of {o} is {s}.""",
            """In which land does {s} lie?
            Which land does {s} belong to?
            Where does {s} lie?
            {s} is a town in which land?""",
            """Which town lies in {o}?
            Which town belongs to {o}?
            What is the name of a town in {o}?""",
            """the land where {s} lies
            the land that {s} belongs to""",
        ),
        _relation(
            "capital land to town capital",
            """{s} has its capital at {o}.
            {s} is governed from {o}.
            {o} is the capital of {s}.
            The capital of {s} is {o}.""",
            """What is the capital of {s}?
            From which town is {s} governed?
            Which town is the capital of {s}?
            {s} has its capital at which town?""",
            """Which land has its capital at {o}?
            Which land is governed from {o}?
            Of which land is {o} the capital?""",
            """the capital of {s}
            the town from which {s} is governed""",
        ),
        _relation(
            "ruler land to person ruler",
            """{s} is ruled by {o}.
            {s} obeys {o}.
            {o} rules {s}.
            {o} sits on the throne of {s}.""",
            """Who rules {s}?
            By whom is {s} ruled?
            Who is the ruler of {s}?
            {s} obeys whom?""",
            """Which land does {o} rule?
            Which land is ruled by {o}?
            Which land obeys {o}?""",
            """the ruler of {s}
            the person who rules {s}""",
        ),
        _relation(
            "setting book to town setting",
            """{s} is set in {o}.
            {s} tells of life in {o}.
            {s} begins and ends in {o}.
            The story of {s} takes place in {o}.""",
            """Where is {s} set?
            In which town is {s} set?
            {s} tells of life in which town?""",
            """Which book is set in {o}?
            Which book tells of life in {o}?
            Which book begins and ends in {o}?""",
            """the town where {s} is set
            the setting of {s}""",
        ),
        _relation(
            "printed book to year printed",
            """{s} was printed in {o}.
            {s} came out in {o}.
            {s} was first read in {o}.
            The year {o} saw the printing of {s}.""",
            """When was {s} printed?
            In which year was {s} printed?
            In which year did {s} come out?
            {s} was first read in which year?""",
            """Which book was printed in {o}?
            Which book came out in {o}?
            Which book was first read in {o}?""",
            "",
        ),
        _relation(
            "captain ship to person captain",
            """{s} is commanded by {o}.
            {s} sails under {o}.
            {o} is the captain of {s}.
            {o} commands {s}.""",
            """Who commands {s}?
            Who is the captain of {s}?
            By whom is {s} commanded?
            {s} sails under whom?""",
            """Which ship does {o} command?
            Which ship is commanded by {o}?
            Which ship sails under {o}?""",
            """the captain of {s}
            the person who commands {s}""",
        ),
        _relation(
            "shipyard ship to town shipyard",
            """{s} was built in {o}.
            {s} comes from the yards of {o}.
            {o} is where {s} was built.
            The keel of {s} was laid in {o}.""",
            """Where was {s} built?
            In which town was {s} built?
            From the yards of which town does {s} come?""",
            """Which ship was built in {o}?
            Which ship comes from the yards of {o}?""",
            """the town where {s} was built
            the shipyard of {s}""",
        ),
        _relation(
            "launched ship to year launched",
            """{s} was launched in {o}.
            {s} first took to the water in {o}.
            {s} has sailed since {o}.
            The year {o} saw the launch of {s}.""",
            """When was {s} launched?
            In which year was {s} launched?
            Since when has {s} sailed?""",
            """Which ship was launched in {o}?
            Which ship has sailed since {o}?""",
            "",
        ),
    )
}

FILLERS = _lines(
    """The winter was long that year.
    Little else is known.
    The weather there is mild.
    Many letters have been lost.
    Nobody asked why.
    The roads are better now.
    Old people still speak of it.
    The rest is told elsewhere.
    It rained for most of the spring.
    The markets were full.
    No picture has survived.
    Travellers seldom stop to look."""
)


def of_kind(kind: str) -> tuple[Relation, ...]:
    """The relations whose subject is of a kind."""
    return tuple(relation for relation in RELATIONS.values() if relation.subject == kind)


def relations_by_name(names: tuple[str, ...]) -> tuple[Relation, ...]:
    """The relations of these names; all of them for none."""
    for name in names:
        if name not in RELATIONS:
            raise SpecError(f"no relation is called {name!r}: expected {', '.join(RELATIONS)}")
    return tuple(RELATIONS[name] for name in names or RELATIONS)


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


def fill_wording(wording: str, subject: str, object_: str = "") -> str:
    """A wording with its names in place and a capital in front."""
    text = wording.replace("{s}", subject).replace("{o}", object_)
    return text[0].upper() + text[1:]


def write_passage(facts: Sequence[Fact], draw: Draw, filler: float) -> str:
    """A passage that says these facts, all of one subject, in any order.

    `filler` is the chance of a sentence that says nothing.
    """
    facts = draw.shuffle(facts)
    if draw.chance(_CARDS):
        return _write_card(facts)
    pronoun = _choose_pronoun(facts[0])
    sentences: list[str] = []
    for fact in facts:
        relation = fact.relation
        wording = draw.pick(relation.statements)
        later = bool(sentences) and wording.startswith("{s}") and draw.chance(_PRONOUNS)
        subject = pronoun if later else name_in_sentence(relation.subject, fact.subject)
        sentences.append(
            fill_wording(wording, subject, name_in_sentence(relation.object, fact.object))
        )
    if draw.chance(filler):
        sentences.insert(1 + draw.below(len(sentences)), draw.pick(FILLERS))
    return " ".join(sentences)


def _write_card(facts: Sequence[Fact]) -> str:
    entries = [f"{fact.relation.label}: {fact.object}" for fact in facts]
    return f"{facts[0].subject}. " + "; ".join(entries) + "."


def _choose_pronoun(fact: Fact) -> str:
    """The same for a person in every passage."""
    if fact.relation.subject != "person":
        return "it"
    return Draw("pronoun", fact.subject).pick(("he", "she"))
