"""Evaluation tasks: question items read from a file or made by a generator, always streamed.

A task can be iterated any number of times. A format says how one record of a file becomes an
`Item`; it is found by the record's fields, and `@register_format` adds one. A made task is a
function of split and seed; `@register_task` adds one. Nothing is dropped in silence: fields that
nobody reads are warned of once, and a line that is no item is named with its number, either in the
refusal or, with `bad="count"`, in `task.bad`. Where no field marks the evidence, a passage is gold
if it holds an answer as whole words; `metadata["gold_by"]` says which it was.

>>> item = next(iter(task("synthetic/one-hop", seed=1)))
>>> len(item.answers), sum(passage.gold for passage in item.passages)
(1, 1)
"""

from __future__ import annotations

import ast
import hashlib
import heapq
import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from anchorwatch.errors import AnchorwatchWarning, SpecError
from anchorwatch.evaluation.readers import BadRecord, Record, read_records
from anchorwatch.evaluation.scores import holds
from anchorwatch.evaluation.synthetic import Distractors, Item, Passage, World
from anchorwatch.evaluation.synthetic.world import NO_HOP, PASSAGE_KINDS
from anchorwatch.trace.atomic_io import expand_path as expanded
from anchorwatch.trace.atomic_io import plain

TASKS: dict[str, Callable[[str, int], Iterable[Item]]] = {}
"""Made tasks by name: from split and seed to items, as many as there are."""
DISTRACTORS = Distractors(random=19, hard=9, counterfactual=4)
"""What each item of a synthetic task brings; contexts choose among it."""
POOL = 512
"""Passages of a file that serve as random distractors of items that bring none."""
SHOWN = 5
"""Bad places that a message names one by one."""


@dataclass(frozen=True)
class Task:
    """Items of one kind, one after another: `for item in task`."""

    name: str
    path: Path | None = None
    """The file; None where items are made."""
    format: str | None = None
    """One of the formats; None finds it by the first record's fields."""
    split: str = "held-out"
    seed: int = 0
    bad: dict[str, str] | None = field(default=None, compare=False)
    """Place and fault of lines that were left out; None refuses the first."""
    warned_fields: set[str] = field(default_factory=set, compare=False, repr=False)
    """Unknown fields that were warned of already."""

    def __iter__(self) -> Iterator[Item]:
        return (
            iter(TASKS[self.name](self.split, self.seed))
            if self.path is None
            else self._read_items(self.path)
        )

    def describe(self) -> dict[str, Any]:
        """What a manifest says of the task; items have digests of their own."""
        made_from = {"split": self.split, "seed": self.seed} if self.path is None else {}
        return {"name": self.name, "format": self.format} | made_from

    def pool(self, size: int = POOL) -> tuple[str, ...]:
        """Different passages of the whole task: those with the smallest digests, in their order.

        So they depend neither on the order of items nor on how many of them are asked. Made items
        bring all distractors they need, and share none.
        """
        if self.path is None:
            return ()
        kept: dict[int, str] = {}
        heap: list[int] = []  # negated: the largest digest kept stands first
        for item in self:
            for passage in item.passages:
                raw = passage.text.encode(errors="surrogatepass")  # JSON may hold half a letter
                digest = int.from_bytes(hashlib.sha256(raw).digest()[:8])
                if digest in kept or (len(heap) == size and digest > -heap[0]):
                    continue
                kept[digest] = passage.text
                heapq.heappush(heap, -digest)
                if len(heap) > size:
                    del kept[-heapq.heappop(heap)]
        return tuple(kept[digest] for digest in sorted(kept))

    def _read_items(self, path: Path) -> Iterator[Item]:
        form = FORMATS[self.format] if self.format else None
        for record in read_records(path):
            if isinstance(record, BadRecord):
                self._refuse_record(record)
                continue
            try:
                form = form or detect_format(record.fields)
                item = form.to_item(record.fields)
                _check_letters(item)
            except SpecError as error:
                self._refuse_record(BadRecord(record.where, str(error)))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                problem = f"does not fit the format {form.name if form else ''}: {error!r:.60}"
                self._refuse_record(BadRecord(record.where, problem))
            else:
                self._warn_unknown(record, form)
                yield item

    def _refuse_record(self, record: BadRecord) -> None:
        if self.bad is None:
            raise SpecError(
                f"{self.path}, {record.where}: {record.says}; repair it, "
                "or leave such lines out and have them counted with bad='count'"
            )
        self.bad[record.where] = record.says

    def _warn_unknown(self, record: Record, form: Format) -> None:
        if fresh := unknown_fields(record.fields, form) - self.warned_fields:
            self.warned_fields.update(fresh)
            warnings.warn(
                f"{self.path}, {record.where}: nothing reads {', '.join(sorted(fresh)[:8])}"
                f" of the format {form.name}",
                AnchorwatchWarning,
                stacklevel=3,
            )


