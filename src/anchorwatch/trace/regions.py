"""Named parts of a prompt: words or characters mapped to token positions by one tokenisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anchorwatch.errors import SpecError
from anchorwatch.probes.spec import GROUPS
from anchorwatch.trace.trace import Trace

Span = str | tuple[int, int] | range
"""Words that a text prompt has once; (begin, end) in characters of a text prompt, in positions
where the prompt is ids or a canvas; or token positions, range(begin, end), of any prompt."""
Spans = Mapping[str, Span]
ANSWER = "answer"

_EXAMPLE = "{'passage': 'some words of the prompt'}"


@dataclass(frozen=True, eq=False)
class Regions:
    """Which region each position belongs to; -1 where it belongs to none."""

    names: tuple[str, ...] = ()
    of: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int16))
    """[position] index into names."""


def find_regions(
    spans: Spans | None, prompt: Any, model: Any, first: np.ndarray, answer: np.ndarray
) -> Regions:
    """Token positions of each span; the positions to be written are the region `answer`."""
    of = np.full(len(first), -1, dtype=np.int16)
    if spans is None:
        return Regions(of=of)
    _check(spans)
    if not spans:
        return Regions(of=of)
    given = np.setdiff1d(np.arange(len(first)), answer)
    for index, (name, span) in enumerate(spans.items()):
        inside = given[_holds(name, span, prompt, model, given)]
        if not len(inside):
            problem = f"the region {name!r}, {span!r:.40}, holds no token of the prompt"
            raise SpecError(f"{problem}: its {len(given)} tokens begin elsewhere, make it longer")
        if (of[inside] != -1).any():
            other = list(spans)[int(of[inside].max())]
            raise SpecError(f"the regions {other!r} and {name!r} overlap: give each token to one")
        of[inside] = index
    of[answer] = len(spans)
    return Regions(names=(*spans, ANSWER), of=of)


def find_again(spans: Spans, model: Any, trace: Trace) -> Regions:
    """Regions of a finished run, given as words or as ranges of token positions."""
    _check(spans)
    first = trace.given.astype(np.int64)
    words = False
    for name, span in spans.items():
        words |= isinstance(span, str)
        if not isinstance(span, str | range):
            raise SpecError(
                f"the region {name!r}: of a trace, {span!r} may count characters or tokens; "
                f"say range{tuple(span)} for token positions, or give the words"
            )
    if not words:
        return find_regions(spans, None, model, first, trace.answer)
    given = np.delete(first, trace.answer).tolist()
    if (
        trace.is_infill
        or not model.tokenizer
        or model.tokenizer(trace.prompt)["input_ids"] != given
    ):
        raise SpecError(
            "the prompt's text does not give back its tokens, so that words cannot be found in it: "
            "give token positions, for example {'passage': range(2, 9)}"
        )
    return find_regions(spans, trace.prompt, model, first, trace.answer)


def _check(spans: Any) -> None:
    if not isinstance(spans, Mapping):
        raise SpecError(
            f"regions={spans!r:.60} are not names and parts of a prompt: say {_EXAMPLE}"
        )
    for name, span in spans.items():
        if not isinstance(name, str) or not name:
            raise SpecError(f"a region is called {name!r}, which is no name: say {_EXAMPLE}")
        if name == ANSWER:
            raise SpecError("the region 'answer' is what the run writes: choose another name")
        if name in GROUPS:
            raise SpecError(f"{name!r} is a query group of every run: choose another name")
        if not isinstance(span, str | range) and not _is_pair(span):
            raise SpecError(
                f"the region {name!r} is {span!r:.60}: "
                "give words of the prompt, (begin, end), or range(begin, end)"
            )


def _is_pair(span: Any) -> bool:
    if not isinstance(span, tuple | list) or len(span) != 2:
        return False
    whole = (isinstance(n, int | np.integer) and not isinstance(n, bool) for n in span)
    return all(whole) and min(span) >= 0


def _holds(name: str, span: Span, prompt: Any, model: Any, given: np.ndarray) -> np.ndarray:
    """[given] bool: which of the given positions belong to a span."""
    if isinstance(span, range):
        return np.isin(given, np.array(span, dtype=np.int64))
    if isinstance(prompt, str):
        begin, end = _find_words(name, span, prompt) if isinstance(span, str) else span
        starts = _starts(prompt, model)
        return (starts >= begin) & (starts < end)
    if isinstance(span, str) or (prompt is not None and isinstance(prompt[0], Mapping)):
        raise SpecError(
            f"the region {name!r} is {span!r:.60} and the prompt is not one text: "
            "give token positions, range(begin, end)"
        )
    return (given >= span[0]) & (given < span[1])


def _find_words(name: str, words: str, text: str) -> tuple[int, int]:
    times = sum(text.startswith(words, index) for index in range(len(text)))
    if times != 1:
        way = "give more words, or (begin, end)" if times else "give words that are in it"
        raise SpecError(
            f"the region {name!r}: {words!r:.60} occurs {times} times in the prompt: {way}"
        )
    begin = text.index(words)
    return begin, begin + len(words)


def _starts(prompt: str, model: Any) -> np.ndarray:
    """Where each prompt token begins, in characters, its space skipped; -1 for special tokens."""
    if not getattr(model.tokenizer, "is_fast", False):
        raise SpecError(
            "the tokenizer is slow and does not know where a token begins: "
            "give token positions, range(begin, end)"
        )
    offsets = model.tokenizer(prompt, return_offsets_mapping=True)["offset_mapping"]
    starts = []
    for begin, end in offsets:
        text = prompt[begin:end]
        blank = len(text) - len(text.lstrip())
        starts.append(-1 if begin == end else min(begin + blank, end - 1))
    return np.array(starts)
