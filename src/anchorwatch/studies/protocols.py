"""How the models of a study are prompted and how they write: a study's own way, or a paper's.

A budget says how much is run; a protocol says how. What it leaves out is the budget's. `PROTOCOLS`
has the settings of each paper, as far as they are known; what is said beside one of them wins.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from anchorwatch.errors import AnchorwatchWarning, ItemError, PromptError, SpecError
from anchorwatch.evaluation.contexts import context as named_context
from anchorwatch.evaluation.prompt_templates import template as named_template
from anchorwatch.evaluation.synthetic import Item
from anchorwatch.evaluation.tasks import item_key
from anchorwatch.evaluation.tasks import task as named_task
from anchorwatch.generation.decoding import Decoding, LeftToRight, LowConfidence, check_whole
from anchorwatch.generation.dream_on import DreamOn
from anchorwatch.studies.prompts import (
    APART,
    QUESTION_SETS,
    TEXT,
    StudyPrompt,
    prompt_of,
    prompt_of_item,
    running_texts,
)
from anchorwatch.trace.input_files import open_plain

T = TypeVar("T")

_SIZES = ("length", "steps", "block")
MADE_TASK = "synthetic/one-hop"
"""The task that one of the user's stands in for."""


@dataclass(frozen=True)
class Protocol:
    """Settings of watched runs, effects and answers; None and () leave them to the budget."""

    name: str = ""
    chat: bool = False
    """Whether prompts and questions go through the model's chat template."""
    decoding: Decoding | None = None
    """How masked models write; an autoregressive one writes greedily from left to right."""
    length: int | None = None
    """Positions that a watched run writes."""
    steps: int | None = None
    """Its forward passes, where masks are filled; one for each position unless said."""
    block: int | None = None
    """Positions in a block, where masks are filled."""
    prompts: tuple[Any, ...] = ()
    """Texts, ids or messages that runs of the set `text` go on with, in place of the stories;
    experiments that read running text take them, too."""
    task: str | None = None
    """A task or a file of questions, in place of made-up questions of one hop: what is asked, what
    watched runs answer, and what experiments read."""
    contexts: tuple[tuple[str, str], ...] = ()
    """(claim's context, the task's): what a claim's `gold` is among the contexts of the task."""
    answer: int | None = None
    """Positions of an answer, one a step; else the budget's, two a step."""
    template: str | None = None
    """The prompt of questions, where a claim names none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompts", _prompt_tuple(self.prompts))
        object.__setattr__(self, "contexts", _context_pairs(self.contexts))
        for name in (*_SIZES, "answer"):
            check_whole(name, getattr(self, name), optional=True)
        if self.decoding is not None:
            self._check_decoding(self.decoding)
        if length := self.length or getattr(self.decoding, "length", None):
            self.decoding_for("mdm", LowConfidence(length))  # refuses blocks that do not divide
        if self.template is not None:
            named_template(self.template)
        if self.task is not None:
            named_task(self.task)
        elif self.contexts:
            raise SpecError(
                "contexts say what the claims' are among those of a task: name it, task='nq.jsonl'"
            )

    def _check_decoding(self, decoding: Decoding) -> None:
        if not isinstance(decoding, Decoding):
            raise SpecError(
                f"decoding={decoding!r:.40} is not one of aw.decoding: for example LowConfidence()"
            )
        if decoding.writes != "masked":
            raise SpecError(
                f"decoding={type(decoding).__name__} is how an autoregressive model writes, and "
                "does anyway: say how the masked one does, such as LowConfidence(block=32)"
            )
        if isinstance(decoding, DreamOn):
            raise SpecError(
                "DreamOn makes a canvas longer or shorter, and claims compare runs of one length: "
                "say a decoding that keeps it, such as DreamOrder()"
            )
        for name in _SIZES:
            value = getattr(self, name)
            if value is None:
                continue
            if not hasattr(decoding, name):
                raise SpecError(f"{type(decoding).__name__} has no {name}: leave {name} out")
            if getattr(decoding, name) is not None:
                raise SpecError(f"{name} is given twice, in the decoding and as {value}: say one")
        if decoding.blockwise and not (self.block or getattr(decoding, "block", None)):
            raise SpecError(
                f"{type(decoding).__name__} writes in blocks, and a plan must know how large they "
                f"are: say {type(decoding).__name__}(block=8) or --block 8, for example"
            )

    @property
    def is_default(self) -> bool:
        return self == DEFAULT_PROTOCOL

    def decoding_for(self, kind: str, default: Decoding) -> Decoding:
        """How a watched run writes; `default` is the budget's way, or that of the claim.

        A claim that names another order than LowConfidence is about that order, and keeps it.
        Without a cache an autoregressive model too sees all rows at each step, as a masked one
        does; it goes on after an end token, so that models share a length.
        """
        # 1. Whose decoding, and how many positions.
        said = self.decoding if isinstance(default, LowConfidence) else None
        base = said or default
        length = self.length or getattr(said, "length", None) or default.length
        assert length is not None
        if kind == "arm":
            plain = LeftToRight(cache=False, stop=False)
            base = default if isinstance(default, LeftToRight) else plain
            return dataclasses.replace(base, length=length)
        # 2. Its passes: one a position where only the length is said.
        sizes: dict[str, Any] = {"length": length}
        if hasattr(base, "steps"):
            same = length == default.length and said is None
            fewer = getattr(default, "steps", None) if same else length
            sizes["steps"] = self.steps or getattr(said, "steps", None) or fewer
        # 3. Its blocks: the default's, if they divide the length.
        if hasattr(base, "block"):
            divides = base.block is not None and length % base.block == 0
            sizes["block"] = self.block or (base.block if said or divides else None)
        # 4. Running text has no end tokens, whoever says how it is written.
        if getattr(default, "forbid_end", False) and hasattr(base, "forbid_end"):
            sizes["forbid_end"] = True
        return dataclasses.replace(base, **sizes)

    def answer_decoding(self, kind: str, positions: int) -> Decoding:
        """How an answer is written: two commits a step, or one where its length is said.

        In blocks of the protocol where they divide an answer whose length is said.
        """
        length = self.answer or positions
        if kind == "arm":
            return LeftToRight(length)
        base = self.decoding or LowConfidence()
        sizes: dict[str, Any] = {"length": length}
        if hasattr(base, "steps"):
            sizes["steps"] = length if self.answer else -(-length // 2)
        if hasattr(base, "block"):
            block = self.block or base.block
            fits = self.answer and block and block < self.answer and self.answer % block == 0
            sizes["block"] = block if fits or base.blockwise else None
        return dataclasses.replace(base, **sizes)

    def count_prompts(self, prompt_set: str, wanted: int) -> int:
        """How many prompts of a set there are, of so many wanted: running text has an end."""
        if prompt_set == TEXT:
            return min(wanted, len(self.prompts or running_texts()))
        if self.task is not None and named_task(self.task).path is not None:
            return min(wanted, len(_items_of_file(self.task, self._task_digest)))
        return wanted

    def prompt_of(self, prompt_set: str, index: int) -> StudyPrompt:
        """Prompt `index` of a set: of the protocol's own prompts or task, where it has some."""
        if prompt_set == TEXT and self.prompts:
            if index >= len(self.prompts):
                raise PromptError(f"there are {len(self.prompts)} prompts, and no other")
            return StudyPrompt(self.prompts[index], {})
        if prompt_set in QUESTION_SETS and self.task is not None:
            return prompt_of_item(prompt_set, self.item_of(prompt_set, index))
        return prompt_of(prompt_set, index)

    def item_of(self, question_set: str, index: int, *, apart: bool = False) -> Item:
        """Item `index` of a set of questions; of the user's task in the context that stands for it.

        Items `apart` are read by no set of prompts: those of a file are counted from its end.
        """
        chosen = QUESTION_SETS[question_set]
        if self.task is None:
            return chosen[APART + index if apart else index]
        shown = named_context(dict(self.contexts).get(chosen.context, chosen.context))
        given = named_task(self.task)
        if given.path is None:
            return shown.apply(next(islice(given, index + APART // 1000 * apart, None)))
        items = _items_of_file(self.task, self._task_digest)
        if index >= len(items):
            raise PromptError(f"{given.name} has {len(items)} questions, and no other")
        item = items[-1 - index if apart else index]
        try:
            return shown.apply(item, _pool_of_file(self.task, self._task_digest))
        except ItemError as error:
            raise PromptError(f"{given.name}, question {index}, as {shown.name}: {error}") from None

    def task_of(self, task: str) -> str:
        """The task to ask in place of a claim's."""
        return self.task if self.task is not None and task == MADE_TASK else task

    def contexts_of(self, task: str, contexts: Sequence[str]) -> dict[str, str]:
        """The claim's name of each context that the task is asked in, in order."""
        given = dict(self.contexts) if self.task_of(task) != task else {}
        return {named_context(given.get(name, name)).name: name for name in contexts}

    def prompts_key(self, prompt_set: str) -> dict[str, Any]:
        """What of it decides a run besides the decoding; empty where nothing does."""
        key: dict[str, Any] = {"chat": True} if self.chat else {}
        return key | self.material_key((prompt_set,))

    def material_key(self, sets: Sequence[str]) -> dict[str, Any]:
        """Which texts or questions of the user's stand in for these sets."""
        key: dict[str, Any] = {}
        if TEXT in sets and self.prompts:
            key["prompts"] = self._prompts_digest
        if self.task is not None and any(name in QUESTION_SETS for name in sets):
            key["task"] = named_task(self.task).describe() | {"file": self._task_digest}
            key["contexts"] = dict(self.contexts)
        return key

    def answers_key(self, task: str, contexts: Sequence[str]) -> dict[str, Any]:
        """The same of answers to questions."""
        key: dict[str, Any] = {"chat": True} if self.chat else {}
        if self.template is not None:
            key["template"] = self.template
        if self.task_of(task) != task:
            key["task"] = named_task(self.task_of(task)).describe() | {"file": self._task_digest}
            key["contexts"] = list(self.contexts_of(task, contexts))
        return key

    @property
    def _prompts_digest(self) -> str:
        return hashlib.sha256(json.dumps(self.prompts).encode()).hexdigest()

    @property
    def _task_digest(self) -> str | None:
        """Of the task's file; None where it is made up."""
        path = None if self.task is None else named_task(self.task).path
        if path is None:
            return None
        with open_plain(path) as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """All that is said, for the manifest; prompts and files by their digests."""
        plain = ("name", "chat", *_SIZES, "task", "answer", "template")
        fields: dict[str, Any] = {name: getattr(self, name) for name in plain}
        fields["decoding"] = None if self.decoding is None else self.decoding.as_dict()
        if self.prompts:
            fields["prompts"] = {"count": len(self.prompts), "sha256": self._prompts_digest}
        if self.task is not None:
            fields |= {"task_sha256": self._task_digest, "contexts": dict(self.contexts)}
        return {name: value for name, value in fields.items() if value}

    def __str__(self) -> str:
        """In words, for the plan; empty where everything is the budget's."""
        said = ["chat template"] if self.chat else []
        said += [] if self.decoding is None else [describe_decoding(self.decoding)]
        said += [f"{name} {value}" for name in _SIZES if (value := getattr(self, name))]
        said += [f"{len(self.prompts)} prompts"] if self.prompts else []
        said += [f"task {self.task}"] if self.task is not None else []
        said += [f"{claim} is {shown}" for claim, shown in self.contexts]
        said += [f"answers of {self.answer}"] if self.answer else []
        said += [f"template {self.template}"] if self.template is not None else []
        return (f"{self.name}: " if self.name else "") + ", ".join(said)


@cache
def _items_of_file(task: str, digest: str | None) -> tuple[Item, ...]:
    """Each item of a task's file once, in order, as `evaluate` asks them: an item is a unit.

    The file is read once; the digest tells another content of it.
    """
    return _keep_different(list(named_task(task)), item_key, f"questions of {task}")


@cache
def _pool_of_file(task: str, digest: str | None) -> tuple[str, ...]:
    """Passages that may stand beside the evidence."""
    return named_task(task).pool()


def describe_decoding(decoding: Decoding) -> str:
    """Its name, and the fields that are not as they are by default."""
    changed = [
        f"{item.name}={value}"
        for item in dataclasses.fields(decoding)
        if (value := getattr(decoding, item.name)) != item.default
    ]
    return type(decoding).__name__ + (f"({', '.join(changed)})" if changed else "")


def _prompt_tuple(prompts: Any) -> tuple[Any, ...]:
    """Each prompt once, in order."""
    if isinstance(prompts, str):
        raise SpecError("prompts are a list: say ['Once upon a time'], or --prompts FILE")
    listed = tuple(prompts)
    if wrong := [p for p in listed if not isinstance(p, str | list | tuple) or not p]:
        raise SpecError(f"{wrong[0]!r:.40} is no prompt: give text, token ids or chat messages")
    return _keep_different(listed, lambda prompt: json.dumps(prompt, default=str), "prompts")


def _keep_different(listed: Sequence[T], key: Callable[[T], str], what: str) -> tuple[T, ...]:
    """Those with different keys, in order; the others would count as independent units."""
    different: dict[str, T] = {}
    for each in listed:
        different.setdefault(key(each), each)
    if repeated := len(listed) - len(different):
        warnings.warn(
            f"{repeated} of {len(listed)} {what} repeat another and are left out: each is a unit, "
            "and counts once",
            AnchorwatchWarning,
            stacklevel=5,
        )
    return tuple(different.values())


def _context_pairs(contexts: Any) -> tuple[tuple[str, str], ...]:
    pairs = tuple(dict(contexts).items())
    for claim, shown in pairs:
        named_context(claim), named_context(shown)
    shown_as = [named_context(shown).name for _, shown in pairs]
    if twice := [name for name in shown_as if shown_as.count(name) > 1]:
        raise SpecError(f"two contexts are {twice[0]}: claims compare them, give each its own")
    return pairs


DEFAULT_PROTOCOL = Protocol()
"""Everything is the budget's."""
PROTOCOLS: Mapping[str, Protocol] = {
    preset.name: preset
    for preset in (
        # arXiv 2510.15731: instruction-tuned checkpoints, 128 positions in 128 steps, blocks of 32.
        Protocol("rulli", chat=True, decoding=LowConfidence(), length=128, block=32, answer=128),
        # arXiv 2601.07894: temporal maps of 32 positions in 32 steps, no chat template; questions
        # by its LLaDA script, 32 positions in 32 steps.
        Protocol(
            "floating",
            decoding=LowConfidence(),
            length=32,
            block=32,
            answer=32,
            template="floating-rules",
        ),
        # arXiv 2601.19657: GSM8K as its script writes it, 256 positions in 256 steps, warm.
        Protocol("sink-token", decoding=LowConfidence(temperature=0.1), length=256),
    )
}
"""The papers' own settings, by name."""


def protocol(  # noqa: PLR0913 - the fields of a protocol
    name: str | Protocol | None = None,
    *,
    chat: bool | None = None,
    decoding: Decoding | None = None,
    length: int | None = None,
    steps: int | None = None,
    block: int | None = None,
    prompts: Sequence[Any] | None = None,
    task: str | None = None,
    contexts: Mapping[str, str] | None = None,
    answer: int | None = None,
    template: str | None = None,
) -> Protocol:
    """A protocol by name, or one of yours, or none; settings that are given win over its own.

    >>> protocol("rulli", length=64).decoding_for("mdm", LowConfidence(16)).length
    64
    """
    if isinstance(name, Protocol):
        base = name
    elif name is None:
        base = DEFAULT_PROTOCOL
    elif name in PROTOCOLS:
        base = PROTOCOLS[name]
    else:
        raise SpecError(f"no protocol is called {name!r}: expected one of {', '.join(PROTOCOLS)}")
    given: dict[str, Any] = {"chat": chat, "decoding": decoding}
    given |= {"length": length, "steps": steps, "block": block}
    given |= {"prompts": prompts, "task": task, "contexts": contexts}
    given |= {"answer": answer, "template": template}
    settings = {name: value for name, value in given.items() if value is not None}
    # A decoding of the user's takes the place of the sizes that it names or cannot have.
    if decoding is not None:
        for size in _SIZES:
            if size not in settings and getattr(decoding, size, False) is not None:
                settings[size] = None
    return dataclasses.replace(base, **settings)
