"""Sets of prompts by name: prompt i is a function of the set and of i.

A larger budget reads further in the same set, so that what a smaller one ran is reused. `asked`,
`alone` and `told` are made up and have no end. `text` is running text: how 256 held-out stories
begin, for a model to go on with (`recipes/running_text.py` makes the file).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from anchorwatch.errors import SpecError
from anchorwatch.evaluation.synthetic import Distractors, Item, World

SEED = 70_000
"""Of made-up items: not those of training, of cards, or of evaluations."""
QUESTION_ITEMS = World("held-out", seed=SEED, distractors=Distractors(random=1, hard=1))
"""Whose items the set `asked` shows: item i has the answers to prompt i."""
SINGLE_PASSAGE_ITEMS = World("held-out", seed=SEED)
"""Items with their own passage and no other."""
TEMPLATE_WORDS = ("Passage:", "Question:", "Answer:")
"""Words of the prompts of `asked` that are neither passage nor question."""


@dataclass(frozen=True)
class StudyPrompt:
    """A prompt and its named parts, in characters."""

    text: Any
    """Of a set on board always text; of a user's token ids or chat messages, too."""
    regions: Mapping[str, tuple[int, int]]
    message: Any = None
    """The same as the one message of a chat, whose template asks for the answer; None: the text."""


def _prompt_of_item(item: Item) -> StudyPrompt:
    return StudyPrompt(item.prompt(), item.regions(), item.message())


def _question_prompt(index: int) -> StudyPrompt:
    """A question with its passage and two others, a random and a hard one."""
    return _prompt_of_item(QUESTION_ITEMS[index])


def _bare_question_prompt(index: int) -> StudyPrompt:
    """The same question without any passage."""
    return _prompt_of_item(World("held-out", seed=SEED)[index].keep())


def _passage_prompt(index: int) -> StudyPrompt:
    """Passages and no question: the run goes on with the text."""
    item = World("held-out", seed=SEED + 1, distractors=Distractors(random=2))[index]
    text = " ".join(passage.text for passage in item.passages)
    return StudyPrompt(text, {}, text)


TEXT = "text"
"""The set of running text."""
CONTINUE = "Continue this story."
"""What a chat is asked to do with it."""
OPENINGS = Path(__file__).with_name("running_text.jsonl")


@cache
def running_texts() -> tuple[str, ...]:
    """How the stories of the set `text` begin."""
    lines = OPENINGS.read_text(encoding="utf-8").splitlines()
    return tuple(str(json.loads(line)["prompt"]) for line in lines)


def _running_text_prompt(index: int) -> StudyPrompt:
    """The first words of a story, cut after a whole word: the run goes on with it."""
    opening = running_texts()[index]
    return StudyPrompt(opening, {}, f"{CONTINUE}\n\n{opening}")


SETS: Mapping[str, Callable[[int], StudyPrompt]] = {
    "asked": _question_prompt,
    "alone": _bare_question_prompt,
    "told": _passage_prompt,
    TEXT: _running_text_prompt,
}
WITHOUT_REGIONS = ("told", TEXT)
"""Sets whose prompts have no named parts."""


def prompt_of(name: str, index: int) -> StudyPrompt:
    """Prompt `index` of a set."""
    if name not in SETS:
        raise SpecError(f"no set of prompts is called {name!r}: expected one of {', '.join(SETS)}")
    return SETS[name](index)