def task(
    name: str | Path | Task,
    *,
    format: str | None = None,
    split: str = "held-out",
    seed: int = 0,
    bad: str = "refuse",
) -> Task:
    """A task by its name (`synthetic/one-hop`, `synthetic/two-hop`) or the path of its file.

    Args:
        name: what to ask; a file may be JSON lines, a JSON array, SQuAD's JSON, CSV or Parquet.
        format: kilt, lost-in-the-middle, squad, hotpot or plain; found by the fields if not said.
        split: of a made task, "held-out" or "train".
        seed: of a made task, which world.
        bad: "refuse" stops at a line that is no item, "count" leaves it out and names it.
    """
    if isinstance(name, Task):
        return name
    if bad not in ("refuse", "count"):
        raise SpecError(f"bad={bad!r} is unknown: expected refuse or count")
    if str(name) in TASKS:
        if format is not None:
            raise SpecError(f"{name} is made and has no format: leave it out")
        return Task(str(name), split=split, seed=seed)
    if str(name).startswith("synthetic/"):
        raise SpecError(f"no task is called {name}: expected one of {', '.join(TASKS)}")
    if format is not None and format not in FORMATS:
        raise SpecError(f"no format is called {format!r}: expected one of {', '.join(FORMATS)}")
    path = expanded(name)
    if not path.is_file():
        next(read_records(path))  # says what is there instead
    return Task(path.name, path, format, bad={} if bad == "count" else None)


def register_task(
    name: str,
) -> Callable[[Callable[[str, int], Iterable[Item]]], Callable[[str, int], Iterable[Item]]]:
    """Make a function of split and seed a task by this name; it gives items, perhaps without end.

    An item is a function of split, seed and its number only: so a grid can be resumed.
    """

    def add(make: Callable[[str, int], Iterable[Item]]) -> Callable[[str, int], Iterable[Item]]:
        if name in TASKS:
            raise SpecError(f"there is a task {name!r} already: choose another name")
        TASKS[name] = make
        return make

    return add


@register_task("synthetic/one-hop")
def _make_one_hop(split: str, seed: int) -> Iterator[Item]:
    world = World(split, 1, seed, DISTRACTORS)
    return (world[index] for index in count())


@register_task("synthetic/two-hop")
def _make_two_hop(split: str, seed: int) -> Iterator[Item]:
    world = World(split, 2, seed, DISTRACTORS)
    return (world[index] for index in count())


def _check_letters(item: Item) -> None:
    """Refuse what is no text where results quote it; a passage is only shown."""
    for name in (item.question, *item.answers, str(item.metadata.get("id", ""))):
        if any("\ud800" <= letter <= "\udfff" for letter in name):
            raise SpecError(f"{name!r:.40} has a lone surrogate, which is no text: replace it")


def describe_bad(read_task: Task) -> str:
    """What to say of lines that were left out; nothing where there were none."""
    if not read_task.bad:
        return ""
    shown = [f"{where} ({says})" for where, says in list(read_task.bad.items())[:SHOWN]]
    more = f" and {len(read_task.bad) - SHOWN} more" if len(read_task.bad) > SHOWN else ""
    return f"{len(read_task.bad)} lines of {read_task.path} were left out: {'; '.join(shown)}{more}"


