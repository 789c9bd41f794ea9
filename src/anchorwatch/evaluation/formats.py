"""From a record's fields to an item: one function for each format, found by the fields themselves.

`knows` are the fields that a format reads, or leaves knowingly; whatever else a record holds is
said. Where no field marks the evidence, a passage is gold if it holds an answer as whole words;
`metadata["gold_by"]` says which it was.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from anchorwatch.errors import SpecError
from anchorwatch.evaluation.scores import holds
from anchorwatch.evaluation.synthetic import Item, Passage
from anchorwatch.evaluation.synthetic.item import NO_HOP, PASSAGE_KINDS

RETRIEVED = "hard"
"""What a file brings beside the gold was found for the question: a hard distractor."""
_QUESTIONS = ("input", "query", "question")
_ANSWERS = ("output", "answer", "answers", "golds", "possible_answers")
_TEXTS = ("text", "segment", "passage", "content", "contents")
_FLAGS = ("isgold", "is_gold", "gold", "is_supporting")
_PASSAGES = ("passages", "passage", "contexts", "context", "ctxs", "documents")
_KINDS_ARE = f"expected one of {', '.join(PASSAGE_KINDS)}"
_IDS = ("id", "_id", "qid", "question_id")
_OF_PASSAGE = frozenset(
    {*_TEXTS, *_FLAGS, "hop", "kind", "title", "hasanswer", "id", "docid", "pid", "score", "rank"}
    | {
        "sentences",
        "url",
        "headings",
        "start_char",
        "end_char",
        "original_retrieval_index",
        "wikipedia_id",
    }
)

_OF_ANSWER = ("answer", "text", "value", "aliases")
_LEFT_OF_ANSWER = frozenset({"answer_start", "answer_id", "meta"})
_LIST_LIKE = re.compile(r"\[[^\[\]]*\]|\[\s*['\"{].*\]|\{\s*['\"].*\}", re.DOTALL)
"""A cell that means a list or an object; "[Music] rises [it ends]" and "[[Oslo]]" are text."""
_SIDE_BY_SIDE = re.compile(r"(['\"])\s+(['\"])")
"""Texts without a comma, as numpy spells them: Python would join them into one."""


@dataclass(frozen=True)
class Format:
    """How records of one kind become items."""

    name: str
    knows: frozenset[str]
    turn: Callable[[Mapping[str, Any]], Item]


def detect(fields: Mapping[str, Any]) -> Format:
    """The format that these fields are written in."""
    if isinstance(fields.get("ctxs"), list):
        return FORMATS["lost-in-the-middle"]
    if "context" in fields and ("others" in fields or _columns(fields.get("answers"))):
        return FORMATS["squad"]
    if "supporting_facts" in fields and "context" in fields:
        return FORMATS["hotpot"]
    if isinstance(fields.get("passage"), list) or isinstance(fields.get("output"), list):
        return FORMATS["kilt"]
    if any(name in fields for name in _QUESTIONS):
        return FORMATS["plain"]
    raise SpecError(
        f"a record has {', '.join(sorted(map(str, fields))[:8])} and none of "
        f"{', '.join(_QUESTIONS)}: name the columns so, or say format= one of {', '.join(FORMATS)}"
    )


def unknown_fields(fields: Mapping[str, Any], known: Format) -> set[str]:
    """Names of fields, of the record, its passages or its answers, that nothing here reads."""
    found = {str(name) for name in fields if name not in known.knows}
    for name in (*_PASSAGES, *_ANSWERS):
        reads = _OF_PASSAGE if name in _PASSAGES else {*_OF_ANSWER, *_LEFT_OF_ANSWER}
        held = fields.get(name) if name in known.knows else None
        within = f"{name}[]" if isinstance(held, list) else name
        for one in held if isinstance(held, list) else [held]:
            if isinstance(one, Mapping):
                found |= {f"{within}.{key}" for key in one if key not in reads}
    return (
        found
        | _overridden_fields(fields, _QUESTIONS, known)
        | _overridden_fields(fields, _PASSAGES, known)
    )


def _overridden_fields(fields: Mapping[str, Any], names: Iterable[str], known: Format) -> set[str]:
    """Names that lose to one before them, which says something else."""
    first, *others = [one for one in names if one in known.knows and fields.get(one)] or [""]
    return {f"{one} beside {first}" for one in others if fields[one] != fields[first]}


def _kilt(fields: Mapping[str, Any]) -> Item:
    """KILT with passages, as in the Attention-Floating files: `passage[].segment`."""
    return _item("kilt", fields, _passages(fields.get("passage") or ()))


def _lost(fields: Mapping[str, Any]) -> Item:
    """Lost in the Middle: `ctxs[]` with `isgold`, or only `hasanswer`."""
    held = _passages(fields["ctxs"])
    if not any(one.flag is not None for one in held):
        held = [one.marked(one.has_answer) for one in held]
    return _item("lost-in-the-middle", fields, held)


def _squad(fields: Mapping[str, Any]) -> Item:
    """SQuAD: the paragraph is gold, the others of its article are hard distractors.

    Rows of the hub's tables know no article, and have no answer where there is none.
    """
    gold = _RawPassage(_text(fields.get("context"), "context"), flag=True)
    others = [_RawPassage(text, flag=False, kind="hard") for text in fields.get("others", ())]
    answers = _answers(fields)
    if fields.get("is_impossible") or (not answers and _columns(fields.get("answers"))):
        answers = ("",)  # the right answer is to say nothing
    return _item("squad", fields, [gold, *others], answers)


def _hotpot(fields: Mapping[str, Any]) -> Item:
    """HotpotQA and 2WikiMultihopQA, as released and as datasets of columns."""
    facts, context = fields["supporting_facts"], fields["context"]
    if isinstance(facts, Mapping):
        facts = list(zip(facts["title"], facts["sent_id"], strict=True))
    if isinstance(context, Mapping):
        body = context["sentences"] if "sentences" in context else context["content"]
        context = list(zip(context["title"], body, strict=True))
    gold = list(dict.fromkeys(str(title) for title, *_ in facts))
    answers = _answers(fields)
    found = []
    for title, sentences in context:
        text = _with_title(title, " ".join(str(one).strip() for one in sentences))
        order = gold.index(str(title)) + 1 if str(title) in gold else None
        found.append(_RawPassage(text, flag=order is not None, hop=order, kind="hard"))
    return _item("hotpot", fields, _last_hop_answers(found, answers), answers)


def _last_hop_answers(found: list[_RawPassage], answers: tuple[str, ...]) -> list[_RawPassage]:
    """Of two gold passages, the one that alone holds the answer is the second hop."""
    gold = [one for one in found if one.flag]
    ends = [one for one in gold if holds(one.text, answers)]
    if len(gold) != 2 or len(ends) != 1 or ends[0].hop == 2:
        return found
    return [one.at_hop(3 - one.hop) if one.flag and one.hop else one for one in found]


def _plain(fields: Mapping[str, Any]) -> Item:
    """A question, answers, and passages as texts or objects; cells of a table may hold JSON."""
    named = next((name for name in _PASSAGES if fields.get(name)), None)
    held = _parse_cell(fields[named]) if named else ()
    found = _passages([held] if isinstance(held, str | Mapping) else held)
    if len(found) == 1 and found[0].flag is None:
        found = [found[0].marked(True)]  # the text the question is about
    return _item("plain", fields, found)


@dataclass(frozen=True)
class _RawPassage:
    """A passage as a file has it; `flag` is None where nothing says whether it is gold."""

    text: str
    flag: bool | None = None
    hop: int | None = None
    kind: str = RETRIEVED
    has_answer: bool | None = None

    def marked(self, flag: bool | None) -> _RawPassage:
        return _RawPassage(self.text, flag, self.hop, self.kind, self.has_answer)

    def at_hop(self, hop: int) -> _RawPassage:
        return _RawPassage(self.text, self.flag, hop, self.kind, self.has_answer)


def _passages(held: Iterable[Any]) -> list[_RawPassage]:
    if not isinstance(held, list | tuple):
        raise SpecError(f"its passages are {type(held).__name__}, not a list")
    found = []
    for number, one in enumerate(held, start=1):
        if isinstance(one, str):
            found.append(_RawPassage(one))
            continue
        if not isinstance(one, Mapping):
            raise SpecError(f"passage {number} is {type(one).__name__}, not text or an object")
        named = next((name for name in _TEXTS if isinstance(one.get(name), str)), None)
        if named is None:
            raise SpecError(f"passage {number} has none of {', '.join(_TEXTS)} as text")
        flag = next((_flag(one[name]) for name in _FLAGS if one.get(name) is not None), None)
        flag = True if one.get("kind") == "gold" else flag
        has = None if one.get("hasanswer") is None else _flag(one["hasanswer"])
        kind, hop = str(one.get("kind") or RETRIEVED), one.get("hop")
        if kind not in PASSAGE_KINDS:
            raise SpecError(f"passage {number} is of the kind {kind!r:.20}: {_KINDS_ARE}")
        text = _with_title(one.get("title"), one[named])
        found.append(_RawPassage(text, flag, None if hop is None else int(hop), kind, has))
    return found


def _item(
    name: str,
    fields: Mapping[str, Any],
    found: list[_RawPassage],
    answers: tuple[str, ...] | None = None,
) -> Item:
    asked = next((fields[one] for one in _QUESTIONS if fields.get(one)), None)
    question = _text(asked, "question")
    answers = _answers(fields) if answers is None else answers
    if not answers:
        raise SpecError("has no answer")
    marked = any(one.flag is not None for one in found)
    if not marked:
        found = [one.marked(holds(one.text, answers)) for one in found]
    passages = tuple(
        Passage(one.text, True, one.hop or 1, "gold")
        if one.flag
        else Passage(one.text, False, NO_HOP, one.kind)
        for one in found
    )
    given = next((str(fields[one]) for one in _IDS if fields.get(one) is not None), "")
    said_by = ("flag" if marked else "answer") if found else "none"
    return Item(question, answers, passages, {"id": given, "format": name, "gold_by": said_by})


def _answers(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Every text of every answer field, each once, in its order."""
    held = [_parse_cell(fields[name]) for name in _ANSWERS if fields.get(name) is not None]
    return tuple(dict.fromkeys(_texts_in(held)))


