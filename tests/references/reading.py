"""A reader that knows grammar and nothing else: it answers items from the text of their passages.

It takes passages apart again by the wordings of the relations, so that what an item says of itself
(its answer, that there is one, who its rivals are) can be held against what stands in it.
"""

import re

from anchorwatch.evaluation.synthetic.relations import RELATIONS

NAME = r"[A-Z][a-z]+"
TOWN = r"(?:wick|stead|haven|ford|ness|holm)"
LAND = r"(?:land|mark|shire)"
SHAPES = {
    "person": rf"{NAME}(?: {NAME})?",
    "town": rf"[A-Z][a-z]+{TOWN}",
    "land": rf"[A-Z][a-z]+{LAND}",
    "book": rf"{NAME} {NAME}",
    "ship": rf"[Tt]he {NAME} {NAME}",
    "trade": "[a-z]+ [a-z]+",
    "year": r"\d{4}",
}
PRONOUNS = "He|She|It|he|she|it"


def pattern(wording, subject, object_):
    text = re.escape(wording).replace(r"\{s\}", f"(?P<s>{subject})")
    return re.compile(text.replace(r"\{o\}", f"(?P<o>{object_})"))


STATEMENTS = [
    (relation, pattern(wording, f"{SHAPES[relation.subject]}|{PRONOUNS}", SHAPES[relation.object]))
    for relation in RELATIONS.values()
    for wording in relation.statements
]


def bare(name):
    return re.sub(r"^[Tt]he (?=[A-Z])", "", name)


def triples(passage):
    """{(subject, relation, object)} of one passage's text."""
    card = re.fullmatch(r"([A-Z][A-Za-z ]+)\. ([a-z ]+: [^.]+)\.", passage)
    if card:
        said = [entry.split(": ") for entry in card[2].split("; ")]
        return {(card[1], *_labelled(card[1], label, value)) for label, value in said}
    found, subject = set(), None
    for sentence in re.split(r"(?<=\.) ", passage):
        for relation, shape in STATEMENTS:
            if match := shape.fullmatch(sentence):
                if not re.fullmatch(PRONOUNS, match["s"]):
                    subject = bare(match["s"])
                found.add((subject, relation.name, bare(match["o"])))
    return found


def _labelled(subject, label, value):
    kinds = {
        relation.name
        for relation in RELATIONS.values()
        if relation.label == label
        and re.fullmatch(SHAPES[relation.object].removeprefix("[Tt]he "), value)
        and re.fullmatch(SHAPES[relation.subject].removeprefix("[Tt]he "), subject)
    }
    assert len(kinds) == 1, (subject, label, value, kinds)
    return kinds.pop(), value


def answers(question, facts):
    """Every answer to a question that the facts allow."""
    found = set()
    for relation in RELATIONS.values():
        for wording in relation.questions:
            if match := pattern(wording, ".+", "").fullmatch(question):
                meant = _meant(match["s"], facts)
                found |= {o for s, r, o in facts if r == relation.name and s in meant}
        for wording in relation.reverse:
            if match := pattern(wording, "", ".+").fullmatch(question):
                found |= {s for s, r, o in facts if r == relation.name and o == bare(match["o"])}
    return found


def _meant(words, facts):
    """The names that words stand for: a name, or a phrase about one."""
    found = {bare(words)}
    for relation in RELATIONS.values():
        for phrase in relation.phrases:
            if match := pattern(phrase, ".+", "").fullmatch(words[0].lower() + words[1:]):
                found |= {o for s, r, o in facts if r == relation.name and s == bare(match["s"])}
    return found
