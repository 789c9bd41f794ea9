"""Sets of prompts by name: prompt i is a function of the set and of i.

A larger budget reads further in the same set, so that what a smaller one ran is reused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from anchorwatch.errors import SpecError
from anchorwatch.evaluation.synthetic import Distractors, World

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

    text: str
    regions: Mapping[str, tuple[int, int]]


def _question_prompt(index: int) -> StudyPrompt:
    """A question with its passage and two others, a random and a hard one."""
    item = QUESTION_ITEMS[index]
    return StudyPrompt(item.prompt(), item.regions())


def _bare_question_prompt(index: int) -> StudyPrompt:
    """The same question without any passage."""
    item = World("held-out", seed=SEED)[index].keep()
    return StudyPrompt(item.prompt(), item.regions())


def _passage_prompt(index: int) -> StudyPrompt:
    """Passages and no question: the run goes on with the text."""
    item = World("held-out", seed=SEED + 1, distractors=Distractors(random=2))[index]
    return StudyPrompt(" ".join(passage.text for passage in item.passages), {})


SETS: Mapping[str, Callable[[int], StudyPrompt]] = {
    "asked": _question_prompt,
    "alone": _bare_question_prompt,
    "told": _passage_prompt,
}


def prompt_of(name: str, index: int) -> StudyPrompt:
    """Prompt `index` of a set."""
    if name not in SETS:
        raise SpecError(f"no set of prompts is called {name!r}: expected one of {', '.join(SETS)}")
    return SETS[name](index)
