"""How a run writes its answer: schedule (how many), policy (which), temperature; frozen values.

Nothing here imports torch: a laptop that only reads traces knows every decoding by its fields.
`length` is the number of positions to write; leave it out to infill whatever a canvas has masked.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from anchorwatch.errors import SpecError
from anchorwatch.trace.machine_limits import count

__all__ = ["DreamOrder", "LeftToRight", "LowConfidence", "RandomOrder", "Threshold"]

COLDEST = 1e-4
"""Logits divided by less would overflow."""

MOST = 10**18
"""Positions or passes that can be spoken of; a plan refuses far fewer."""

DreamAlgorithm = Literal["origin", "maskgit_plus", "topk_margin", "entropy"]


@dataclass(frozen=True)
class Decoding:
    """What every decoding has in common."""

    length: int | None = None
    """Positions to write after the prompt; None when a canvas is infilled."""
    _: KW_ONLY
    temperature: float = 0.0
    """0 takes the likeliest token; above 0 samples."""

    writes: ClassVar[Literal["masked", "absent"]] = "masked"
    """What it fills: masked positions (diffusion) or absent ones (autoregression)."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.generic):  # a sweep over np.arange hands out numpy scalars
                object.__setattr__(self, field.name, value.item())
        _whole("length", self.length, optional=True)
        _temperature("temperature", self.temperature)

    @property
    def num_passes(self) -> int:
        """Forward passes of a decoding of known length; some may stop earlier."""
        assert self.length is not None, "for_length() comes first"
        return int(getattr(self, "steps", None) or self.length)

    @property
    def draws(self) -> bool:
        """Whether anything is left to chance."""
        return self.temperature > 0

    def for_length(self, length: int) -> Decoding:
        """This decoding for exactly `length` positions; refuses if made for another number."""
        if self.length not in (None, length):
            raise SpecError(
                f"the decoding writes length={self.length} positions, "
                f"but the canvas has {length} masked: "
                f"leave length out to infill, or say length={length}"
            )
        return dataclasses.replace(self, length=length)

    def as_dict(self) -> dict[str, Any]:
        """Name and fields, for the manifest."""
        return {"name": type(self).__name__} | dataclasses.asdict(self)