def item_key(item: Item) -> str:
    """Sixteen letters that are the same for the same item, wherever it stands."""
    spelled = json.dumps(plain(item.as_dict()), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(spelled.encode()).hexdigest()[:16]


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
    known_fields: frozenset[str]
    """Fields that it reads, or leaves knowingly; of any other the reader is warned."""
    to_item: Callable[[Mapping[str, Any]], Item]
    matches: Callable[[Mapping[str, Any]], bool]
    """Whether a record is of this format."""


FORMATS: dict[str, Format] = {}
"""Every format by its name."""
_DETECTED_LAST = ("lost-in-the-middle", "squad", "hotpot", "kilt", "plain")
"""Formats of the package, in the order in which they are tried."""
_COMMON = frozenset({*_IDS, *_QUESTIONS, *_ANSWERS})
"""Fields that every format of the package knows."""


def register_format(
    name: str,
    fields: Iterable[str],
    matches: Callable[[Mapping[str, Any]], bool] | None = None,
) -> Callable[[Callable[[Mapping[str, Any]], Item]], Callable[[Mapping[str, Any]], Item]]:
    """Make a function from a record's fields to an `Item` a format by this name.

    Args:
        name: what `task(path, format=name)` calls it.
        fields: those it reads, or leaves knowingly.
        matches: whether a record is of this format; unless given, one that has all the fields. It
            is asked before the formats of the package are.
    """
    known = frozenset(fields)

    def add(to_item: Callable[[Mapping[str, Any]], Item]) -> Callable[[Mapping[str, Any]], Item]:
        if name in FORMATS:
            raise SpecError(f"there is a format {name!r} already: choose another name")
        FORMATS[name] = Format(
            name, known, to_item, matches or (lambda record: known <= record.keys())
        )
        return to_item

    return add


def detect_format(fields: Mapping[str, Any]) -> Format:
    """The format that these fields are written in; the newest registered is tried first."""
    added = [form for name, form in FORMATS.items() if name not in _DETECTED_LAST]
    for form in (*reversed(added), *(FORMATS[name] for name in _DETECTED_LAST)):
        if form.matches(fields):
            return form
    raise SpecError(
        f"a record has {', '.join(sorted(map(str, fields))[:8])} and none of "
        f"{', '.join(_QUESTIONS)}: name the columns so, or say format= one of {', '.join(FORMATS)}"
    )


def unknown_fields(fields: Mapping[str, Any], known: Format) -> set[str]:
    """Names of fields, of the record, its passages or its answers, that nothing here reads."""
    unknown = {str(name) for name in fields if name not in known.known_fields}
    for name in (*_PASSAGES, *_ANSWERS):
        reads = _OF_PASSAGE if name in _PASSAGES else {*_OF_ANSWER, *_LEFT_OF_ANSWER}
        value = fields.get(name) if name in known.known_fields else None
        within = f"{name}[]" if isinstance(value, list) else name
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Mapping):
                unknown |= {f"{within}.{key}" for key in part if key not in reads}
    return (
        unknown
        | _overridden_fields(fields, _QUESTIONS, known)
        | _overridden_fields(fields, _PASSAGES, known)
    )


def _overridden_fields(fields: Mapping[str, Any], names: Iterable[str], known: Format) -> set[str]:
    """Names that lose to one before them, which says something else."""
    first, *others = [
        name for name in names if name in known.known_fields and fields.get(name)
    ] or [""]
    return {f"{name} beside {first}" for name in others if fields[name] != fields[first]}


@register_format(
    "kilt",
    _COMMON | {"passage", "meta"},
    lambda record: (
        isinstance(record.get("passage"), list) or isinstance(record.get("output"), list)
    ),
)
def _read_kilt(fields: Mapping[str, Any]) -> Item:
    """KILT with passages, as in the Attention-Floating files: `passage[].segment`."""
    return _build_item("kilt", fields, _read_passages(fields.get("passage") or ()))


@register_format(
    "lost-in-the-middle",
    _COMMON | {"ctxs", "nq_annotated_gold"},
    lambda record: isinstance(record.get("ctxs"), list),
)
def _read_lost_in_the_middle(fields: Mapping[str, Any]) -> Item:
    """Lost in the Middle: `ctxs[]` with `isgold`, or only `hasanswer`."""
    passages = _read_passages(fields["ctxs"])
    if not any(passage.flag is not None for passage in passages):
        passages = [passage.with_flag(passage.has_answer) for passage in passages]
    return _build_item("lost-in-the-middle", fields, passages)


