"""One prompt for all models, and one way to read an answer out of what they write.

A template is part of every manifest. The default is the one that README and the lab's models use;
`floating-rules` and `floating-examples` follow the two prompts of the Attention-Floating paper
(LLaDA's, and everybody else's), in our words. What a model writes is cut at its first end token,
then at the first of the template's stops: the same for both families.

>>> from anchorwatch.evaluation.synthetic import Passage
>>> PLAIN.render(Item("Where?", ("bay",), (Passage("In the bay.", True, 1),))).text
'Passage: In the bay.\\nQuestion: Where?\\nAnswer:'
>>> extract_answer(" the bay.\\nQuestion: Who?", PLAIN)
'the bay.'
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anchorwatch.errors import PromptError, SpecError
from anchorwatch.evaluation.synthetic import Item
from anchorwatch.evaluation.synthetic.world import region_names

_RULES = """Use the following passages as context if they are helpful, but provide a SHORT and \
DIRECT answer.

RULES:
- Look into the context first.
- If it holds the answer, take it from there.
- If it does not, use what you know in general.
- Answer in 1 to 10 words.
- Do not explain.
- Do not repeat the passages.

Context:
{passages}

Question: {question}"""
_EXAMPLES = """You are a helpful assistant that answers questions.

INSTRUCTIONS:
- Read the context with care.
- If it holds the answer, take it from there.
- If it does not, use what you know in general.
- Answer with a few words, a name, a date or a number.
- Do not explain.
- Do not repeat the question.

Context:
{passages}

EXAMPLES:
Question: In which city does the Eiffel Tower stand?
Answer: Paris

Question: Who put forward the theory of relativity?
Answer: Albert Einstein

Question: What is the capital of Japan?
Answer: Tokyo

Question: {question}"""


@dataclass(frozen=True)
class RenderedPrompt:
    """A prompt as text, and where its parts stand in it."""

    text: str
    regions: Mapping[str, tuple[int, int]]
    """(begin, end) in characters: gold (or gold 1, gold 2), distractor 1 and so on, question."""


@dataclass(frozen=True)
class Template:
    """How an item becomes a prompt; `{passages}` and `{question}` stand where they go."""

    name: str
    ask: str
    passage: str = "Passage: {text}\n"
    """One passage; `{n}` is its number."""
    between: str = ""
    nothing: str = ""
    """What stands for the passages where there are none."""
    cue: str = "\nAnswer:"
    """Asks for the answer; a chat template does that itself."""
    stops: tuple[str, ...] = ("\n",)
    """Where an answer ends, at the latest."""
    chat: bool = False
    """Whether the model's chat template goes around it."""

    def __post_init__(self) -> None:
        for where, text, names in (
            ("ask", self.ask, ("{passages}", "{question}")),
            ("passage", self.passage, ("{text}",)),
        ):
            if wrong := [name for name in names if text.count(name) != 1]:
                raise SpecError(f"the template's {where} needs {wrong[0]} once: {text!r:.60}")
        object.__setattr__(self, "stops", tuple(self.stops))
        if "" in self.stops:
            raise SpecError("a stop is empty: leave it out, every answer would end at once")

    def as_dict(self) -> dict[str, Any]:
        """All of it, for the manifest."""
        return dataclasses.asdict(self) | {"stops": list(self.stops)}

    def render(self, item: Item) -> RenderedPrompt:
        """The item as a prompt, every part known by where it stands."""
        text, regions = "", {}
        before, _, after = self.ask.partition("{passages}")
        if "{question}" in before:
            raise SpecError("the template asks before it shows: put {passages} first")
        text += before
        names = region_names(item.passages)
        for number, (name, passage) in enumerate(zip(names, item.passages, strict=True), start=1):
            text += self.between if number > 1 else ""
            head, _, tail = self.passage.partition("{text}")
            text += head.replace("{n}", str(number))
            regions[name] = len(text), len(text) + len(passage.text)
            text += passage.text + tail
        text += "" if item.passages else self.nothing
        middle, _, end = after.partition("{question}")
        text += middle
        regions["question"] = len(text), len(text) + len(item.question)
        return RenderedPrompt(text + item.question + end + ("" if self.chat else self.cue), regions)


PLAIN = Template("plain", "{passages}Question: {question}")
FLOATING = {
    "passage": "Passage {n}:\n{text}",
    "between": "\n\n",
    "nothing": "Passage 1:\nNo relevant context available.",
}
TEMPLATES = {
    known_template.name: known_template
    for known_template in (
        PLAIN,
        Template("floating-rules", _RULES, cue="\nShort Answer:", **FLOATING),  # type: ignore[arg-type]
        Template("floating-examples", _EXAMPLES, **FLOATING),  # type: ignore[arg-type]
    )
}


def template(name: str | Template, *, chat: bool = False) -> Template:
    """The template of that name, inside the chat template or not."""
    if isinstance(name, Template):
        return dataclasses.replace(name, chat=chat or name.chat)
    if name not in TEMPLATES:
        known = ", ".join(TEMPLATES)
        raise SpecError(f"no template is called {name!r}: expected one of {known}, or a Template")
    return dataclasses.replace(TEMPLATES[name], chat=chat)


def until_end(ids: Sequence[int], end_ids: Sequence[int], mask_id: int | None) -> list[int]:
    """What was written before the first end token; positions left masked or absent are no text."""
    kept: list[int] = []
    for token in ids:
        if token in end_ids:
            break
        if token >= 0 and token != mask_id:
            kept.append(int(token))
    return kept


def extract_answer(text: str, template: Template) -> str:
    """The answer in what was written: up to the first stop, without space around it."""
    answer = text.lstrip()
    ends = [end for stop in template.stops if (end := answer.find(stop)) >= 0]
    return answer[: min(ends, default=len(answer))].strip()


def refuse_two_starts(ids: Sequence[int], bos_id: int | None, end_ids: Sequence[int]) -> None:
    """Refuse a prompt with more than one start token; one that also ends texts may stand inside."""
    if bos_id is None or not ids:
        return
    twice = list(ids[:2]) == [bos_id, bos_id]
    if twice or (bos_id not in end_ids and list(ids).count(bos_id) > 1):
        raise PromptError(
            f"the prompt holds the start token {bos_id} more than once: the tokenizer or the chat "
            "template adds it, so take it out of the text"
        )