def _columns(held: Any) -> bool:
    """Whether answers are columns, as the hub's tables of SQuAD have them."""
    return isinstance(held, Mapping) and {"text", "answer_start"} <= held.keys()


def _texts_in(held: Any) -> Iterable[str]:
    if held is None:
        return
    if isinstance(held, bool) or (isinstance(held, float) and not math.isfinite(held)):
        what = "write yes or no" if isinstance(held, bool) else "leave it out, or write it as text"
        raise SpecError(f"its answer is {held}, not text: {what}")
    if isinstance(held, float) and held.is_integer() and abs(held) < 2**53:
        held = int(held)  # a table that lacks a number elsewhere has made a year 1969.0
    if isinstance(held, str | int | float):
        if text := str(held).strip():
            yield text
    elif isinstance(held, Mapping):
        for name in _OF_ANSWER:
            yield from _texts_in(held.get(name))
    elif isinstance(held, list | tuple):
        for one in held:
            yield from _texts_in(one)
    else:
        raise SpecError(f"its answer is of type {type(held).__name__}, not text")


def _parse_cell(held: Any) -> Any:
    """A cell of a table that spells a list or an object, in JSON or in Python, as that."""
    if not isinstance(held, str) or not held.lstrip().startswith(("[", "{")):
        return held
    try:
        return json.loads(held, strict=False)  # a cell may break a line
    except (ValueError, RecursionError):
        if not _LIST_LIKE.fullmatch(held.strip()):
            return held
    try:
        found = ast.literal_eval(held.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        found = None
    if not isinstance(found, list | dict) or _SIDE_BY_SIDE.search(held):
        raise SpecError(f"{held!r:.40} looks like a list and is none: write it as JSON")
    return found


def _with_title(title: Any, text: str) -> str:
    """A passage under its title, unless it begins with it anyway."""
    named = str(title or "").strip()
    begins = text.startswith(named) and not text[len(named) :][:1].isalnum()
    return text if begins or not named else f"{named}. {text}"


def _text(held: Any, what: str) -> str:
    if not isinstance(held, str) or not held.strip():
        raise SpecError(f"has no {what}" if held is None else f"its {what} is {held!r:.40}")
    return held.strip()


def _flag(held: Any) -> bool:
    if isinstance(held, str):
        if held.strip().lower() not in ("true", "false", "1", "0", "yes", "no"):
            raise SpecError(f"a gold mark is {held!r:.20}: expected true or false")
        return held.strip().lower() in ("true", "1", "yes")
    return bool(held)


_COMMON = frozenset({*_IDS, *_QUESTIONS, *_ANSWERS})
FORMATS = {
    "kilt": Format("kilt", _COMMON | {"passage", "meta"}, _kilt),
    "lost-in-the-middle": Format(
        "lost-in-the-middle", _COMMON | {"ctxs", "nq_annotated_gold"}, _lost
    ),
    "squad": Format(
        "squad",
        _COMMON | {"context", "title", "others", "is_impossible", "plausible_answers"},
        _squad,
    ),
    "hotpot": Format(
        "hotpot",
        _COMMON
        | {"type", "level", "context", "supporting_facts"}
        | {"evidences", "evidences_id", "answer_id", "entity_ids"},
        _hotpot,
    ),
    "plain": Format("plain", _COMMON | {*_PASSAGES, "title"}, _plain),
}
