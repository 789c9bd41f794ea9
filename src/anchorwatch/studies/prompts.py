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


@dataclass(frozen=True)
class QuestionSet:
    """Items of the made-up world, and the context of a user's task that stands in for them."""

    world: World
    context: str

    def __getitem__(self, index: int) -> Item:
        return self.world[index]


QUESTION_SETS: Mapping[str, QuestionSet] = {
    # whose items the set `asked` shows: item i has the answers to prompt i
    "asked": QuestionSet(
        World("held-out", seed=SEED, distractors=Distractors(random=1, hard=1)), "gold+2"
    ),
    "alone": QuestionSet(World("held-out", seed=SEED), "closed"),
    "own passage": QuestionSet(World("held-out", seed=SEED), "gold"),
    "beside one": QuestionSet(
        World("held-out", seed=SEED, distractors=Distractors(random=1)), "gold+1"
    ),
    "told": QuestionSet(
        World("held-out", seed=SEED + 1, distractors=Distractors(random=2)), "gold+2"
    ),
    "other own passage": QuestionSet(World("held-out", seed=SEED + 2), "gold"),
    "two unrelated": QuestionSet(
        World("held-out", seed=SEED + 3, distractors=Distractors(random=2)), "gold+2"
    ),
}
"""Questions by name: with one random and one hard distractor, without a passage, and so on."""
APART = 1_000_000
"""Where items begin that are read by no set of prompts."""
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


def prompt_of_item(name: str, item: Item) -> StudyPrompt:
    """An item as the set of this name shows it."""
    if name == "told":
        text = " ".join(passage.text for passage in item.passages)
        return StudyPrompt(text, {}, text)
    shown = item.keep() if name == "alone" else item
    return StudyPrompt(shown.prompt(), shown.regions(), shown.message())


def _question_prompt(index: int) -> StudyPrompt:
    """A question with its passage and two others, a random and a hard one."""
    return prompt_of_item("asked", QUESTION_SETS["asked"][index])


def _bare_question_prompt(index: int) -> StudyPrompt:
    """The same question without any passage."""
    return prompt_of_item("alone", QUESTION_SETS["alone"][index])


def _passage_prompt(index: int) -> StudyPrompt:
    """Passages and no question: the run goes on with the text."""
    return prompt_of_item("told", QUESTION_SETS["told"][index])


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
