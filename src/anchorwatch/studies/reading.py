"""What a run looked at while it wrote its answer, and whether the answer is right. No torch here.

Only tokens of the answer itself count: what a run writes after an end token or a line break to
fill its length is no answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anchorwatch.evaluation.prompts import PLAIN, extract_answer, until_end
from anchorwatch.evaluation.scores import containment
from anchorwatch.evaluation.synthetic import Item
from anchorwatch.metrics.committed_rows import read_committed_rows
from anchorwatch.trace.trace import Trace

GOLD, OTHER = "gold", "distractor"
"""The region of the evidence, and how those of other passages begin."""
RIGHT = 5
"""Right answers that it takes to say what heads do in them: as many as any interval takes."""


@dataclass(frozen=True, eq=False)
class Reads:
    """Of the rows that predicted the answer's tokens: [layer, head] means, NaN without any."""

    gold: np.ndarray
    """Attention to the gold passage."""
    other: np.ndarray
    """To the others, each scaled to gold's length."""
    copy: np.ndarray
    """Share of rows whose greatest key is a gold token of the id that was written."""

    @property
    def beyond(self) -> np.ndarray:
        return self.gold - self.other


def reads(trace: Trace) -> Reads:
    """From `top_keys` and `commit_regions`."""
    others = [name for name in trace.manifest["regions"] if name.startswith(OTHER)]
    looks = read_committed_rows(trace, (GOLD, *others), None)
    told = np.isin(np.flatnonzero(trace.committed_at >= 0), answer_positions(trace))
    if not told.any():
        nothing = np.full(looks.hit.shape[1:3], np.nan)
        return Reads(nothing, nothing, nothing)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.where(looks.expected[1:] > 0, looks.expected[0] / looks.expected[1:], np.nan)
    mass, other = looks.mass[0], (looks.mass[1:] * scale[:, :, None]).mean(axis=0)
    return Reads(*(one[..., told].mean(axis=-1) for one in (mass, other, looks.copy[0])))


def answer_positions(trace: Trace) -> np.ndarray:
    """Positions of the answer, up to its end token or its first line break after some text."""
    model, found, begun = trace.manifest["model"], [], False
    ends = model.get("end_ids", ())
    for position in trace.answer.tolist():
        token = int(trace.own[position])
        text = trace.token(token)
        if token in ends or (begun and "\n" in text):
            break
        begun = begun or bool(text.strip())
        found.append(position)
    return np.array(found, dtype=int)


def right(trace: Trace, item: Item) -> float:
    """Whether what was written holds the answer, as an evaluation would say."""
    model = trace.manifest["model"]
    ids = until_end(trace.own[trace.answer].tolist(), model.get("end_ids", ()), model["mask_id"])
    return containment(extract_answer(trace.spell(ids), PLAIN), item.answers)
