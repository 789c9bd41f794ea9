"""What a task of lm-eval asks of a decoding, of chance, and of an answer. No torch here."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anchorwatch.errors import SpecError
from anchorwatch.generation.decoding import Decoding

_SAMPLING = ("temperature", "top_p", "top_k")
_NEUTRAL = {"num_beams": 1, "repetition_penalty": 1.0, "num_return_sequences": 1}
"""What tasks say that changes nothing, by the value that does not."""


def for_task(given: Decoding | None, own: Decoding, asked: Mapping[str, Any]) -> Decoding:
    """How to answer a task that asks for some generation settings.

    A decoding that was given decides all but a length it leaves open; else it is the model's own,
    with the task's temperature and its kin where the task wants samples.
    """
    fields = dict(asked)
    sampled = fields.pop("do_sample", False)
    wanted = {name: fields.pop(name) for name in _SAMPLING if name in fields}
    odd = {k: v for k, v in fields.items() if v is not None and _NEUTRAL.get(k) != v}
    if odd:
        said = ", ".join(f"{name}={value!r}" for name, value in odd.items())
        raise SpecError(f"the task asks for {said}, which no decoding has: leave it out")
    if given is not None:
        length = own.length if given.length is None else given.length
        return dataclasses.replace(given, length=length)
    chance = {k: v for k, v in wanted.items() if sampled and v is not None}
    if lacks := sorted(set(chance) - {field.name for field in dataclasses.fields(own)}):
        raise SpecError(
            f"the task asks for {', '.join(lacks)}, which {type(own).__name__} has not: "
            "say decoding=dream:temperature=0.2:top_p=0.9, or --gen_kwargs do_sample=False"
        )
    return dataclasses.replace(own, **chance)


def seed_of(seed: int, ids: Sequence[int], time: int) -> int:
    """A seed of its own for each prompt and each time it is asked, wherever it stands."""
    said = hashlib.sha256(repr((seed, list(ids), time)).encode()).digest()
    return int.from_bytes(said[:8], "big") >> 1


def until(text: str, stops: Iterable[str]) -> str:
    """The text before the first of the stops."""
    for stop in stops:
        text = text.partition(stop)[0]
    return text