@register_format(
    "squad",
    _COMMON | {"context", "title", "others", "is_impossible", "plausible_answers"},
    lambda record: (
        "context" in record and ("others" in record or _has_answer_columns(record.get("answers")))
    ),
)
def _read_squad(fields: Mapping[str, Any]) -> Item:
    """SQuAD: the paragraph is gold, the others of its article are hard distractors.

    Rows of the hub's tables know no article, and have no answer where there is none.
    """
    gold = _RawPassage(_require_text(fields.get("context"), "context"), flag=True)
    others = [_RawPassage(text, flag=False, kind="hard") for text in fields.get("others", ())]
    answers = _read_answers(fields)
    if fields.get("is_impossible") or (not answers and _has_answer_columns(fields.get("answers"))):
        answers = ("",)  # the right answer is to say nothing
    return _build_item("squad", fields, [gold, *others], answers)


@register_format(
    "hotpot",
    _COMMON
    | {"type", "level", "context", "supporting_facts"}
    | {"evidences", "evidences_id", "answer_id", "entity_ids"},
    lambda record: "supporting_facts" in record and "context" in record,
)
def _read_hotpot(fields: Mapping[str, Any]) -> Item:
    """HotpotQA and 2WikiMultihopQA, as released and as datasets of columns."""
    facts, context = fields["supporting_facts"], fields["context"]
    if isinstance(facts, Mapping):
        facts = list(zip(facts["title"], facts["sent_id"], strict=True))
    if isinstance(context, Mapping):
        body = context["sentences"] if "sentences" in context else context["content"]
        context = list(zip(context["title"], body, strict=True))
    gold = list(dict.fromkeys(str(title) for title, *_ in facts))
    answers = _read_answers(fields)
    passages = []
    for title, sentences in context:
        text = _with_title(title, " ".join(str(sentence).strip() for sentence in sentences))
        order = gold.index(str(title)) + 1 if str(title) in gold else None
        passages.append(_RawPassage(text, flag=order is not None, hop=order, kind="hard"))
    return _build_item("hotpot", fields, _order_hops(passages, answers), answers)


def _order_hops(passages: list[_RawPassage], answers: tuple[str, ...]) -> list[_RawPassage]:
    """Of two gold passages, the one that alone holds the answer is the second hop."""
    gold = [passage for passage in passages if passage.flag]
    ends = [passage for passage in gold if holds(passage.text, answers)]
    if len(gold) != 2 or len(ends) != 1 or ends[0].hop == 2:
        return passages
    return [
        passage.with_hop(3 - passage.hop) if passage.flag and passage.hop else passage
        for passage in passages
    ]


@register_format(
    "plain",
    _COMMON | {*_PASSAGES, "title"},
    lambda record: any(name in record for name in _QUESTIONS),
)
def _read_plain(fields: Mapping[str, Any]) -> Item:
    """A question, answers, and passages as texts or objects; cells of a table may hold JSON."""
    named = next((name for name in _PASSAGES if fields.get(name)), None)
    value = _parse_cell(fields[named]) if named else ()
    passages = _read_passages([value] if isinstance(value, str | Mapping) else value)
    if len(passages) == 1 and passages[0].flag is None:
        passages = [passages[0].with_flag(True)]  # the text the question is about
    return _build_item("plain", fields, passages)


@dataclass(frozen=True)
class _RawPassage:
    """A passage as a file has it; `flag` is None where nothing says whether it is gold."""

    text: str
    flag: bool | None = None
    hop: int | None = None
    kind: str = RETRIEVED
    has_answer: bool | None = None

    def with_flag(self, flag: bool | None) -> _RawPassage:
        return _RawPassage(self.text, flag, self.hop, self.kind, self.has_answer)

    def with_hop(self, hop: int) -> _RawPassage:
        return _RawPassage(self.text, self.flag, hop, self.kind, self.has_answer)


def _read_passages(listed: Iterable[Any]) -> list[_RawPassage]:
    if not isinstance(listed, list | tuple):
        raise SpecError(f"its passages are {type(listed).__name__}, not a list")
    passages = []
    for number, raw in enumerate(listed, start=1):
        if isinstance(raw, str):
            passages.append(_RawPassage(raw))
            continue
        if not isinstance(raw, Mapping):
            raise SpecError(f"passage {number} is {type(raw).__name__}, not text or an object")
        named = next((name for name in _TEXTS if isinstance(raw.get(name), str)), None)
        if named is None:
            raise SpecError(f"passage {number} has none of {', '.join(_TEXTS)} as text")
        flag = next((_parse_flag(raw[name]) for name in _FLAGS if raw.get(name) is not None), None)
        flag = True if raw.get("kind") == "gold" else flag
        has = None if raw.get("hasanswer") is None else _parse_flag(raw["hasanswer"])
        kind, hop = str(raw.get("kind") or RETRIEVED), raw.get("hop")
        if kind not in PASSAGE_KINDS:
            raise SpecError(f"passage {number} is of the kind {kind!r:.20}: {_KINDS_ARE}")
        text = _with_title(raw.get("title"), raw[named])
        passages.append(_RawPassage(text, flag, None if hop is None else int(hop), kind, has))
    return passages


