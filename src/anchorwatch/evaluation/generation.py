"""What a task of lm-eval asks of a decoding. No torch here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from anchorwatch.decoding import Decoding
from anchorwatch.errors import SpecError

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