@dataclass(frozen=True)
class Blocks(Decoding):
    """Decodings that may open the answer block by block, left to right."""

    _: KW_ONLY
    block: int | None = None
    """Positions in a block; None is one block as long as the answer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _whole("block", self.block, optional=True)
        if self.length is not None and self.block is not None and self.length % self.block:
            raise SpecError(
                f"block={self.block} does not divide length={self.length}: "
                f"use one of {_divisors(self.length)}"
            )

    @property
    def num_blocks(self) -> int:
        """Blocks in an answer of known length."""
        return 1 if self.block is None or self.length is None else self.length // self.block


@dataclass(frozen=True)
class EvenSteps(Blocks):
    """LLaDA's schedule: a fixed number of steps, commits spread evenly, the remainder first."""

    steps: int | None = None
    """Forward passes over the whole answer; None is one commit each."""
    _: KW_ONLY
    guidance: float = 0.0
    """Classifier-free guidance scale: 0 is off; the second branch sees the prompt masked."""
    forbid_end: bool = False
    """Never choose an end token (LLaDA's `logits_eos_inf`)."""
    defer_end: bool = False
    """Commit end tokens only after all others (LLaDA's `confidence_eos_eot_inf`, as meant)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _whole("steps", self.steps, optional=True)
        _number("guidance", self.guidance, at_least=0.0)
        if self.steps is not None and self.steps % self.num_blocks:
            raise SpecError(
                f"steps={self.steps} do not divide over {self.num_blocks} blocks of {self.block}: "
                f"use a multiple of {self.num_blocks}, "
                f"for example {_near(self.steps, self.num_blocks)}"
            )

    @property
    def steps_per_block(self) -> int:
        """Forward passes a block gets."""
        total = self.length if self.steps is None else self.steps
        assert total is not None, "for_length() comes first"
        return total // self.num_blocks


@dataclass(frozen=True)
class LowConfidence(EvenSteps):
    """LLaDA's generate: every step commits the positions it is surest of.

    >>> LowConfidence(length=32, steps=16, block=8).num_blocks
    4
    """


@dataclass(frozen=True)
class RandomOrder(EvenSteps):
    """LLaDA's random remasking: every step commits positions drawn at random."""

    @property
    def draws(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.defer_end:
            raise SpecError(
                "defer_end ranks by confidence and RandomOrder does not: use LowConfidence"
            )


@dataclass(frozen=True)
class DreamOrder(Decoding):
    """Dream's diffusion_generate: a noise schedule from t=1 to eps, and one of its four orders."""

    steps: int | None = None
    """Forward passes; None is one for each position."""
    _: KW_ONLY
    algorithm: DreamAlgorithm = "origin"
    """origin (each position by chance), maskgit_plus (top probability), topk_margin, entropy."""
    eps: float = 1e-3
    """Diffusion time of the last step."""
    top_p: float | None = None
    """Keep the likeliest tokens up to this mass."""
    top_k: int | None = None
    """Keep this many likeliest tokens."""
    algorithm_temperature: float | None = None
    """Above 0, positions are drawn by softmax(confidence / this) instead of taken from the top."""

    @property
    def draws(self) -> bool:
        return super().draws or self.algorithm == "origin" or bool(self.algorithm_temperature)

    def __post_init__(self) -> None:
        super().__post_init__()
        _whole("steps", self.steps, optional=True)
        _one_of("algorithm", self.algorithm, get_args(DreamAlgorithm))
        _number("eps", self.eps, above=0.0, below=1.0)
        _top(self.top_p, self.top_k)
        if self.algorithm_temperature is not None:
            _temperature("algorithm_temperature", self.algorithm_temperature)


@dataclass(frozen=True)
class Threshold(Blocks):
    """Fast-dLLM's rule: commit every position surer than a threshold, and always the surest one."""

    _: KW_ONLY
    threshold: float = 0.9
    """Confidence that is enough to commit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _number("threshold", self.threshold, above=0.0, at_most=1.0)

    @property
    def patience(self) -> int:
        """Steps in a block that may write nothing before it is left; chance may help, cold not."""
        return 4 if self.temperature > 0 else 1

    @property
    def num_passes(self) -> int:
        return super().num_passes + self.patience * self.num_blocks


@dataclass(frozen=True)
class LeftToRight(Decoding):
    """Autoregression: one position after another, each predicted by what stands before it."""

    _: KW_ONLY
    top_p: float | None = None
    """Keep the likeliest tokens up to this mass."""
    top_k: int | None = None
    """Keep this many likeliest tokens."""
    cache: bool = True
    """Keep keys and values between steps; without it every step reads the whole text again."""
    stop: bool = True
    """Stop after an end token, as transformers' generate does."""

    writes: ClassVar[Literal["masked", "absent"]] = "absent"

    def __post_init__(self) -> None:
        super().__post_init__()
        _top(self.top_p, self.top_k)


DECODINGS: dict[str, type[Decoding]] = {
    kind.__name__: kind for kind in (LowConfidence, RandomOrder, DreamOrder, Threshold, LeftToRight)
}


def from_dict(fields: Mapping[str, Any]) -> Decoding:
    """The decoding a manifest describes; the inverse of `as_dict`."""
    rest = dict(fields)
    name = rest.pop("name", None)
    if name not in DECODINGS:
        raise SpecError(f"no decoding is called {name!r}: expected one of {', '.join(DECODINGS)}")
    known = {field.name for field in dataclasses.fields(DECODINGS[name])}
    if unknown := sorted(set(rest) - known):
        raise SpecError(f"{name} has no {', '.join(unknown)}: it takes {', '.join(sorted(known))}")
    return DECODINGS[name](**rest)


def even_counts(positions: int, steps: int) -> list[int]:
    """Commits at each step: as even as can be, the remainder to the first steps.

    >>> even_counts(8, 3)
    [3, 3, 2]
    """
    base, remainder = divmod(positions, steps)
    return [base + (step < remainder) for step in range(steps)]


def _whole(name: str, value: object, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(f"{name}={value!r:.60} is not a whole number of at least 1")
    if value > MOST:
        raise SpecError(f"{name} is {count(value)}: say at most {MOST:,}, and 64 for example")


def _number(
    name: str,
    value: object,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
    below: float = math.inf,
) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and at_least <= value < math.inf and above < value <= at_most and value < below:  # type: ignore[operator]
        return
    wanted = [f"at least {at_least:g}"] if at_least > -math.inf else []
    wanted += [f"above {above:g}"] if above > -math.inf else []
    wanted += [f"at most {at_most:g}"] if at_most < math.inf else []
    wanted += [f"below {below:g}"] if below < math.inf else []
    raise SpecError(f"{name}={value!r} is not a finite number {' and '.join(wanted)}")


def _temperature(name: str, value: object) -> None:
    _number(name, value, at_least=0.0)
    if 0 < value < COLDEST:  # type: ignore[operator]
        raise SpecError(
            f"{name}={value!r} is too cold to divide by: use 0, or at least {COLDEST:g}"
        )


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SpecError(f"{name}={value!r} is unknown: expected one of {', '.join(choices)}")


def _top(top_p: float | None, top_k: int | None) -> None:
    if top_p is not None:
        _number("top_p", top_p, above=0.0, at_most=1.0)
    _whole("top_k", top_k, optional=True)


def _divisors(number: int) -> str:
    """All of them, or the small ones of a great number."""
    few = [str(d) for d in range(1, min(number, 4096) + 1) if number % d == 0]
    return ", ".join(few if number <= 4096 else [*few, "..."])


def _near(number: int, step: int) -> int:
    return max(step, round(number / step) * step)
