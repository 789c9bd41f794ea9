"""Decodings and edits spelled in a word without commas, as the harness's --model_args takes them.

`low-confidence:steps=32:block=8`; `hide-sinks:1:detect=same_shadow:layers=0+2`; a value without a
name is the first field; `/` stands between several edits; heads of knock-out are layer.head. A
mapping with a name and fields, as manifests hold it, does as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from anchorwatch import decoding as decodings
from anchorwatch import edits as kinds
from anchorwatch.decoding import Decoding
from anchorwatch.edits import Edit
from anchorwatch.errors import SpecError

_CONSTANTS = {"true": True, "false": False, "none": None}
_LISTS = ("layers", "heads", "steps", "positions")
"""Fields of edits that are lists even of one."""


_SAMPLING = ("temperature", "top_p", "top_k")
_NEUTRAL = {"num_beams": 1, "repetition_penalty": 1.0, "num_return_sequences": 1}
"""What tasks say that changes nothing, by the value that does not."""


def decoding_of(value: Any) -> Decoding | None:
    """The decoding that a word, a mapping or a decoding says; None leaves it to the model.

    >>> decoding_of("low-confidence:steps=32:block=8") == decodings.LowConfidence(steps=32, block=8)
    True
    """
    if value is None or isinstance(value, Decoding):
        return value
    if isinstance(value, Mapping):
        return decodings.from_dict(value)
    if not isinstance(value, str):
        raise SpecError(f"decoding={value!r} is not spelled: say low-confidence:steps=32")
    name, fields = _parted(value)
    plain = name.replace("-", "").lower()
    found = [known for known in decodings.DECODINGS if plain and known.lower().startswith(plain)]
    known = found[0] if len(found) == 1 else name
    return decodings.from_dict({"name": known} | _named(decodings.DECODINGS.get(known), fields))


def edits_of(value: Any) -> tuple[Edit, ...]:
    """The edits that a word, a list of words or mappings, or a list of edits says.

    >>> edits_of("hide-sinks:1:detect=same_shadow/knock-out:2.3+2.5")
    (hide_sinks(k=1, detect='same_shadow'), knock_out(heads=((2, 3), (2, 5))))
    """
    if value is None:
        return ()
    if isinstance(value, str):
        value = [word for word in value.split("/") if word]
    if isinstance(value, Mapping | Edit) or not isinstance(value, Iterable):
        value = [value]
    return tuple(_edit(one) for one in value)


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


def _edit(value: Any) -> Edit:
    if isinstance(value, Edit):
        return value
    if isinstance(value, Mapping):
        return kinds.from_dict(value)
    if not isinstance(value, str):
        raise SpecError(f"{value!r} is not the spelling of an edit: say hide-keys:0+3")
    name, fields = _parted(value)
    known = name.replace("-", "_")
    given = _named(kinds.EDITS.get(known), fields)
    for field, held in given.items():
        if field in _LISTS and held is not None and not isinstance(held, list):
            given[field] = [held]
    return kinds.from_dict({"name": known} | given)


def _parted(word: str) -> tuple[str, list[str]]:
    name, *fields = word.strip().split(":")
    return name, fields


def _named(kind: type | None, fields: list[str]) -> dict[str, Any]:
    """Fields by name; one without a name is the first that may be given by place."""
    given: dict[str, Any] = {}
    for word in fields:
        name, equals, held = word.partition("=")
        if not equals:
            name, held = _first(kind), word
        if name in given:
            raise SpecError(f"{name} is given twice, in {':'.join(fields)!r}: say it once")
        given[name] = _value(held, pairs=name == "heads" and "." in held)
    return given


def _first(kind: type | None) -> str:
    places = dataclasses.fields(kind) if kind is not None else ()
    return next((field.name for field in places if not field.kw_only), "value")


def _value(word: str, *, pairs: bool) -> Any:
    if "+" in word.strip("+"):
        return [_one(part, pairs) for part in word.split("+")]
    return [_one(word, pairs)] if pairs else _one(word, pairs)


def _one(word: str, pair: bool) -> Any:
    if pair:
        return tuple(_one(part, False) for part in word.split("."))
    if word.lower() in _CONSTANTS:
        return _CONSTANTS[word.lower()]
    for kind in _NUMBERS:
        try:
            return kind(word)
        except ValueError:
            continue
    return word


_NUMBERS: tuple[Callable[[str], Any], ...] = (int, float)
