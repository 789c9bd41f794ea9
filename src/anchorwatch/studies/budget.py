"""How much a study may cost: prompts, answer length, steps, items, seeds."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from anchorwatch.errors import SpecError
from anchorwatch.generation.decoding import Decoding, LowConfidence
from anchorwatch.studies.protocols import DEFAULT_PROTOCOL, Protocol


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
    protocol: Protocol = DEFAULT_PROTOCOL
    """How models are prompted and write, where that is not the budget's way."""

    def __post_init__(self) -> None:
        self.decoding("mdm"), self.text_decoding("mdm")  # refuses blocks that do not divide

    def decoding(self, kind: str) -> Decoding:
        """How a watched run writes: greedily, and to the end, so that models share a length."""
        return self.protocol.decoding_for(kind, LowConfidence(self.length, self.steps))

    def text_decoding(self, kind: str) -> Decoding:
        """How running text is written: in blocks from left to right, a token a step.

        A masked model may not write its end token: what is watched is then text, not the filling
        of an answer's length. An autoregressive one goes on after it.
        """
        blocks: dict[str, Any] = {"block": self.text_block, "forbid_end": True}
        default = LowConfidence(self.text_length, self.text_length, **blocks)
        return self.protocol.decoding_for(kind, default)

    def answer_decoding(self, kind: str) -> Decoding:
        """How an answer is written: two commits a step where masks are filled."""
        return self.protocol.answer_decoding(kind, self.answer)

    def as_dict(self) -> dict[str, Any]:
        """Plain values; the protocol where it says something."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        said = values.pop("protocol").as_dict()
        return values | ({"protocol": said} if said else {})

    def describe(self) -> str:
        """How watched runs of masked models write, in words."""
        ways = {"questions": self.decoding("mdm"), "running text": self.text_decoding("mdm")}
        said = [f"{name}: {_describe_decoding(way)}" for name, way in ways.items()]
        return "; ".join([*said, *([str(self.protocol)] if str(self.protocol) else [])])


def _describe_decoding(decoding: Decoding) -> str:
    block = getattr(decoding, "block", None)
    blocks = f" in blocks of {block}" if block else ""
    return f"{decoding.length} positions{blocks}, {decoding.num_passes} steps"


BUDGETS = {
    budget_.name: budget_
    for budget_ in (
        Budget("quick", prompts=10, length=16, steps=16, items=32, rows=10),
        Budget(
            "standard",
            prompts=48,
            length=32,
            steps=32,
            items=480,
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


def budget(name: str | Budget, protocol: Protocol | None = None) -> Budget:
    """A budget by name, or one of yours as it is, under a protocol."""
    if not isinstance(name, Budget):
        if name not in BUDGETS:
            raise SpecError(f"no budget is called {name!r}: expected one of {', '.join(BUDGETS)}")
        name = BUDGETS[name]
    return name if protocol is None else replace(name, protocol=protocol)
