"""How much a study may cost: prompts, answer length, steps, items, seeds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from anchorwatch.errors import SpecError
from anchorwatch.generation.decoding import Decoding, LeftToRight, LowConfidence


@dataclass(frozen=True)
class Budget:
    """What every need takes unless it says its own."""

    name: str
    prompts: int
    """Runs of each kind; the prompt is what claims about attention resample."""
    length: int
    """Positions that a watched run writes."""
    steps: int
    """Its forward passes, where masks are filled."""
    items: int
    """Questions in each cell of an evaluation."""
    rows: int
    """Units of a table that a function makes of a model."""
    answer: int = 16
    """Positions of an answer to a question."""
    text_length: int = 32
    """Positions that a run of running text writes, one a step."""
    text_block: int = 8
    """Positions in a block of running text, where masks are filled."""

    def decoding(self, kind: str) -> Decoding:
        """How a watched run writes: greedily, and to the end, so that models share a length.

        Without a cache an autoregressive model too sees all rows at each step, as a masked one
        does.
        """
        if kind == "arm":
            return LeftToRight(self.length, cache=False, stop=False)
        return LowConfidence(self.length, self.steps)

    def text_decoding(self, kind: str) -> Decoding:
        """How running text is written: in blocks from left to right, a token a step.

        A masked model may not write its end token: what is watched is then text, not the filling
        of an answer's length. An autoregressive one goes on after it.
        """
        if kind == "arm":
            return LeftToRight(self.text_length, cache=False, stop=False)
        return LowConfidence(
            self.text_length, self.text_length, block=self.text_block, forbid_end=True
        )

    def answer_decoding(self, kind: str) -> Decoding:
        """How an answer is written: two commits a step where masks are filled."""
        if kind == "arm":
            return LeftToRight(self.answer)
        return LowConfidence(self.answer, -(-self.answer // 2))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


BUDGETS = {
    budget_.name: budget_
    for budget_ in (
        Budget("quick", prompts=10, length=16, steps=16, items=32, rows=10),
        Budget(
            "standard",
            prompts=48,
            length=32,
            steps=32,
            items=400,
            rows=48,
            text_length=64,
            text_block=16,
        ),
        Budget(
            "full",
            prompts=200,
            length=64,
            steps=64,
            items=2000,
            rows=200,
            text_length=128,
            text_block=32,
        ),
    )
}


def budget(name: str | Budget) -> Budget:
    """A budget by name, or one of yours as it is."""
    if isinstance(name, Budget):
        return name
    if name not in BUDGETS:
        raise SpecError(f"no budget is called {name!r}: expected one of {', '.join(BUDGETS)}")
    return BUDGETS[name]