def _build_item(
    name: str,
    fields: Mapping[str, Any],
    raw: list[_RawPassage],
    answers: tuple[str, ...] | None = None,
) -> Item:
    """The item of a record; passages without marks are gold where they hold an answer."""
    text = next((fields[field] for field in _QUESTIONS if fields.get(field)), None)
    question = _require_text(text, "question")
    answers = _read_answers(fields) if answers is None else answers
    if not answers:
        raise SpecError("has no answer")
    marked = any(passage.flag is not None for passage in raw)
    if not marked:
        raw = [passage.with_flag(holds(passage.text, answers)) for passage in raw]
    passages = tuple(
        Passage(passage.text, True, passage.hop or 1, "gold")
        if passage.flag
        else Passage(passage.text, False, NO_HOP, passage.kind)
        for passage in raw
    )
    given = next((str(fields[field]) for field in _IDS if fields.get(field) is not None), "")
    gold_by = ("flag" if marked else "answer") if raw else "none"
    return Item(question, answers, passages, {"id": given, "format": name, "gold_by": gold_by})


def _read_answers(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Every text of every answer field, each once, in its order."""
    values = [_parse_cell(fields[name]) for name in _ANSWERS if fields.get(name) is not None]
    return tuple(dict.fromkeys(_texts_in(values)))


def _has_answer_columns(answers: Any) -> bool:
    """Whether answers are columns, as the hub's tables of SQuAD have them."""
    return isinstance(answers, Mapping) and {"text", "answer_start"} <= answers.keys()


def _texts_in(answer: Any) -> Iterable[str]:
    if answer is None:
        return
    if isinstance(answer, bool) or (isinstance(answer, float) and not math.isfinite(answer)):
        what = (
            "write yes or no" if isinstance(answer, bool) else "leave it out, or write it as text"
        )
        raise SpecError(f"its answer is {answer}, not text: {what}")
    if isinstance(answer, float) and answer.is_integer() and abs(answer) < 2**53:
        answer = int(answer)  # a table that lacks a number elsewhere has made a year 1969.0
    if isinstance(answer, str | int | float):
        if text := str(answer).strip():
            yield text
    elif isinstance(answer, Mapping):
        for name in _OF_ANSWER:
            yield from _texts_in(answer.get(name))
    elif isinstance(answer, list | tuple):
        for value in answer:
            yield from _texts_in(value)
    else:
        raise SpecError(f"its answer is of type {type(answer).__name__}, not text")


def _parse_cell(cell: Any) -> Any:
    """A cell of a table that spells a list or an object, in JSON or in Python, as that."""
    if not isinstance(cell, str) or not cell.lstrip().startswith(("[", "{")):
        return cell
    try:
        return json.loads(cell, strict=False)  # a cell may break a line
    except (ValueError, RecursionError):
        if not _LIST_LIKE.fullmatch(cell.strip()):
            return cell
    try:
        parsed = ast.literal_eval(cell.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        parsed = None
    if not isinstance(parsed, list | dict) or _SIDE_BY_SIDE.search(cell):
        raise SpecError(f"{cell!r:.40} looks like a list and is none: write it as JSON")
    return parsed


def _with_title(title: Any, text: str) -> str:
    """A passage under its title, unless it begins with it anyway."""
    named = str(title or "").strip()
    begins = text.startswith(named) and not text[len(named) :][:1].isalnum()
    return text if begins or not named else f"{named}. {text}"


def _require_text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"has no {what}" if value is None else f"its {what} is {value!r:.40}")
    return value.strip()


def _parse_flag(mark: Any) -> bool:
    if isinstance(mark, str):
        if mark.strip().lower() not in ("true", "false", "1", "0", "yes", "no"):
            raise SpecError(f"a gold mark is {mark!r:.20}: expected true or false")
        return mark.strip().lower() in ("true", "1", "yes")
    return bool(mark)
