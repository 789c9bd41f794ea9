"""Named parts of a prompt: character spans mapped to token positions through one tokenisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anchorwatch.errors import SpecError
from anchorwatch.probes import GROUPS

Spans = Mapping[str, tuple[int, int]]
ANSWER = "answer"


@dataclass(frozen=True, eq=False)
class Regions:
    """Which region each position belongs to; -1 where it belongs to none."""

    names: tuple[str, ...] = ()
    of: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int16))
    """[position] index into names."""


def find_regions(
    spans: Spans | None, prompt: Any, model: Any, first: np.ndarray, answer: np.ndarray
) -> Regions:
    """Token positions of each span; the positions to be written are the region `answer`.

    Spans count characters of a text prompt, or token positions where the prompt is ids.
    """
    if not spans:
        return Regions(of=np.full(len(first), -1, dtype=np.int16))
    if ANSWER in spans:
        raise SpecError("the region 'answer' is what the run writes: choose another name")
    for name in spans:
        if name in GROUPS:
            raise SpecError(f"{name!r} is a query group of every run: choose another name")
    starts = _starts(prompt, model, len(first) - len(answer))
    of = np.full(len(first), -1, dtype=np.int16)
    for index, (name, (begin, end)) in enumerate(spans.items()):
        inside = np.flatnonzero((starts >= begin) & (starts < end))
        if not len(inside):
            raise SpecError(f"the region {name!r} ({begin}, {end}) holds no token of the prompt")
        if (of[inside] != -1).any():
            other = list(spans)[int(of[inside].max())]
            raise SpecError(f"the regions {other!r} and {name!r} overlap: give each token to one")
        of[inside] = index
    of[answer] = len(spans)
    return Regions(names=(*spans, ANSWER), of=of)


def _starts(prompt: Any, model: Any, count: int) -> np.ndarray:
    """Where each prompt token begins, in characters (its space skipped) or in tokens."""
    if not isinstance(prompt, str):
        if prompt is None or isinstance(prompt[0], Mapping):
            raise SpecError("regions need a text prompt (character spans) or ids (token spans)")
        return np.arange(count)
    if not getattr(model.tokenizer, "is_fast", False):
        raise SpecError("regions need a fast tokenizer, which knows where each token begins")
    offsets = model.tokenizer(prompt, return_offsets_mapping=True)["offset_mapping"]
    starts = []
    for begin, end in offsets:
        text = prompt[begin:end]
        blank = len(text) - len(text.lstrip())
        starts.append(-1 if begin == end else min(begin + blank, end - 1))
    return np.array(starts)
